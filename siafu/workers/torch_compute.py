"""A task computed with torch, for workers in a process that has it."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from siafu.nn.loss import Kind, sum_of_losses
from siafu.workers.numpy_backend.owned import owned
from siafu.workers.setup import Setup
from siafu.workers.stages import returns_h, rows_with_grad, weights_of
from siafu.workers.task import Arrays, Direction, Result, Task
from siafu.workers.torch_backend import Dropouts, run_program

_KEPT_BYTES = 1 << 28  # of forward passes, about


class _ForwardPass(NamedTuple):
    """A forward pass: the version of the weights it read, the rows it read, and what it made of them."""

    version: int
    rows: dict[str, Tensor]
    h: Tensor
    z: Tensor

    @property
    def num_bytes(self) -> int:
        """The memory that keeping it takes, about."""
        return sum(each.nbytes for each in (*self.rows.values(), self.h, self.z))


class _Ending(torch.autograd.Function):
    """A number from which backward passes start with given gradients of several tensors.

    Torch imports its compiler's symbols, half a second of every process, where it is handed such gradients itself.
    """

    @staticmethod
    def forward(ctx: Any, grads: Sequence[Tensor], *values: Tensor) -> Tensor:
        """Keep the gradients (one per value); returns 0."""
        ctx.grads = grads
        return values[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the values."""
        return None, *ctx.grads


