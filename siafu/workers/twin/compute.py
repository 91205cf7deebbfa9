"""A task computed with NumPy: what a serverless function runs."""

import time

import numpy as np

from siafu.workers.setup import Setup
from siafu.workers.stages import returns_h, rows_with_grad
from siafu.workers.task import Arrays, Direction, Result, Task
from siafu.workers.twin.layers import Weights
from siafu.workers.twin.loss import loss_and_grad
from siafu.workers.twin.owned import owned
from siafu.workers.twin.stage import stage
from siafu.workers.twin.tape import Value, go_back


def compute(setup: Setup, task: Task, weights: Arrays) -> Result:
    """Run a task with its version of the weights, of which those that its stage reads suffice."""
    began_s = time.perf_counter()
    if setup.model["norm"] == "batch":
        raise ValueError("model.norm is batch, which is not row by row; set it to layer or none")
    grads: dict[str, np.ndarray] = {}
    if task.key.direction == Direction.FORWARD:
        arrays = _forward(setup, task, weights)
    else:
        arrays, grads = _back(setup, task, weights)
    return Result(owned(arrays, task.arrays), owned(grads, {}), time.perf_counter() - began_s)


def _forward(setup: Setup, task: Task, weights: Arrays) -> dict[str, np.ndarray]:
    dtype = np.dtype(setup.dtype)
    h, z = stage(setup, task, _rows(setup, task, []), Weights(weights, dtype, wants=False))
    return {"z": z.array, "h": h.array} if returns_h(setup, task.key.stage) else {"z": z.array}


def _back(setup: Setup, task: Task, weights: Arrays) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The forward pass again, and from its end to what it read."""
    names, dtype = rows_with_grad(setup, task.key.stage), np.dtype(setup.dtype)
    rows, values = _rows(setup, task, names), Weights(weights, dtype, wants=True)
    h, z = stage(setup, task, rows, values)
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
    names = [name for name in task.arrays if name in ("m", "x") or name.removeprefix("h").isdigit()]
    dtype = np.dtype(setup.dtype)
    return {name: Value(np.asarray(task.arrays[name], dtype), wants=name in wanted) for name in names}
