"""What the result of a task must look like, so that no worker is believed. It knows no torch."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from siafu.workers.task import Arrays, Direction, Result, Task

Do = Callable[[Task, Arrays], Result]
_Kind = tuple[int, Direction]  # stage and direction


class _Form(NamedTuple):
    """The shape and dtype of an array; ``rows`` says that its first dimension is the number of the task's rows."""

    rows: bool
    shape: tuple[int, ...]
    dtype: np.dtype


class Expected:
    """The form of results, by the kind of their task: names, shapes and dtypes.

    It is found once for each stage and direction, by ``do`` on a task without rows. Any thread may ask.
    """

    def __init__(self, do: Do) -> None:
        self._do, self._lock = do, threading.Lock()
        self._forms: dict[_Kind, tuple[dict[str, _Form], dict[str, _Form]]] = {}

    def fault(self, task: Task, weights: Arrays, result: Result) -> str | None:
        """Say what is wrong with a result, or None. ``weights`` are those that its stage reads."""
        arrays, grads = self._of(task, weights)
        num_rows = len(task.arrays["m"] if "m" in task.arrays else task.arrays["x"])
        return _compared("array", arrays, result.arrays, num_rows) or _compared(
            "gradient", grads, result.grads, num_rows
        )

    def _of(self, task: Task, weights: Arrays) -> tuple[dict[str, _Form], dict[str, _Form]]:
        kind = (task.key.stage, task.key.direction)
        found = self._forms.get(kind)
        if found is None:
            with self._lock:
                empty = {name: array[:0] for name, array in task.arrays.items()}
                result = self._do(replace(task, arrays=empty), weights)
                found = self._forms[kind] = _forms(result.arrays), _forms(result.grads)
        return found


def is_finite(result: Result) -> bool:
    """Whether a result holds no NaN and no infinity."""
    return _all_finite(result.arrays) and _all_finite(result.grads)


def is_doubtful(task: Task, weights: Arrays) -> bool:
    """Whether a result that is not finite is doubtful: its task read finite numbers alone."""
    rows = {
        name: array for name, array in task.arrays.items() if name != "y"
    }  # a label may be missing, as NaN
    return _all_finite(rows) and _all_finite(weights)


def _all_finite(arrays: Arrays) -> bool:
    for array in arrays.values():
        if array.dtype.kind != "f":
            continue
        with np.errstate(all="ignore"):
            total = array.sum()  # a quarter of the time that looking at each takes; it may overflow
        if not np.isfinite(total) and not np.isfinite(array).all():
            return False
    return True


def _forms(arrays: Arrays) -> dict[str, _Form]:
    found = {}
    for name, array in arrays.items():
        rows = array.ndim > 0 and array.shape[0] == 0
        found[name] = _Form(rows, array.shape[1:] if rows else array.shape, array.dtype)
    return found


def _compared(what: str, forms: dict[str, _Form], found: Arrays, num_rows: int) -> str | None:
    if forms.keys() != found.keys():
        return f"{what}s {sorted(found)!s:.200}, expected {sorted(forms)!s:.200}"
    for name, form in forms.items():
        shape = (num_rows, *form.shape) if form.rows else form.shape
        array = found[name]
        if array.shape != shape or array.dtype != form.dtype:
            return f"{what} {name} of {array.dtype} {array.shape}, expected {form.dtype} {shape}"
    return None
