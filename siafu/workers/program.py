"""Programs: the tensor stages of a model as data, which workers run in torch or NumPy. It knows no torch.

``siafu.workers.trace`` records programs of a model, so a worker needs no list of layers: a new layer is a new program.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

ROW, WEIGHT, VALUE = "row ", "weight ", "value "  # prefixes of the names of values


class _Form(NamedTuple):
    """The inputs and options of an operation.

    Attributes:
        least, most: how many inputs.
        options: the names and types of its options.
    """

    least: int
    most: int
    options: Mapping[str, type]


_FINISH = {"activation": str, "drop": int, "rate": float}  # drop: the place of a dropout in the model, or -1
_MANY = 1 << 16
# linear: (add or None, bias or None, x, W, x, W, ...); finish: (z, bias or None); layer_norm: (x, gain, bias).
OPERATIONS: Mapping[str, _Form] = {
    "linear": _Form(4, _MANY, _FINISH),
    "finish": _Form(2, 2, _FINISH),
    "drop": _Form(1, 1, {"drop": int, "rate": float}),
    "add": _Form(2, 2, {}),
    "mix": _Form(2, 2, {"share": float}),
    "scale_by_one_plus": _Form(2, 2, {}),
    "concat": _Form(1, _MANY, {}),
    "maximum": _Form(1, _MANY, {}),
    "mean_of_heads": _Form(1, 1, {"heads": int}),
    "head_scores": _Form(2, 2, {}),
    "layer_norm": _Form(3, 3, {"eps": float}),
}
_ACTIVATIONS = ("none", "relu", "elu")


class Instruction(NamedTuple):
    """One operation.

    Attributes:
        operation: its name in ``OPERATIONS``.
        inputs: the names of its inputs: ``row m``, ``weight layers.0.weight``, ``value 3``; None where it has none.
        options: its options.
    """

    operation: str
    inputs: tuple[str | None, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Program:
    """One stage. Instruction i computes ``value i``.

    Attributes:
        reads: the rows that it reads: ``m``, the aggregate before it; ``x``, the inputs; ``h0``, ``h1``, …, rows of
            earlier stages.
        weights: the weights that it reads, by their names in the model, in the model's order.
        instructions: in the order in which they are run.
        h: the name of the rows that later stages read.
        z: the name of the rows that the next aggregate reads; after the last stage the outputs, as ``h``.
        widest: the width of the widest rows there are.
    """

    reads: tuple[str, ...]
    weights: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    h: str
    z: str
    widest: int

    @property
    def uses(self) -> dict[str, int]:
        """Count the uses of each value, as a result of the stage too."""
        found = {self.h: 1, self.z: 1}
        for instruction in self.instructions:
            for name in instruction.inputs:
                if name is not None:
                    found[name] = found.get(name, 0) + 1
        return found

    def to_json(self) -> dict[str, Any]:
        """Give it as plain JSON values."""
        return {**vars(self), "instructions": [list(each) for each in self.instructions]}

    @classmethod
    def from_json(cls, value: object) -> "Program":
        """Read what :meth:`to_json` gave, which may come from anybody."""
        if not isinstance(value, dict) or set(value) != set(cls.__dataclass_fields__):
            raise ValueError("a program of other fields; is it another version of siafu?")
        program = cls(
            tuple(map(str, _listed(value["reads"]))),
            tuple(map(str, _listed(value["weights"]))),
            tuple(_instruction(each) for each in _listed(value["instructions"])),
            str(value["h"]),
            str(value["z"]),
            int(value["widest"]),
        )
        program._check()
        return program

    def _check(self) -> None:
        """Refuse names of nothing, so that an interpreter only looks up what is there."""
        known = {f"{ROW}{name}" for name in self.reads} | {f"{WEIGHT}{name}" for name in self.weights}
        for number, instruction in enumerate(self.instructions):
            _check_names(instruction.inputs, known)
            known.add(f"{VALUE}{number}")
        _check_names((self.h, self.z), known)
        if not 1 <= self.widest < 1 << 31:
            raise ValueError(f"a program of rows {self.widest} wide")


def _instruction(value: object) -> Instruction:
    given = _listed(value)
    if len(given) != 3 or not isinstance(given[2], dict):
        raise ValueError("an instruction that is not (operation, inputs, options)")
    operation, inputs, options = str(given[0]), tuple(_listed(given[1])), given[2]
    form = OPERATIONS.get(operation)
    if form is None:
        raise ValueError(
            f"operation {operation[:40]!r} is not known; deploy this version of siafu to the worker, or use another"
        )
    fits = form.least <= len(inputs) <= form.most and options.keys() == form.options.keys()
    fits = fits and all(name is None or isinstance(name, str) for name in inputs)
    fits = fits and not any(name is None for name in _needed(operation, inputs))
    fits = fits and (operation != "linear" or len(inputs) % 2 == 0)
    if not fits or options.get("activation", "none") not in _ACTIVATIONS:
        raise ValueError(f"operation {operation} with inputs or options that it does not take")
    return Instruction(operation, inputs, {name: form.options[name](options[name]) for name in options})


def _needed(operation: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs that must be there."""
    if operation == "linear":
        return inputs[2:]
    return inputs[:1] if operation == "finish" else inputs


def _check_names(names: tuple[str | None, ...], known: set[str]) -> None:
    for name in names:
        if name is not None and name not in known:
            raise ValueError(f"a program that reads {name[:60]!r}, which nothing computes")


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"a {type(value).__name__} where a program has a list")
    return list(value)