class TorchCompute:
    """Computes tasks of one setup, one at a time: each worker has its own, and no two threads share one.

    Some forward passes are kept for the way back, which makes the others again. They read the memory that they were
    given, so one is used only for a task that names the same memory, and while no other weights were loaded.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup, self._dtype = setup, np.dtype(setup.dtype)
        self._weights: dict[str, Tensor] = {}
        self._loaded: dict[str, int] = {}  # the version of each weight
        self._dropouts = Dropouts(setup.seed)
        self._passes: dict[tuple[int, int, int], _ForwardPass] = {}  # by epoch, stage and interval
        self._kept_bytes = 0

    def __call__(self, task: Task, weights: Arrays) -> Result:
        """Run a task with its version of the weights, of which those that its stage reads suffice."""
        began_s = time.perf_counter()
        self._prepare(task, weights)
        grads: dict[str, Tensor] = {}
        if task.key.direction == Direction.FORWARD:
            found = self._forward(task)
        else:
            found, grads = self._back(task)
        arrays = owned({name: value.detach().numpy() for name, value in found.items()}, task.arrays)
        of_weights = owned({name: value.numpy() for name, value in grads.items()}, {})
        return Result(arrays, of_weights, time.perf_counter() - began_s)

    def _prepare(self, task: Task, weights: Arrays) -> None:
        """Have the weights, the dropout and its keys that a task asks for."""
        for name in weights_of(self._setup, task.key.stage, list(weights)):
            if self._loaded.get(name) != task.version:
                self._forget(other_than=task.version)
                self._weights[name] = _tensor(weights[name], self._dtype).detach().requires_grad_()
                self._loaded[name] = task.version
        self._dropouts.epoch, self._dropouts.training = task.key.epoch, task.training

    def _forward(self, task: Task) -> dict[str, Tensor]:
        keeps = task.training and self._kept_bytes < _KEPT_BYTES
        with torch.set_grad_enabled(keeps):
            passed = self._pass(task)
        if keeps:
            self._passes[_place(task)] = passed
            self._kept_bytes += passed.num_bytes
        h, z = passed.h, passed.z
        return {"z": z, "h": h} if returns_h(self._setup, task.key.stage) else {"z": z}

    def _pass(self, task: Task) -> _ForwardPass:
        rows = self._rows(task)
        for name in rows_with_grad(self._setup, task.key.stage):
            rows[name].requires_grad_()
        return _ForwardPass(task.version, rows, *self._stage(task, rows))

    def _kept(self, task: Task) -> _ForwardPass | None:
        """The pass whose way back a task is, if it was kept and has read what the task would."""
        passed = self._passes.pop(_place(task), None)
        if passed is None:
            return None
        self._kept_bytes -= passed.num_bytes
        now = self._rows(task)
        same = all(rows.data_ptr() == now[name].data_ptr() for name, rows in passed.rows.items())
        return passed if same and passed.version == task.version else None

    def _forget(self, *, other_than: int) -> None:
        """Drop passes that have read other weights than are loaded from now on."""
        for place, passed in list(self._passes.items()):
            if passed.version != other_than:
                self._kept_bytes -= self._passes.pop(place).num_bytes

    def _back(self, task: Task) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """From the end of the forward pass, which is made again unless it was kept, to what it read."""
        _, rows, h, z = self._kept(task) or self._pass(task)
        inputs = rows_with_grad(self._setup, task.key.stage)
        if not z.requires_grad:
            return {}, {}
        loss = None
        if task.key.direction == Direction.LEARN:
            loss = self._loss(z, task.arrays)
            ends = [_End(loss, torch.ones_like(loss))]
        else:
            ends = _ends(h, z, _tensors(task.arrays, ("grad_z", "grad_h"), self._dtype))
        names = self._setup.program(task.key.stage).weights
        reads = [rows[name] for name in inputs] + [self._weights[name] for name in names]
        ending, grads = [end.value for end in ends], [end.grad for end in ends]
        of_reads = torch.autograd.grad(_Ending.apply(grads, *ending), reads, allow_unused=True)
        found = {f"grad_{name}": grad for name, grad in zip(inputs, of_reads, strict=False)}
        if loss is not None:
            found["loss"] = loss.detach().double().reshape(1)
        of_weights = zip(names, of_reads[len(inputs) :], strict=True)
        return found, {name: grad for name, grad in of_weights if grad is not None}

    def _stage(self, task: Task, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        program = self._setup.program(task.key.stage)
        return run_program(program, rows, self._weights, self._dropouts, row_id=rows["row_id"])

    def _loss(self, out: Tensor, arrays: Arrays) -> Tensor:
        setup, y = self._setup, arrays["y"]
        weight = None if setup.class_weight is None else out.new_tensor(setup.class_weight)
        y_here = _tensor(y, np.dtype(np.int64) if setup.task == "class" else self._dtype)
        out = out.index_select(0, _tensor(arrays["rows"]))
        return sum_of_losses(cast(Kind, setup.task), out, y_here, weight, setup.gamma) / setup.scale

    def _rows(self, task: Task) -> dict[str, Tensor]:
        rows = _tensors(task.arrays, self._setup.program(task.key.stage).reads, self._dtype)
        return {**rows, "row_id": _tensor(task.arrays["row_id"])}


def _place(task: Task) -> tuple[int, int, int]:
    return task.key.epoch, task.key.stage, task.key.interval


class _End(NamedTuple):
    """Something that a stage gave, and its gradient."""

    value: Tensor
    grad: Tensor


def _ends(h: Tensor, z: Tensor, grads: Mapping[str, Tensor]) -> list[_End]:
    grad_z, grad_h = grads["grad_z"], grads.get("grad_h")
    if grad_h is None:
        return [_End(z, grad_z)]
    return [_End(h, grad_z + grad_h)] if z is h else [_End(z, grad_z), _End(h, grad_h)]


def _tensors(arrays: Arrays, names: Sequence[str], dtype: np.dtype) -> dict[str, Tensor]:
    return {name: _tensor(arrays[name], dtype) for name in names if name in arrays}


def _tensor(array: np.ndarray, dtype: np.dtype | None = None) -> Tensor:
    """The same memory as a tensor; a copy of what torch cannot share, since it knows no array that is read-only."""
    array = np.asarray(array, dtype)
    shares = array.flags.writeable and array.flags.aligned and array.flags.c_contiguous
    return torch.from_numpy(array if shares else array.copy())
