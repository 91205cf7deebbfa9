"""Supervision of ranks that end or are suspended."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from siafu.launch import rank_supervisor as module
from siafu.launch.rank_supervisor import RankSupervisor


@pytest.fixture
def ranks() -> Iterator[dict[int, int]]:
    """Two processes, each the leader of its group; process ids by rank."""
    started = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    yield {rank: process.pid for rank, process in enumerate(started)}
    for process in started:
        process.kill()
        process.wait()


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RankSupervisor, list[str]]:
    """A supervisor, and a log of its waits and signals."""
    done: list[str] = []
    supervisor = RankSupervisor(tmp_path, deadline_s=0.01)
    wait, send = supervisor._wait, supervisor._signal
    monkeypatch.setattr(module, "_SUSPENDED_SHARE", 0.0)
    monkeypatch.setattr(supervisor, "_wait", lambda pids, seconds: (done.append("wait"), wait(pids, 0.0)))
    monkeypatch.setattr(
        supervisor,
        "_signal",
        lambda pids, number: (done.append(f"{number.name} {sorted(pids)}"), send(pids, number)),
    )
    return supervisor, done


def ended(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_after_a_suspended_rank_is_killed_the_others_are_killed_without_a_wait(
    ranks: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, done = watched(tmp_path, monkeypatch)
    os.kill(ranks[1], signal.SIGSTOP)
    os.waitid(os.P_PID, ranks[1], os.WSTOPPED | os.WNOWAIT)
    while not done:
        supervisor.poll(ranks)
    ended(ranks[1])
    supervisor.poll(ranks)
    assert done[:2] == ["SIGKILL [1]", "SIGKILL [0, 1]"]
    assert [failure.rank for failure in supervisor.failures()] == [1]


def test_the_peers_of_a_killed_rank_have_a_moment_to_report(
    ranks: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, done = watched(tmp_path, monkeypatch)
    os.kill(ranks[1], signal.SIGKILL)
    ended(ranks[1])
    supervisor.poll(ranks)
    assert done[:2] == ["wait", "SIGKILL [0, 1]"]
