"""Sparse rows on the wire: the length of each row, then columns and values."""

from collections.abc import Sequence

import torch

from siafu.array_checks import check_ids
from siafu.comm.comm import Comm
from siafu.native import SparseRows


def exchange_sparse_rows(
    comm: Comm, rows: SparseRows, send: Sequence[int], recv: Sequence[int], *, label: str
) -> SparseRows:
    """Send each rank its rows, ``send[rank]`` of them, and receive ``recv[rank]`` of each. Collective."""
    lengths = rows.indptr.diff()
    counts = comm.all_to_all(lengths.int(), send, recv, label=label).long()
    if bool(((counts < 0) | (counts > rows.width)).any()):
        raise ValueError(
            f"{label}: a rank sent rows of {int(counts.max())} numbers; expected 0 to {rows.width}"
        )
    numbers = torch.stack([rows.indices, rows.values.view(torch.int32)], 1)
    sizes = [int(part.sum()) for part in lengths.split(list(send))]
    expected = [int(part.sum()) for part in counts.split(list(recv))]
    came = comm.all_to_all(numbers, sizes, expected, label=label)
    indices, values = came[:, 0].contiguous(), came[:, 1].contiguous().view(torch.float32)
    comm.check_rows(values[:, None], expected, label=label)
    check_ids(indices, rows.width, label, field="columns")
    indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return SparseRows(indptr, indices, values, rows.width)
