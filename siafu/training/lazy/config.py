"""How lazy training runs."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from siafu.comm.config import Precision
from siafu.comm.rounds_config import RoundsConfig
from siafu.nn.model import ModelConfig

# What rows travel as.
PRECISIONS: dict[int, Precision] = {32: "fp32", 16: "bf16", 8: "int8", 4: "int4"}

# What other settings are where nobody gave them: as published, but for fewer and smaller updates.
DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"norm": "layer"},
    "train": {"patience": 10},
    "comm": {"gradients": "int4"},
}


class LazyConfig(RoundsConfig):
    """What is exchanged, in how many bits, and how often ranks agree on the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # hidden rows are passed on; scores of classes; or heads in closed form are smoothed
    recipe: Literal["published", "logits", "frugal"] = "published"
    bits: Literal[32, 16, 8, 4] = 32  # of a number in rows that travel
    local_epochs: int = Field(1, ge=1)  # steps that a rank takes alone before weights are averaged
    gate: bool = True  # pass over a stage that the validation nodes find worse than one before it

    def num_stages(self, model: ModelConfig) -> int:
        """How many stages a model of such a recipe has."""
        match self.recipe:
            case "published":
                return model.layers + (model.jump != "none")
            case "logits":
                return 1 + (0 if model.kind == "mlp" else model.layers)
            case "frugal":
                return 1

    @property
    def precision(self) -> Precision:
        """How rows travel."""
        return PRECISIONS[self.bits]
