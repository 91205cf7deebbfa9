"""The ``local`` engine: ranks are threads of this process. It opens no port and writes no file."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from siafu.comm import Comm, connect_threads, single_rank_comm
from siafu.launch.failures import describe_error, is_secondary_failure

T = TypeVar("T")
_SIGNAL_CHECK_S = 0.2  # signals delivered to other threads are handled between two waits


def run_threads(fn: Callable[[Comm], T], *, ranks: int, threads: int, deadline_s: float = 30.0) -> list[T]:
    """Call ``fn`` once per rank, each in a thread of its own; return the results in rank order.

    Torch and siafu's kernels use ``threads`` threads in each rank. If a rank fails, all other ranks end, and its error
    is raised here with its rank as a note. A single rank runs in the calling thread.
    """
    if ranks < 1 or threads < 1:
        raise ValueError(f"ranks is {ranks} and threads is {threads}; expected at least 1 of each")
    with _restored_torch_threads():
        if ranks == 1:
            torch.set_num_threads(threads)
            with closing(single_rank_comm()) as comm:
                return [fn(comm)]
        group = _ThreadGroup(fn, threads, connect_threads(ranks, deadline_s=deadline_s))
        group.run(timeout_s=deadline_s)
    if group.errors:
        rank, error = next(
            (each for each in group.errors if not is_secondary_failure(each[1])), group.errors[0]
        )
        error.add_note(f"on rank {rank} of {ranks}")
        raise error
    return [group.results[rank] for rank in range(ranks)]


@contextmanager
def _restored_torch_threads() -> Iterator[None]:
    """Restore torch's number of threads: new threads inherit the last number that any thread set."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class _ThreadGroup(Generic[T]):
    """The ranks of one call.

    Attributes:
        fn: the function that each rank calls.
        threads: the number of compute threads of each rank.
        comms: a Comm for each rank.
        results: the return values, by rank.
        errors: rank and error of the failed ranks, in the order in which they failed.
        ended: an event per rank; ``Thread.join`` is not enough, since it marks running threads as ended if interrupted.
    """

    fn: Callable[[Comm], T]
    threads: int
    comms: list[Comm]
    results: dict[int, T] = field(default_factory=dict)
    errors: list[tuple[int, BaseException]] = field(default_factory=list)
    ended: dict[int, threading.Event] = field(default_factory=dict)

    def run(self, *, timeout_s: float) -> None:
        """Run all ranks to their end; an interrupt of the calling thread ends them."""
        running = [
            threading.Thread(target=self._run_rank, args=(comm,), name=f"rank {comm.rank}", daemon=True)
            for comm in self.comms
        ]
        try:
            for comm, thread in zip(self.comms, running, strict=True):
                self.ended[comm.rank] = threading.Event()
                thread.start()
            for ended in self.ended.values():
                while not ended.wait(_SIGNAL_CHECK_S):
                    pass
        except BaseException as interrupt:
            for comm in self.comms:
                comm.fail(f"interrupted by {type(interrupt).__name__}")
            for ended in self.ended.values():
                ended.wait(timeout_s)
            raise

    def _run_rank(self, comm: Comm) -> None:
        try:
            torch.get_num_threads()  # initialises this thread; without it, the next call would be undone
            torch.set_num_threads(self.threads)
            self.results[comm.rank] = self.fn(comm)
        except BaseException as error:
            self.errors.append((comm.rank, error))
            comm.fail(describe_error(error))
        finally:
            comm.close()
            self.ended[comm.rank].set()
