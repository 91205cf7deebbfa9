"""Ranks as threads of this process: the embedded engine. No process, no port, no file."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from siafu.comm import Comm, connect_threads, single_rank_comm
from siafu.launch.failures import explain, is_echo

T = TypeVar("T")
_SIGNALS_S = 0.2  # a signal that another thread got does not end a wait, but is handled after it


def run_threads(fn: Callable[[Comm], T], *, ranks: int, threads: int, deadline_s: float = 30.0) -> list[T]:
    """Call ``fn`` once for each rank, each in a thread of its own; what they return, in rank order.

    Torch and our kernels use ``threads`` threads in each rank. When a rank fails, all others are told and end, and its
    error is raised here with its rank as a note. One rank runs in the calling thread.
    """
    if ranks < 1 or threads < 1:
        raise ValueError(f"ranks is {ranks} and threads is {threads}; expected at least 1 of each")
    with _threads_put_back():
        if ranks == 1:
            torch.set_num_threads(threads)
            with closing(single_rank_comm()) as comm:
                return [fn(comm)]
        group = _Group(fn, threads, connect_threads(ranks, deadline_s=deadline_s))
        group.run(patience_s=deadline_s)
    if group.errors:
        rank, error = next((each for each in group.errors if not is_echo(each[1])), group.errors[0])
        error.add_note(f"on rank {rank} of {ranks}")
        raise error
    return [group.results[rank] for rank in range(ranks)]


@contextmanager
def _threads_put_back() -> Iterator[None]:
    """Torch's number of threads is a thread's own once set, but new threads take the last that anyone set."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class _Group(Generic[T]):
    """The ranks of one call.

    Attributes:
        fn: what each rank does.
        threads: how many threads each rank computes with.
        comms: a Comm for each rank.
        results: what ranks returned, by rank.
        errors: rank and error of those that failed, in the order in which they did.
        ended: whether each rank has; an interrupted ``Thread.join`` says so of threads that still run.
    """

    fn: Callable[[Comm], T]
    threads: int
    comms: list[Comm]
    results: dict[int, T] = field(default_factory=dict)
    errors: list[tuple[int, BaseException]] = field(default_factory=list)
    ended: dict[int, threading.Event] = field(default_factory=dict)

    def run(self, *, patience_s: float) -> None:
        """Run all ranks to their end; whatever interrupts the calling thread ends them."""
        running = [
            threading.Thread(target=self._run_rank, args=(comm,), name=f"rank {comm.rank}", daemon=True)
            for comm in self.comms
        ]
        try:
            for comm, thread in zip(self.comms, running, strict=True):
                self.ended[comm.rank] = threading.Event()
                thread.start()
            for ended in self.ended.values():
                while not ended.wait(_SIGNALS_S):
                    pass
        except BaseException as interrupt:
            for comm in self.comms:
                comm.fail(f"interrupted by {type(interrupt).__name__}")
            for ended in self.ended.values():
                ended.wait(patience_s)
            raise

    def _run_rank(self, comm: Comm) -> None:
        try:
            torch.get_num_threads()  # the first question of a thread sets it up, and would undo what was set before
            torch.set_num_threads(self.threads)
            self.results[comm.rank] = self.fn(comm)
        except BaseException as error:
            self.errors.append((comm.rank, error))
            comm.fail(explain(error))
        finally:
            comm.close()
            self.ended[comm.rank].set()
