"""Ranks are restarted after a loss, unless a restart would not help."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from siafu.launch import elastic
from siafu.launch.failures import RankFailure, RanksFailed
from siafu.launch.recovery import CheckpointPosition, RestartDecision, decide, run_with_restarts

KILLED = RankFailure(1, "hostA", "killed", "killed (SIGKILL); look")
LOST = RankFailure(0, "hostA", "lost_peer", "rank 1 on hostA is gone; look")
ERROR = RankFailure(1, "hostA", "error", "no labels", "ValueError")
MEMORY = RankFailure(1, "hostA", "memory", "killed by the kernel for lack of memory")


@pytest.mark.parametrize(
    ("failures", "progressed", "attempts_without_progress", "decision"),
    [
        ([KILLED], True, 0, RestartDecision.RETRY),
        ([KILLED, LOST], True, 0, RestartDecision.RETRY),
        ([LOST], False, 1, RestartDecision.RETRY),
        ([KILLED], False, 2, RestartDecision.RETRY),
        ([KILLED], False, 3, RestartDecision.RAISE),
        ([LOST, ERROR], True, 0, RestartDecision.RAISE),
        ([MEMORY, LOST], True, 0, RestartDecision.RAISE),
    ],
)
def test_the_policy(
    failures: list[RankFailure], progressed: bool, attempts_without_progress: int, decision: RestartDecision
) -> None:
    assert (
        decide(failures, progressed=progressed, attempts_without_progress=attempts_without_progress)
        is decision
    )


def test_a_killed_rank_costs_a_restart_and_no_epoch(
    program: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHS", str(tmp_path))
    for asked in ("kill", "ends"):
        (tmp_path / asked).touch()
    said: list[str] = []
    done = tmp_path / "done"
    run_with_restarts(
        program("epochs"),
        ranks=2,
        threads=1,
        progress=lambda: CheckpointPosition(int(done.read_text()) if done.exists() else 0),
        watch=lambda: False,
        say=said.append,
    )
    assert done.read_text() == "6"
    (line,) = said
    assert line.endswith("was killed (SIGKILL); starting again from the last checkpoint, epoch 3")
    assert line.startswith("rank 1 on ")


def attempts(monkeypatch: pytest.MonkeyPatch, outcomes: list[tuple[int, RankFailure | None]]) -> list[str]:
    """Attempts that reach an epoch each, then fail or end well; what is said of restarts."""
    epoch, left, said = [0], list(outcomes), list[str]()

    def launch(command: list[str], **_: Any) -> None:
        epoch[0], failure = left.pop(0)
        if failure is not None:
            raise RanksFailed([failure])

    monkeypatch.setattr(elastic, "launch", launch)
    run_with_restarts(
        [],
        ranks=2,
        threads=1,
        progress=lambda: CheckpointPosition(epoch[0]),
        watch=lambda: False,
        say=said.append,
    )
    assert not left
    return said


def test_losses_are_no_end_while_epochs_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    said = attempts(monkeypatch, [(epoch, KILLED) for epoch in range(1, 8)] + [(9, None)])
    assert len(said) == 7
    assert said[1] == "rank 1 on hostA was killed (SIGKILL); starting again from the last checkpoint, epoch 2"


def test_three_attempts_in_a_row_without_progress_are_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RanksFailed, match="rank 1 on hostA is gone") as raised:
        attempts(monkeypatch, [(2, KILLED), (2, KILLED), (2, LOST), (2, LOST), (9, None)])
    assert raised.value.__notes__ == ["3 attempts in a row got no further than epoch 2"]


def test_progress_resets_the_count_of_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts_without_progress = [(1, KILLED), (1, KILLED), (1, KILLED)]
    assert (
        len(attempts(monkeypatch, [*attempts_without_progress, (2, KILLED), (2, LOST), (2, LOST), (3, None)]))
        == 6
    )


def test_an_error_of_a_rank_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RanksFailed, match="rank 1 on hostA: no labels"):
        attempts(monkeypatch, [(5, ERROR), (9, None)])


def test_ranks_that_fail_alike_are_reported_together() -> None:
    alike = [RankFailure(rank, "hostA", "error", "x: no labels") for rank in (2, 0, 1)]
    assert str(RanksFailed([KILLED, replace(KILLED, rank=0)])).startswith(
        "rank 0 on hostA and rank 1 on hostA were killed"
    )
    assert str(RanksFailed([*alike, LOST])) == "rank 0 on hostA and rank 1 on hostA and 1 more: x: no labels"
