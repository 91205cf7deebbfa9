"""A task computed with NumPy: what a serverless function runs.

It goes over the rows of its interval some at a time, so that what it makes of them is still in the cache when it is
read. How many that are depends on the model alone: the same task gives the same bits wherever it runs.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from siafu.workers.numpy_backend.backend import Weights, run_program
from siafu.workers.numpy_backend.dropout import Dropouts
from siafu.workers.numpy_backend.loss import loss_and_grad
from siafu.workers.numpy_backend.owned import owned
from siafu.workers.numpy_backend.tape import Value, go_back
from siafu.workers.setup import Setup
from siafu.workers.stages import returns_h, rows_with_grad
from siafu.workers.task import Arrays, Direction, Result, Task

_Found = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]  # arrays of rows, gradients of weights
_TOGETHER = 1 << 20  # numbers of the widest rows there are that are computed at a time


def compute(setup: Setup, task: Task, weights: Arrays) -> Result:
    """Run a task with its version of the weights, of which those that its stage reads suffice."""
    began_s = time.perf_counter()
    go = _forward if task.key.direction == Direction.FORWARD else _back
    arrays, grads = _joined(go(setup, some, weights) for some in _cut(setup, task))
    return Result(owned(arrays, task.arrays), grads, time.perf_counter() - began_s)


def _cut(setup: Setup, task: Task) -> Iterator[Task]:
    """The task for some of its rows at a time."""
    arrays = task.arrays
    num_rows, step = len(arrays["row_id"]), max(1, _TOGETHER // setup.widest)
    for begin in range(0, max(1, num_rows), step):
        end = begin + step
        some = {name: array[begin:end] for name, array in arrays.items() if name not in ("rows", "y")}
        if "rows" in arrays:
            labelled = slice(*np.searchsorted(arrays["rows"], (begin, end)))
            some |= {"rows": arrays["rows"][labelled] - begin, "y": arrays["y"][labelled]}
        yield replace(task, arrays=some)


def _joined(pieces: Iterator[_Found]) -> _Found:
    """The rows of all pieces one below the other, losses and gradients added up in their order."""
    arrays, grads = next(pieces)
    found, grads = {name: [array] for name, array in arrays.items()}, owned(grads, {})
    for more, of_weights in pieces:
        for name, array in more.items():
            found[name].append(array)
        for name, grad in of_weights.items():
            grads[name] += grad
    loss = {"loss": np.sum(found.pop("loss"), 0)} if "loss" in found else {}
    return {name: np.concatenate(some) for name, some in found.items()} | loss, grads


def _forward(setup: Setup, task: Task, weights: Arrays) -> _Found:
    dtype = np.dtype(setup.dtype)
    rows, values = _rows(setup, task, []), Weights(weights, dtype, wants=False)
    h, z = run_program(setup.program(task.key.stage), rows, values, Dropouts(setup, task))
    return ({"z": z.array, "h": h.array} if returns_h(setup, task.key.stage) else {"z": z.array}), {}


def _back(setup: Setup, task: Task, weights: Arrays) -> _Found:
    """The forward pass again, and from its end to what it read."""
    names, dtype = rows_with_grad(setup, task.key.stage), np.dtype(setup.dtype)
    rows, values = _rows(setup, task, names), Weights(weights, dtype, wants=True)
    h, z = run_program(setup.program(task.key.stage), rows, values, Dropouts(setup, task))
    found: dict[str, np.ndarray] = {}
    if task.key.direction == Direction.LEARN:
        loss, grad_z = _learn(setup, task, z.array)
        found["loss"] = np.array([loss])
        ends = [(z, grad_z)]
    else:
        given = [("grad_z", z), ("grad_h", h)]
        ends = [(end, np.asarray(task.arrays[name], dtype)) for name, end in given if name in task.arrays]
    go_back(ends)
    for name in names:
        grad = rows[name].grad
        assert grad is not None
        found[f"grad_{name}"] = grad
    return found, values.grads()


def _learn(setup: Setup, task: Task, out: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss and its gradient for all rows of an interval, of which some have a label."""
    rows = task.arrays["rows"]
    loss, grad = loss_and_grad(setup, out[rows], task.arrays["y"])
    grad_out = np.zeros_like(out)
    grad_out[rows] = grad
    return loss, grad_out


def _rows(setup: Setup, task: Task, wanted: list[str]) -> dict[str, Value]:
    names = setup.program(task.key.stage).reads
    dtype = np.dtype(setup.dtype)
    return {name: Value(np.asarray(task.arrays[name], dtype), wants=name in wanted) for name in names}
