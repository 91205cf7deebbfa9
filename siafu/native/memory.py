"""Memory for kernels: reuse of large buffers, advice about mapped files, and ranges of rows."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from siafu.native import core

_LARGE_BYTES = 1 << 22
_MMAP_THRESHOLD = -3  # a setting of malloc.h
_MAPPED_BYTES = 1 << 20


def empty_rows(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Allocate a (rows, width) array for a kernel to fill; a large one uses huge pages or a reused buffer."""
    num_bytes = rows * width * dtype.itemsize
    if core.kernels is None or num_bytes < _LARGE_BYTES:
        return torch.empty(rows, width, dtype=dtype)
    storage = core.kernels.take(num_bytes).untyped_storage()
    out: Any = torch.empty(0, dtype=dtype)
    return out.set_(storage, 0, (rows, width))  # not a view, so that autograd lets it be overwritten


def empty_steps(steps: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Allocate a (steps, rows, width) array, as :func:`empty_rows` does."""
    storage = empty_rows(steps * rows, width, dtype).untyped_storage()
    out: Any = torch.empty(0, dtype=dtype)
    return out.set_(storage, 0, (steps, rows, width))


@contextmanager
def arrays_reused() -> Iterator[None]:
    """Reuse the memory of large kernel outputs after their tensors die, which saves page faults."""
    if core.kernels is None:
        yield
        return
    core.kernels.keep_given_back(True)
    try:
        yield
    finally:
        core.kernels.keep_given_back(False)


def map_large_arrays() -> None:
    """Make large arrays that torch allocates return to the system when freed (glibc's mmap threshold).

    Without this the C library learns to keep them in its heap, which is faster.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)


def prefetch_rows(rows: Tensor, index: Tensor) -> None:
    """Advise the system to read the given rows of a memory-mapped array, and not their surroundings."""
    if core.kernels is not None and rows.is_contiguous() and rows.nbytes >= _LARGE_BYTES:
        core.kernels.expect_rows(plain_dtype(rows), index.long().contiguous())


def restore_readahead(rows: Tensor) -> None:
    """Restore the system's default read-ahead for a memory-mapped array."""
    if core.kernels is not None and rows.is_contiguous() and rows.nbytes >= _LARGE_BYTES:
        core.kernels.expect_all(plain_dtype(rows))


def row_range(rows: slice | None, num_rows: int) -> tuple[int, int]:
    """Return the first row and the end of a slice; None stands for all rows."""
    return (0, num_rows) if rows is None else (rows.start, rows.stop)


def write_rows(out: Tensor | None, values: Tensor, rows: slice | None) -> Tensor:
    """Copy some rows of ``values`` into ``out`` and return it; without ``out`` return ``values``."""
    if out is None:
        return values
    rows = slice(0, values.shape[0]) if rows is None else rows
    out[rows] = values[rows]
    return out


def plain_dtype(rows: Tensor) -> Tensor:
    """View bfloat16 as uint16, since the core's array interface has no bfloat16."""
    return rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows
