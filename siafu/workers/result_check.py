"""Checks of task results, so that a wrong result of a worker never reaches the model. It knows no torch."""

import threading
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from siafu.workers.task import Arrays, ComputeFn, Direction, Result, Task

_TaskKind = tuple[int, Direction]  # stage and direction


class _ArraySpec(NamedTuple):
    """The shape and dtype of an array. With ``per_row``, its first dimension is the number of the task's rows."""

    per_row: bool
    shape: tuple[int, ...]
    dtype: np.dtype


class ResultChecker:
    """The names, shapes and dtypes that results of each stage and direction must have.

    They are found once for each kind of task, by running ``compute`` on a task without rows. Any thread may ask.
    """

    def __init__(self, compute: ComputeFn) -> None:
        self._compute, self._lock = compute, threading.Lock()
        self._specs: dict[_TaskKind, tuple[dict[str, _ArraySpec], dict[str, _ArraySpec]]] = {}

    def find_fault(self, task: Task, weights: Arrays, result: Result) -> str | None:
        """Describe the first fault of a result; None if it has none. ``weights`` are those that its stage reads."""
        arrays, grads = self._specs_of(task, weights)
        num_rows = len(task.arrays["m"] if "m" in task.arrays else task.arrays["x"])
        return _compare("array", arrays, result.arrays, num_rows) or _compare(
            "gradient", grads, result.grads, num_rows
        )

    def _specs_of(self, task: Task, weights: Arrays) -> tuple[dict[str, _ArraySpec], dict[str, _ArraySpec]]:
        kind = (task.key.stage, task.key.direction)
        found = self._specs.get(kind)
        if found is None:
            with self._lock:
                empty = {name: array[:0] for name, array in task.arrays.items()}
                result = self._compute(replace(task, arrays=empty), weights)
                found = self._specs[kind] = _specs(result.arrays), _specs(result.grads)
        return found


def is_finite(result: Result) -> bool:
    """Tell whether a result holds no NaN and no infinity."""
    return _all_finite(result.arrays) and _all_finite(result.grads)


def inputs_are_finite(task: Task, weights: Arrays) -> bool:
    """Tell whether a task reads finite numbers alone; then a result that is not finite is suspect."""
    rows = {name: array for name, array in task.arrays.items() if name != "y"}  # a missing label may be NaN
    return _all_finite(rows) and _all_finite(weights)


def _all_finite(arrays: Arrays) -> bool:
    for array in arrays.values():
        if array.dtype.kind != "f":
            continue
        with np.errstate(all="ignore"):
            total = array.sum()  # takes a quarter of the time of isfinite on every element, but may overflow
        if not np.isfinite(total) and not np.isfinite(array).all():
            return False
    return True


def _specs(arrays: Arrays) -> dict[str, _ArraySpec]:
    found = {}
    for name, array in arrays.items():
        per_row = array.ndim > 0 and array.shape[0] == 0
        found[name] = _ArraySpec(per_row, array.shape[1:] if per_row else array.shape, array.dtype)
    return found


def _compare(what: str, specs: dict[str, _ArraySpec], found: Arrays, num_rows: int) -> str | None:
    if specs.keys() != found.keys():
        return f"{what}s {sorted(found)!s:.200}, expected {sorted(specs)!s:.200}"
    for name, spec in specs.items():
        shape = (num_rows, *spec.shape) if spec.per_row else spec.shape
        array = found[name]
        if array.shape != shape or array.dtype != spec.dtype:
            return f"{what} {name} of {array.dtype} {array.shape}, expected {spec.dtype} {shape}"
    return None
