"""The instructions of programs in NumPy, with a tape for gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from siafu.workers.numpy_backend.dropout import Dropouts
from siafu.workers.numpy_backend.tape import (
    Value,
    add,
    concat,
    head_scores,
    layer_norm,
    matmul,
    maximum,
    mean_of_heads,
    mix,
    scale_by_one_plus,
)
from siafu.workers.program import ROW, VALUE, WEIGHT, Instruction, Program
from siafu.workers.task import Arrays


class Weights:
    """The model's weights as values, each made when it is first read."""

    def __init__(self, arrays: Arrays, dtype: np.dtype, *, wants: bool) -> None:
        self._arrays, self._dtype, self._wants = arrays, dtype, wants
        self._read: dict[str, Value] = {}

    def __call__(self, name: str) -> Value:
        """A weight, by its name in the model."""
        if name not in self._read:
            self._read[name] = Value(np.asarray(self._arrays[name], self._dtype), wants=self._wants)
        return self._read[name]

    def grads(self) -> dict[str, np.ndarray]:
        """The gradients of those that were read, in the order they were given in."""
        read = ((name, self._read[name].grad) for name in self._arrays if name in self._read)
        return {name: grad for name, grad in read if grad is not None}


def run_program(
    program: Program, rows: Mapping[str, Value], weights: Weights, dropouts: Dropouts
) -> tuple[Value, Value]:
    """Run a stage: its rows h and z."""
    values: dict[str | None, Any] = {f"{ROW}{name}": rows[name] for name in program.reads}
    values |= {f"{WEIGHT}{name}": weights(name) for name in program.weights} | {None: None}
    uses = program.uses
    for number, instruction in enumerate(program.instructions):
        for name in instruction.inputs:
            if name is not None and uses[name] > 1:
                values[name].free = False  # somebody else reads it too
        made = _run(instruction, [values[name] for name in instruction.inputs], dropouts)
        values[f"{VALUE}{number}"] = made
    return values[program.h], values[program.z]


def _run(instruction: Instruction, inputs: list[Any], dropouts: Dropouts) -> Value:
    operation, _, options = instruction
    match operation:
        case "linear":
            before, bias, *rest = inputs
            for x, weight in zip(rest[::2], rest[1::2], strict=True):
                z = matmul(x, weight)
                before = z if before is None else add(z, before)
            return _finish(before, bias, options, dropouts)
        case "finish":
            return _finish(inputs[0], inputs[1], options, dropouts)
        case "drop":
            return dropouts(options["drop"], options["rate"], inputs[0])
        case "add":
            return add(*inputs)
        case "mix":
            return mix(inputs[0], inputs[1], options["share"])
        case "scale_by_one_plus":
            return scale_by_one_plus(*inputs)
        case "concat":
            return concat(inputs)
        case "maximum":
            return maximum(inputs)
        case "mean_of_heads":
            return mean_of_heads(inputs[0], options["heads"])
        case "head_scores":
            return head_scores(*inputs)
        case "layer_norm":
            return layer_norm(*inputs, eps=options["eps"])
    raise AssertionError(operation)


def _finish(z: Value, bias: Value | None, options: Mapping[str, Any], dropouts: Dropouts) -> Value:
    z = z if bias is None else add(z, bias)
    return dropouts(options["drop"], options["rate"], z, options["activation"])
