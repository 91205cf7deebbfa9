"""Launch ranks again after a loss, for as long as that leads anywhere. The decision is a small policy by itself."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from siafu.launch.failures import RankFailure, RanksFailed

_MOST_FRUITLESS = 3


class Decision(Enum):
    """What to do after an attempt that failed."""

    RETRY = "retry"
    RAISE = "raise"


def decide(failures: Sequence[RankFailure], *, progressed: bool, fruitless: int) -> Decision:
    """Start again where ranks were lost from outside; not where a rank's own error or its memory would come again.

    ``fruitless`` counts the attempts in a row, this one included, that got no further.
    """
    if any(failure.kind in ("error", "memory") for failure in failures):
        return Decision.RAISE
    if progressed or fruitless < _MOST_FRUITLESS:
        return Decision.RETRY
    return Decision.RAISE


class CheckpointPosition(NamedTuple):
    """How far a run's checkpoint is: epochs done, and minibatches of the next one."""

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
) -> None:
    """Launch ``command`` until it ends well; raises RanksFailed where starting again would not help.

    ``progress`` tells how much is safe on disk, ``say`` is told of restarts; the rest is as in ``launch``.
    """
    from siafu.launch.elastic import launch

    fruitless = 0
    while True:
        before = progress()
        try:
            return launch(command, ranks=ranks, threads=threads, watch=watch, deadline_s=deadline_s)
        except RanksFailed as error:
            after = progress()
            fruitless = 0 if after > before else fruitless + 1
            if decide(error.failures, progressed=after > before, fruitless=fruitless) is Decision.RAISE:
                if fruitless >= _MOST_FRUITLESS:
                    error.add_note(f"{fruitless} attempts in a row got no further than {after}")
                raise
            say(f"{error.brief}; starting again from the last checkpoint, {after}")
