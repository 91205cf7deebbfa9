"""Ranks as threads: order of results, the original error, threads per rank, interrupts."""

import ctypes
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from siafu import native
from siafu.comm import Comm
from siafu.launch.local import run_threads


def test_one_rank_runs_in_the_calling_thread() -> None:
    def where(comm: Comm) -> tuple[int, bool]:
        return comm.world_size, threading.current_thread() is threading.main_thread()

    assert run_threads(where, ranks=1, threads=1) == [(1, True)]


def test_the_real_error_is_raised_and_keeps_its_type() -> None:
    def fail(comm: Comm) -> None:
        if comm.rank == 2:
            raise FileNotFoundError(2, "No such file or directory", "part-2")
        comm.barrier(label="epoch 1")

    with pytest.raises(FileNotFoundError, match="part-2") as raised:
        run_threads(fail, ranks=3, threads=1)
    assert raised.value.__notes__ == ["on rank 2 of 3"]


def test_mismatched_collectives_end_with_an_error() -> None:
    with pytest.raises(RuntimeError, match="rank"):
        run_threads(lambda comm: comm.rank == 0 and comm.barrier(label="alone"), ranks=2, threads=1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_rank_computes_with_its_threads_and_the_caller_with_its_own(ranks: int) -> None:
    assert native.__name__  # its kernels are loaded

    def count(comm: Comm) -> tuple[int, int]:
        a = torch.rand(300, 300)
        comm.all_reduce(a @ a, label="sum")  # torch has used its threads
        return torch.get_num_threads(), _threads_of_a_kernel()

    before = torch.get_num_threads()
    assert run_threads(count, ranks=ranks, threads=3) == [(3, 3)] * ranks
    assert torch.get_num_threads() == before
    assert _asked_in_a_new_thread() == before
    with pytest.raises(ZeroDivisionError):
        run_threads(lambda comm: 1 // 0, ranks=ranks, threads=3)
    assert torch.get_num_threads() == before


def _threads_of_a_kernel() -> int:
    """What OpenMP would start here; there is one OpenMP for torch and our kernels."""
    maps = Path("/proc/self/maps").read_text().split()
    (library,) = {word for word in maps if "libgomp" in word}
    return int(ctypes.CDLL(library).omp_get_max_threads())


def _asked_in_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_ctrl_c_ends_all_ranks() -> None:
    ended: list[int] = []

    def wait(comm: Comm) -> None:
        try:
            comm.barrier(label="both are here")
            if comm.rank == 0:
                os.kill(os.getpid(), signal.SIGINT)
            comm.receive(1 - comm.rank, label="never sent")
        finally:
            ended.append(comm.rank)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_threads(wait, ranks=2, threads=1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(ended) == [0, 1]


@pytest.mark.parametrize(("ranks", "threads"), [(0, 1), (1, 0)])
def test_zero_ranks_or_threads_are_refused(ranks: int, threads: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1 of each"):
        run_threads(lambda comm: None, ranks=ranks, threads=threads)
