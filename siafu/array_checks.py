"""Validate arrays before the compiled core reads them.

The core reads the offsets and columns of a graph many times and trusts them. So each graph that is handed in, opened or
received is checked here once, in one pass over its arrays. These checks read no file; ``what`` names the graph in
errors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from siafu import native


class ValidatedCsr(NamedTuple):
    """A CSR whose offsets and columns are in range. It lets later checks of the same arrays return at once.

    Attributes:
        indptr: (R + 1,) int64.
        indices: (E,) int32.
        num_src: the number of columns.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int

    def covers(self, indptr: Tensor, indices: Tensor, num_src: int) -> bool:
        """Return whether these arrays are the very objects that were checked."""
        return self.indptr is indptr and self.indices is indices and self.num_src == num_src


def check_csr(
    indptr: Tensor, indices: Tensor, num_src: int, what: str, *, known: ValidatedCsr | None = None
) -> ValidatedCsr:
    """Refuse offsets that do not ascend from 0 to the number of edges, and indices outside ``[0, num_src)``.

    Arrays that ``known`` covers are not read again.
    """
    if known is not None and known.covers(indptr, indices, num_src):
        return known
    check_array(indices, f"{what}: indices", torch.int32, (None,))
    check_offsets(indptr, indices.numel(), what)
    check_ids(indices, num_src, what)
    return ValidatedCsr(indptr, indices, num_src)


def check_offsets(ptr: Tensor, total: int, what: str, *, field: str = "indptr", of: str = "indices") -> None:
    """Refuse offsets that decrease, or do not run from 0 to ``total``; ``of`` names in errors what they point into."""
    check_array(ptr, f"{what}: {field}", torch.int64, (None,))
    if not ptr.numel():
        raise ValueError(f"{what}: {field} is empty; expected one offset more than rows, the first 0")
    if int(ptr[0]) != 0:
        raise ValueError(
            f"{what}: {field}[0] is {int(ptr[0])}; expected offsets from 0 to the number of {of}"
        )
    fall = native.first_decrease(ptr)
    if fall >= 0:
        raise ValueError(
            f"{what}: {field}[{fall + 1}] is {int(ptr[fall + 1])}, but the offset before it is {int(ptr[fall])}; "
            "expected offsets that never fall"
        )
    if int(ptr[-1]) != total:
        raise ValueError(
            f"{what}: {field} ends at {int(ptr[-1])}, but there are {total} {of}; expected it to end there"
        )


def check_ids(ids: Tensor, num_nodes: int, what: str, *, field: str = "indices") -> None:
    """Refuse node ids outside ``[0, num_nodes)``, (n,) int32 or int64."""
    place = native.first_out_of_range(ids, num_nodes)
    if place >= 0:
        raise ValueError(
            f"{what}: {field}[{place}] names node {int(ids[place])} of {num_nodes} nodes; expected 0 to {num_nodes - 1}"
        )


def check_classes(
    y: Tensor, what: str, *, field: str = "y", class_names: Sequence[str] | None = None
) -> None:
    """Refuse integer classes below -1 (-1: unlabelled), and classes that have no name where names are given."""
    if y.dtype == torch.uint8 and y.numel() and int(y.max()) > 1:
        raise ValueError(
            f"{what}: {field}[{_first(y == y.max())}] is {int(y.max())}; expected 0 or 1, a column a label"
        )
    if y.dtype != torch.int64 or not y.numel():
        return
    low, high = (int(end) for end in y.aminmax())
    if low < -1:
        raise ValueError(
            f"{what}: {field}[{_first(y == low)}] is {low}; expected a class from 0, or -1 for none"
        )
    if class_names and high >= len(class_names):
        raise ValueError(
            f"{what}: {field}[{_first(y == high)}] is {high}, but there are names of {len(class_names)} classes; "
            f"expected 0 to {len(class_names) - 1}, or -1 for none"
        )


def check_width(shape: Sequence[int], what: str) -> None:
    """Refuse features that have no column."""
    if shape and not shape[-1]:
        raise ValueError(
            f"{what} is {tuple(shape)}; expected at least one feature a node; where there are none, leave the "
            "features out"
        )


def check_permutation(order: Tensor, num_rows: int, what: str) -> None:
    """Refuse an order that does not contain each of ``num_rows`` rows exactly once, (num_rows,) int64."""
    check_array(order, what, torch.int64, (num_rows,))
    place = native.first_out_of_range(order, num_rows)
    if place >= 0:
        raise ValueError(f"{what}[{place}] is {int(order[place])}; expected each of 0 to {num_rows - 1} once")
    seen = torch.zeros(num_rows, dtype=torch.bool)
    seen[order] = True
    if not bool(seen.all()):
        missing = int(seen.int().argmin())
        raise ValueError(f"{what} does not name row {missing}; expected each of 0 to {num_rows - 1} once")


def check_array(
    values: Tensor, what: str, dtype: torch.dtype | Sequence[torch.dtype], shape: Sequence[int | None]
) -> None:
    """Refuse anything but a contiguous CPU tensor of this dtype and shape; None stands for any size."""
    if not isinstance(values, Tensor):
        raise ValueError(
            f"{what} is a {type(values).__name__}; expected a torch.Tensor (torch.as_tensor makes one)"
        )
    dtypes = [dtype] if isinstance(dtype, torch.dtype) else dtype
    sizes = tuple(values.shape)
    fits = len(sizes) == len(shape) and all(
        wanted in (None, size) for size, wanted in zip(sizes, shape, strict=True)
    )
    if (
        values.dtype not in dtypes
        or not fits
        or values.layout != torch.strided
        or values.device.type != "cpu"
    ):
        kinds = " or ".join(str(each).removeprefix("torch.") for each in dtypes)
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{what} is {sizes} {values.dtype} on {values.device}; expected ({wanted}) {kinds} on cpu"
        )
    if not values.is_contiguous():
        raise ValueError(f"{what} is not contiguous; call .contiguous() on it")


def _first(mask: Tensor) -> str:
    """Format the index of the first True entry of a mask."""
    return ", ".join(str(int(i)) for i in mask.nonzero()[0])
