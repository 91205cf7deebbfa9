"""The limits of this machine, measured: multiply-adds per second, and bytes per second of rows read at random.

``limits.cpp`` is compiled for this very machine when first asked for, with the compiler that builds the core.
"""

import ctypes
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_name("limits.cpp")


@cache
def _compiled() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "limits.so"
        flags = ["-O3", "-march=native", "-fopenmp", "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run(["c++", *flags, "-o", str(library), str(_SOURCE)], check=True)
        found = ctypes.CDLL(str(library))
    found.multiply_add.restype = ctypes.c_double
    return found


def gflops(threads: int, *, rounds: int = 20_000_000) -> float:
    """Return 10^9 floating-point operations per second of multiply-adds in registers; a multiply-add is two."""
    out, best = ctypes.c_float(), float("inf")
    for _ in range(3):
        start = time.perf_counter()
        done = _compiled().multiply_add(ctypes.c_int64(rounds), threads, ctypes.byref(out))
        best = min(best, time.perf_counter() - start)
    return done / best / 1e9


def gather_seconds(x: Tensor, width: int, ids: Tensor, threads: int) -> float:
    """Return the seconds of one plain read of the rows ``ids`` (int32), ``width`` columns of each row of x."""
    assert (x.dtype, ids.dtype) == (torch.float32, torch.int32)
    assert ids.is_contiguous()
    out = ctypes.c_float()
    how = [ctypes.c_int64(width), ctypes.c_int64(x.stride(0)), ctypes.c_void_p(ids.data_ptr())]
    rest = [ctypes.c_int64(ids.numel()), threads, ctypes.byref(out)]
    start = time.perf_counter()
    _compiled().gather(ctypes.c_void_p(x.data_ptr()), *how, *rest)
    return time.perf_counter() - start
