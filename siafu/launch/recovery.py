"""Restart ranks after a loss, as long as the run makes progress. The decision is a policy of its own."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from siafu.launch.failures import RankFailure, RanksFailed

if TYPE_CHECKING:
    from siafu.launch.elastic import RankProcesses

_MAX_ATTEMPTS_WITHOUT_PROGRESS = 3


class RestartDecision(Enum):
    """The decision after a failed attempt."""

    RETRY = "retry"
    RAISE = "raise"


def decide(
    failures: Sequence[RankFailure], *, progressed: bool, attempts_without_progress: int
) -> RestartDecision:
    """Restart if ranks were lost for external reasons, but not if an own error or lack of memory would recur.

    ``attempts_without_progress`` counts the attempts in a row, this one included, without a new checkpoint.
    """
    if any(failure.kind in ("error", "memory") for failure in failures):
        return RestartDecision.RAISE
    if progressed or attempts_without_progress < _MAX_ATTEMPTS_WITHOUT_PROGRESS:
        return RestartDecision.RETRY
    return RestartDecision.RAISE


class CheckpointPosition(NamedTuple):
    """The progress that a run's last checkpoint holds: completed epochs, and minibatches of the next one."""

    epoch: int = 0
    minibatch: int = 0

    def __str__(self) -> str:
        return f"epoch {self.epoch}" + (f", minibatch {self.minibatch}" if self.minibatch else "")


def run_with_restarts(
    command: Sequence[str],
    *,
    ranks: int,
    threads: int,
    progress: Callable[[], CheckpointPosition],
    watch: Callable[[], bool],
    say: Callable[[str], None],
    deadline_s: float = 30.0,
    first: "RankProcesses | None" = None,
) -> None:
    """Launch ``command`` until it succeeds; raises RanksFailed if another restart would not help.

    ``first`` are processes of the first attempt, which were started before and do the same as ``command``.
    ``progress`` returns the position of the last checkpoint. ``say`` is called with a message at each restart. The
    other parameters are those of ``launch``.
    """
    from siafu.launch.elastic import launch

    attempts_without_progress = 0
    while True:
        before = progress()
        try:
            if first is None:
                return launch(command, ranks=ranks, threads=threads, watch=watch, deadline_s=deadline_s)
            return first.wait(watch)
        except RanksFailed as error:
            after = progress()
            attempts_without_progress = 0 if after > before else attempts_without_progress + 1
            if (
                decide(
                    error.failures,
                    progressed=after > before,
                    attempts_without_progress=attempts_without_progress,
                )
                is RestartDecision.RAISE
            ):
                if attempts_without_progress >= _MAX_ATTEMPTS_WITHOUT_PROGRESS:
                    error.add_note(
                        f"{attempts_without_progress} attempts in a row got no further than {after}"
                    )
                raise
            first = None
            say(f"{error.summary}; starting again from the last checkpoint, {after}")
