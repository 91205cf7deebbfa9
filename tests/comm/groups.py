"""Groups of ranks for tests: as threads, as threads joined by TLS, as processes joined by Unix sockets."""

import multiprocessing
import pickle
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from siafu.comm import (
    Comm,
    CommError,
    GroupConfig,
    LocalRendezvousStore,
    PeerFailed,
    connect_sockets,
    connect_threads,
)

# Ranks fork from a server that has imported torch already: 0.1 s a start, not seconds.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "siafu.comm"])
LONG_S = 240.0  # no test should take this long, however slow the machine


def group_of(rank: int, world_size: int, *, deadline_s: float = LONG_S, **changes: Any) -> GroupConfig:
    fields: dict[str, Any] = {
        "rank": rank,
        "world_size": world_size,
        "secret": b"a secret of this group",
        "bind": "127.0.0.1",
        "encrypt": False,
        "deadline_s": deadline_s,
        "settings": "settings",
        "version": "0.1.0",
        "name": f"host{rank}",
    }
    return GroupConfig(**{**fields, **changes})


def run_threads(
    fn: Callable[..., Any], *args: Any, world_size: int = 2, deadline_s: float = LONG_S, **_: Any
) -> list[Any]:
    """``fn(comm, *args)`` on each rank, a thread each; results in rank order."""
    comms = connect_threads(world_size, deadline_s=deadline_s)
    return _run([lambda comm=comm: comm for comm in comms], fn, args)


def run_mesh(
    fn: Callable[..., Any], *args: Any, world_size: int = 2, deadline_s: float = LONG_S, **_: Any
) -> list[Any]:
    """The same with connections between the threads, encrypted as between hosts."""
    store = LocalRendezvousStore()

    def join(rank: int) -> Comm:
        group = group_of(rank, world_size, deadline_s=deadline_s, encrypt=True)
        return Comm(connect_sockets(group, store, timeout_s=LONG_S))

    return _run([lambda rank=rank: join(rank) for rank in range(world_size)], fn, args)


def run_processes(
    fn: Callable[..., Any], *args: Any, tmp_path: Path, world_size: int = 2, deadline_s: float = LONG_S
) -> list[Any]:
    """The same with a process for each rank; ``fn`` must be a function of a module."""
    ranks = start_processes(fn, *args, tmp_path=tmp_path, world_size=world_size, deadline_s=deadline_s)
    outcomes = ranks.outcomes()
    _raise_first(outcomes)
    return outcomes


def _run(joins: Sequence[Callable[[], Comm]], fn: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    def main(join: Callable[[], Comm]) -> Any:
        comm = join()
        try:
            return fn(comm, *args)
        except BaseException as error:
            comm.fail(f"{type(error).__name__}: {error}")
            return Raised(error)
        finally:
            comm.close()

    with ThreadPoolExecutor(len(joins)) as pool:
        outcomes = list(pool.map(main, joins))
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("siafu-comm")]
    assert not left, left
    _raise_first(outcomes)
    return outcomes


@dataclass(frozen=True)
class Raised:
    """The outcome of a rank that raised."""

    error: BaseException


def _raise_first(outcomes: Sequence[Any]) -> None:
    errors = [outcome.error for outcome in outcomes if isinstance(outcome, Raised)]
    # A rank's own errors first, those that it was told of last.
    for error in sorted(
        errors, key=lambda error: isinstance(error, CommError) + isinstance(error, PeerFailed)
    ):
        raise error


@dataclass(frozen=True)
class Processes:
    """Ranks that run as processes."""

    processes: list[BaseProcess]
    pipes: list[Connection]

    def pid(self, rank: int) -> int:
        pid = self.processes[rank].pid
        assert pid is not None
        return pid

    def next_message(self, rank: int) -> Any:
        """What a rank says next by ``tell``, or its outcome."""
        if not self.pipes[rank].poll(LONG_S):
            raise TimeoutError(f"rank {rank} said nothing")
        return pickle.loads(self.pipes[rank].recv_bytes())

    def outcomes(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """What these ranks returned or raised; no process is left."""
        wanted = range(len(self.processes)) if ranks is None else ranks
        try:
            return [self.next_message(rank) for rank in wanted]
        finally:
            for rank, process in enumerate(self.processes):
                process.join(5 if rank in wanted else 0)
                process.kill()
                process.join()


def start_processes(
    fn: Callable[..., Any], *args: Any, tmp_path: Path, world_size: int = 2, deadline_s: float = LONG_S
) -> Processes:
    """Start ``fn(comm, *args)`` on each rank, a process each."""
    started = Processes([], [])
    for rank in range(world_size):
        ours, theirs = _CONTEXT.Pipe()
        group = group_of(rank, world_size, deadline_s=deadline_s, secret=str(tmp_path).encode())
        process = _CONTEXT.Process(target=_main, args=(group, theirs, fn, args), daemon=True)
        process.start()
        theirs.close()
        started.processes.append(process)
        started.pipes.append(ours)
    return started


_pipe: Connection | None = None


def tell(message: Any) -> None:
    """In a rank process: say something to the test."""
    assert _pipe is not None
    _pipe.send_bytes(
        pickle.dumps(message)
    )  # not send(), which leaves tensors in the memory of a rank that ends


def _main(group: GroupConfig, pipe: Connection, fn: Callable[..., Any], args: Sequence[Any]) -> None:
    global _pipe
    _pipe = pipe
    torch.set_num_threads(1)
    comm = Comm(connect_sockets(group, None, timeout_s=LONG_S))
    try:
        outcome = fn(comm, *args)
    except BaseException as error:
        comm.fail(f"{type(error).__name__}: {error}")
        error.add_note("".join(traceback.format_exception(error)))
        outcome = Raised(error)
    comm.close()
    tell(outcome)
