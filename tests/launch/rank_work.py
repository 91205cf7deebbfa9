"""The functions that ranks run in the tests of engines, by name, the same on every engine."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from siafu.comm import Comm

TIMEOUT_S = 240  # no test should take this long, however busy the machine
STOPS: list[int] = []  # signals that asked this process to stop
# Starts a command with variables added to the environment.
Starter = Callable[..., "subprocess.Popen[str]"]


def exchange(comm: Comm) -> list[Any]:
    """Something of each kind of call."""
    rows = torch.arange(comm.world_size, dtype=torch.int64) + 10 * comm.rank
    ones = [1] * comm.world_size
    return [
        comm.rank,
        comm.all_reduce(torch.tensor([1.0, float(comm.rank)]), label="sum").tolist(),
        comm.all_to_all(rows, ones, ones, label="deal").tolist(),
        [len(each) for each in comm.all_gather(torch.zeros(comm.rank), label="gather")],
        comm.broadcast_text("from rank 0" if comm.rank == 0 else None, label="text"),
        torch.get_num_threads(),
    ]


def refuse(comm: Comm) -> None:
    """Rank 1 finds something wrong while the others wait for it."""
    if comm.rank == 1:
        raise ValueError("graph.npz: labels: found none, expected one a node; give --labels")
    comm.barrier(label="epoch 1")


def fault(comm: Comm) -> None:
    """Rank 1 has a fault of its own."""
    if comm.rank == 1:
        raise KeyError("weights")
    comm.barrier(label="epoch 1")


def freeze(comm: Comm) -> None:
    """Rank 1 is stopped while the others wait for it."""
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.barrier(label="epoch 1")


def epochs(comm: Comm) -> int:
    """Count epochs into a file; told to stop, end after one. Killed once at epoch 3, as the file ``kill`` asks."""
    folder = Path(os.environ["EPOCHS"])
    done = int((folder / "done").read_text()) if (folder / "done").exists() else 0
    while done < 1_000_000:
        done += 1
        wants_to_end = bool(STOPS) or (done >= 6 and (folder / "ends").exists())
        stop = comm.all_reduce(torch.tensor([float(wants_to_end)]), label="stop").item()
        if comm.rank == 0:
            (folder / "part").write_text(str(done))
            (folder / "part").replace(folder / "done")
        if done == 3 and comm.rank == 1 and (folder / "kill").exists():
            (folder / "kill").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if stop:
            break
        time.sleep(0.01)
    return done


WORK: dict[str, Callable[[Comm], Any]] = {
    work.__name__: work for work in (exchange, refuse, fault, freeze, epochs)
}
