"""``Setup``: the tensor work of one run, which a worker is sent once. It knows no torch."""

import json
from dataclasses import dataclass, fields
from math import inf
from typing import Any

from siafu.workers.program import Program


@dataclass(frozen=True)
class Setup:
    """The tensor work of one run.

    A model of K aggregates has stages 0 to K: stage k is the row-by-row work between aggregates k - 1 and k. The first
    ``kept`` aggregates are of static inputs and kept, so the stages before them are never run.

    Attributes:
        programs: the stages from ``kept`` to K.
        kept: how many leading aggregates are kept. Dropout of the inputs then acts after these aggregates.
        task: one class a node (``class``), many labels a node (``labels``), or numbers (``regression``).
        scale: the divisor of the sum of losses.
        class_weight: of each class or label, or None.
        seed: of the run, for dropout.
        dtype: of rows and weights, ``float32`` or ``float64``.
        gamma: of the focal loss; 0: cross entropy.
    """

    programs: tuple[Program, ...]
    kept: int
    task: str
    scale: float
    class_weight: tuple[float, ...] | None
    seed: int
    dtype: str = "float32"
    gamma: float = 0.0

    @property
    def num_aggregates(self) -> int:
        """K, which is also the number of the last stage."""
        return self.kept + len(self.programs) - 1

    @property
    def widest(self) -> int:
        """The width of the widest rows of any stage."""
        return max(program.widest for program in self.programs)

    def program(self, stage: int) -> Program:
        """The program of a stage."""
        return self.programs[stage - self.kept]

    def to_json(self) -> str:
        """Give it as text."""
        return json.dumps(
            {**vars(self), "programs": [program.to_json() for program in self.programs]}, sort_keys=True
        )

    @classmethod
    def from_json(cls, text: str) -> "Setup":
        """Read the text that :meth:`to_json` gave."""
        given: Any = json.loads(text)
        names = {field.name for field in fields(cls)}
        if not isinstance(given, dict) or set(given) != names:
            raise ValueError(
                f"a setup of {sorted(given)}; expected {sorted(names)}: is it another version of siafu?"
            )
        programs, weight = given["programs"], given["class_weight"]
        if not isinstance(programs, list) or not programs or given["dtype"] not in ("float32", "float64"):
            raise ValueError(
                "a setup without stages, or of an unknown dtype; is it another version of siafu?"
            )
        if not all(type(given[name]) is int and given[name] >= 0 for name in ("kept", "seed")):
            raise ValueError(
                "a setup whose kept aggregates or seed are no counts; is it another version of siafu?"
            )
        given["scale"], given["gamma"] = float(given["scale"]), float(given["gamma"])
        if not 0 <= given["gamma"] < inf:
            raise ValueError(f"a setup with gamma {given['gamma']}; expected a number from 0")
        given["programs"] = tuple(Program.from_json(each) for each in programs)
        given["class_weight"] = None if weight is None else tuple(map(float, weight))
        return cls(**given)
