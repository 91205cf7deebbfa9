"""What rows and updates weigh on the wire: the lengths that ``packed`` and ``codec`` give them, for all at once."""

import torch
from torch import Tensor

from siafu.comm.codec import LEVELS, scales_of
from siafu.comm.config import Precision

SHARE_A_SCALE = 256  # numbers of an update
_HEAD = 2  # bytes that say how a table is written
_UPDATE = {"bf16": 2 * SHARE_A_SCALE, "int8": SHARE_A_SCALE + 4, "int4": SHARE_A_SCALE // 2 + 2}


def update_bytes(count: int, precision: Precision) -> int:
    """The bytes of so many numbers of an update, (N,)."""
    return 4 * count if precision == "fp32" else -(-count // SHARE_A_SCALE) * _UPDATE[precision]


def row_bytes(rows: Tensor) -> Tensor:
    """The bytes of each row of (R, F), packed as a table of one row: (R,) int64."""
    width, there = rows.shape[1], rows != 0
    count = there.sum(1)
    told = _gap_bytes(there, count).clamp(max=-(-width // 8))
    some = told + _value_bytes(rows, there, count)
    every = _value_bytes(rows, torch.ones_like(there), torch.full_like(count, width))
    return _HEAD + torch.where(2 * count > width, torch.minimum(some, every), some)


def _gap_bytes(there: Tensor, count: Tensor) -> Tensor:
    """Of the number of a row's values and the gaps between their columns, 7 bits a byte."""
    row, column = there.nonzero(as_tuple=True)
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    gap = column - torch.where(first, -1, column.roll(1)) - 1
    return _varint_bytes(count).index_add(0, row, _varint_bytes(gap))


def _varint_bytes(values: Tensor) -> Tensor:
    longer = [values >= 1 << 7 * more for more in range(1, 5)]
    return 1 + torch.stack(longer).sum(0)


def _value_bytes(rows: Tensor, written: Tensor, count: Tensor) -> Tensor:
    """Of the values that are written, in the first form that holds all of a row exactly: (R,) int64."""
    out = count * rows.dtype.itemsize
    for holds, size in reversed(_forms(rows, written, count)):
        out = torch.where(holds, size, out)
    return out


def _forms(rows: Tensor, written: Tensor, count: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each form whether it holds the values of each row, and the bytes that it takes."""
    first = (
        rows.gather(1, written.int().argmax(1, keepdim=True))
        if rows.shape[1]
        else rows.new_zeros(len(rows), 1)
    )

    def all_of(holds: Tensor) -> Tensor:
        return (holds | ~written).all(1)

    def stays(dtype: torch.dtype) -> Tensor:
        return all_of(rows.to(dtype).to(rows.dtype) == rows)

    each = torch.ones_like(count)
    return [
        (all_of(rows == 1), 0 * count),
        (all_of(rows == first), each * rows.dtype.itemsize),
        (_scaled(rows, "int4"), 2 + (count + 1) // 2),
        (stays(torch.int8), count),
        (_scaled(rows, "int8"), 4 + count),
        (stays(torch.bfloat16), 2 * count),
        (stays(torch.float32), 4 * count),
    ]


def _scaled(rows: Tensor, precision: Precision) -> Tensor:
    """Whether whole numbers times a scale give each row back, (R,) bool; what is zero stays so."""
    most = LEVELS[precision]
    largest = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    step = scales_of(largest, precision).to(rows.dtype)[:, None]
    levels = (rows / torch.where(step > 0, step, 1)).round_().clamp_(-most, most)
    return (levels * step == rows).all(1)
