"""Contract of all engines: results of ranks, and errors of ranks."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_work import TIMEOUT_S, WORK, Starter

from siafu.launch.elastic import launch
from siafu.launch.failures import RanksFailed
from siafu.launch.local import run_threads

# Runs a work of two ranks; returns their results, or raises with a message that says which rank failed and why.
Engine = Callable[[str], list[Any]]


def results(folder: Path) -> list[Any]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(params=["threads", "launch", "torchrun", "slurm"])
def engine(
    request: pytest.FixtureRequest, program: Callable[..., list[str]], start: Starter, tmp_path: Path
) -> Engine:
    def in_threads(name: str) -> list[Any]:
        try:
            return run_threads(WORK[name], ranks=2, threads=1)
        except Exception as error:
            raise RuntimeError(f"{error} {error.__notes__}") from error

    def launched(name: str) -> list[Any]:
        launch(program(name), ranks=2, threads=1, watch=lambda: False)
        return results(tmp_path)

    def ended(*processes: "subprocess.Popen[str]") -> list[Any]:
        said = [process.communicate(timeout=TIMEOUT_S) for process in processes]
        if any(process.returncode for process in processes):
            assert all(process.returncode for process in processes), "every rank fails"
            raise RuntimeError(" ".join(err for _, err in said))
        return results(tmp_path)

    def under_torchrun(name: str) -> list[Any]:
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return ended(start([*run, *program(name)[1:]], TMPDIR=str(tmp_path)))

    def under_slurm(name: str) -> list[Any]:
        job = str(os.getpid() + 7 * sum(map(ord, name)))
        both = {
            "SLURM_NTASKS": "2",
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_JOB_ID": job,
            "SLURM_NNODES": "1",
        }
        return ended(*(start(program(name), SLURM_PROCID=str(rank), **both) for rank in range(2)))

    engines = {"threads": in_threads, "launch": launched, "torchrun": under_torchrun, "slurm": under_slurm}
    return engines[request.param]


def test_ranks_exchange_and_return_in_rank_order(engine: Engine) -> None:
    assert engine("exchange") == [
        [0, [2.0, 1.0], [0, 10], [0, 1], "from rank 0", 1],
        [1, [2.0, 1.0], [1, 11], [0, 1], "from rank 0", 1],
    ]


def test_an_error_of_a_rank_is_raised_with_its_rank_and_message(engine: Engine) -> None:
    with pytest.raises(RuntimeError) as raised:
        engine("refuse")
    assert "graph.npz: labels: found none, expected one a node; give --labels" in str(raised.value)
    assert "rank 1" in str(raised.value)


def test_an_error_under_launch_is_reported_once_with_its_type(program: Callable[..., list[str]]) -> None:
    with pytest.raises(RanksFailed) as raised:
        launch(program("fault"), ranks=2, threads=1, watch=lambda: False)
    assert str(raised.value) == f"rank 1 on {socket.gethostname()}: KeyError: 'weights'"
    (told,) = raised.value.reported
    assert (told.rank, told.kind, told.error) == (1, "error", "KeyError")
    assert "in fault" in raised.value.__notes__[0], "the rank's traceback"
    assert {failure.kind for failure in raised.value.failures if failure.rank == 0} <= {"lost_peer"}
