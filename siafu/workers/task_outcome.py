"""The outcomes of tasks: committed or failed, and how many of each."""

from dataclasses import dataclass

from siafu.workers.task import Result, Task


@dataclass(frozen=True, eq=False)
class CompletedTask:
    """A task whose result was committed.

    Attributes:
        task: its inputs.
        result: its outputs.
        worker: the worker that computed them.
        began_s, ended_s: when it was taken and committed, by ``time.monotonic``.
    """

    task: Task
    result: Result
    worker: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, eq=False)
class FailedTask:
    """A task that failed on workers and on this process too: the run must end.

    Attributes:
        task: its inputs.
        reasons: each worker that gave it up, with the reason, in order.
    """

    task: Task
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        key, given_up = self.task.key, "; then ".join(self.reasons)
        return (
            f"a task of epoch {key.epoch} (stage {key.stage}, {key.direction.name.lower()}, "
            f"interval {key.interval}) was given up by {given_up}"
        )


@dataclass(frozen=True)
class TaskCounts:
    """The numbers of tasks so far.

    Attributes:
        put: tasks that were put into the queue.
        committed: tasks whose result was committed.
        relaunched: how often a task was started again because a worker failed or was lost.
        hedged: second copies of tasks that took long.
        dropped: results that came after another result of the same task.
    """

    put: int = 0
    committed: int = 0
    relaunched: int = 0
    hedged: int = 0
    dropped: int = 0
