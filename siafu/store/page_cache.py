"""Limit the memory that mapped arrays of a store occupy in a process after they were read."""

import ctypes
import mmap
import os
import sys
from pathlib import Path

from torch import Tensor

from siafu.graph import Graph
from siafu.native import SparseRows

_STATM = Path("/proc/self/statm")


class ResidentPages:
    """The resident pages of the large arrays of a graph that :meth:`siafu.store.Store.graph` mapped.

    A page stays resident after it was read, although it is only a copy of the disk: a process that reads rows all over
    a store of a terabyte would seem to need a terabyte. The arrays must never have been written to: releasing pages
    drops such writes.
    """

    def __init__(self, graph: Graph, *, most_bytes: int = 1 << 29) -> None:
        x = graph.x
        features = (x.indptr, x.indices, x.values) if isinstance(x, SparseRows) else (x,)
        arrays = (*features, graph.indices, graph.indptr, graph.edge_weight)
        known = sys.platform == "linux" and _STATM.is_file()
        self._arrays = [array for array in arrays if known and array is not None and array.numel()]
        for array in self._arrays:  # rows are read here and there: what lies beside them is no use
            _advise(array, mmap.MADV_RANDOM)
        self._let_go()
        self._limit_bytes = most_bytes + _resident_bytes() if known else 0

    def release_excess(self) -> None:
        """Release pages where too many are resident; the system keeps those that it has room for in its page cache."""
        if self._arrays and _resident_bytes() > self._limit_bytes:
            self._let_go()

    def _let_go(self) -> None:
        for array in self._arrays:
            _advise(array, mmap.MADV_DONTNEED)


def _resident_bytes() -> int:
    """Return how many bytes of mapped files are resident in this process."""
    return int(_STATM.read_text().split()[2]) * mmap.PAGESIZE


def _advise(array: Tensor, advice: int) -> None:
    assert array.data_ptr() % mmap.PAGESIZE == 0, "only a mapped array begins with a page"
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if libc.madvise(array.data_ptr(), array.nbytes, advice):
        number = ctypes.get_errno()
        raise OSError(number, f"madvise: {os.strerror(number)}")
