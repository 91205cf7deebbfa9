"""What a worker is told once: the model's tensor work, as data. It knows no torch."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Setup:
    """The tensor work of one run.

    Stage ``k`` of a model of L layers is what is done row by row between aggregate ``k - 1`` and aggregate ``k``: it
    updates layer ``k - 1``, does what follows that layer, and projects for layer ``k``. Stage L ends in the outputs.

    Attributes:
        model: the model's settings, ``ModelConfig.model_dump()``.
        in_features, out_features: the widths of inputs and outputs.
        aggregates_first: for each layer, whether it aggregates the rows it is given and projects afterwards.
        kept: whether the first layer's aggregate of the inputs is kept. Then there is no stage 0, and the dropout of
            the inputs acts in stage 1, on the aggregate and on the inputs that it reads beside it.
        reads_dst: for each layer, whether its update, or the skip connection over it, reads the rows given to it.
        task: one class a node, many labels a node, or numbers.
        scale: what the sum of losses is divided by.
        class_weight: of each class or label, or None.
        seed: of the run, for dropout.
        dtype: of rows and weights, ``float32`` or ``float64``.
    """

    model: dict[str, Any]
    in_features: int
    out_features: int
    aggregates_first: tuple[bool, ...]
    kept: bool
    reads_dst: tuple[bool, ...]
    task: str
    scale: float
    class_weight: tuple[float, ...] | None
    seed: int
    dtype: str = "float32"

    @property
    def num_layers(self) -> int:
        """L, which is also the number of the last stage."""
        return len(self.aggregates_first)

    def to_json(self) -> str:
        """As text, for :meth:`from_json`."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Setup":
        """The setup that :meth:`to_json` wrote."""
        given = json.loads(text)
        names = {field.name for field in fields(cls)}
        if not isinstance(given, dict) or set(given) != names:
            raise ValueError(
                f"a setup of {sorted(given)}; expected {sorted(names)}: is it another version of siafu?"
            )
        for name in ("aggregates_first", "reads_dst"):
            given[name] = tuple(given[name])
        if given["class_weight"] is not None:
            given["class_weight"] = tuple(given["class_weight"])
        return cls(**given)
