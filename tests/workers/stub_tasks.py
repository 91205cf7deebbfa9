"""Tasks with known results, and workers that compute them. Worker processes import it too."""

import time
from collections.abc import Callable

import numpy as np

from siafu.workers.program import Instruction, Program
from siafu.workers.setup import Setup
from siafu.workers.task import Arrays, Direction, Key, Result, Task

LONG_S = 240.0  # no test should take this long, however busy the machine


def _product(rows: str, weight: str) -> Program:
    """The stage ``rows W``."""
    inputs = (None, None, f"row {rows}", f"weight {weight}")
    step = Instruction("linear", inputs, {"activation": "none", "drop": -1, "rate": 0.0})
    return Program((rows,), (weight,), (step,), "value 0", "value 0", 4)


SETUP = Setup(
    programs=(_product("x", "layers.0.weight"), _product("m", "layers.1.weight")),
    kept=0,
    task="classes",
    scale=1.0,
    class_weight=None,
    seed=0,
)


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds that another thread or process brings about."""
    until_s = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < until_s, "it did not come about"
        time.sleep(0.001)


def weights_at(version: int) -> Arrays:
    return {
        "layers.0.weight": np.full((4, 3), version + 1.0, np.float32),
        "layers.1.weight": np.full((3, 3), 7.0, np.float32),
    }


def task_at(interval: int, *, epoch: int = 0, stage: int = 0, version: int = 0, rows: int = 5) -> Task:
    """Return a stage-0 task whose ``x`` holds its interval's number."""
    x = np.full((rows, 4), interval, np.float32)
    return Task(Key(epoch, stage, Direction.FORWARD, interval), version, {"x": x})


def compute(task: Task, weights: Arrays) -> Result:
    """Compute ``x W`` and a gradient; an interval of -1 raises an error."""
    if task.key.interval < 0:
        raise ValueError("shapes (5,4) and (3,3) not aligned")
    assert sorted(weights) == ["layers.0.weight"]  # those of the stage alone
    weight = weights["layers.0.weight"]
    return Result({"z": task.arrays["x"] @ weight}, {"layers.0.weight": weight * task.key.interval}, 0.001)


def expected(task: Task) -> Result:
    return compute(task, {"layers.0.weight": weights_at(task.version)["layers.0.weight"]})


def computing(pause_s: float = 0.0) -> Callable[[Setup], Callable[[Task, Arrays], Result]]:
    """Return a compute factory of workers that pause in each task."""

    def slow(task: Task, weights: Arrays) -> Result:
        time.sleep(pause_s)
        return compute(task, weights)

    def factory(setup: Setup) -> Callable[[Task, Arrays], Result]:
        assert setup == SETUP
        return slow

    return factory
