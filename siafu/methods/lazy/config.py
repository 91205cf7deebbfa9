"""How lazy training runs."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from siafu.comm.config import Precision
from siafu.nn.config import ModelConfig

# What rows travel as.
PRECISIONS: dict[int, Precision] = {32: "fp32", 16: "bf16", 8: "int8", 4: "int4"}

# What other settings are where nobody gave them: as published, but for fewer and smaller updates.
DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"norm": "layer"},
    "train": {"patience": 10},
    "comm": {"gradients": "int4"},
}


class LazyConfig(BaseModel):
    """What is exchanged, in how many bits, and how often ranks agree on the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # hidden rows are passed on; scores of classes; or heads in closed form are smoothed
    recipe: Literal["published", "logits", "frugal"] = "published"
    bits: Literal[32, 16, 8, 4] = 32  # of a number in rows that travel
    local_epochs: int = Field(1, ge=1)  # steps that a rank takes alone before weights are averaged
    features: bool = True  # whether features of boundary nodes may travel
    gate: bool = True  # pass over a stage that the validation nodes find worse than one before it
    clients: int | Literal["none", "node"] = "none"  # one a node, or so many
    participation: float = Field(1.0, gt=0, le=1)  # share of the training clients drawn for a round
    away: float = Field(0.0, ge=0, lt=1)  # chance of a client to be away for a stage
    quorum: float = Field(0.0, ge=0, le=1)  # share of the clients that must be there for a stage
    local_lr: float = Field(0.1, gt=0)  # of the plain steps that a client takes, where they are several
    missing: Literal["mask", "last"] = "mask"  # do without the rows of who is away, or with the last known

    @field_validator("clients", mode="plain")
    @classmethod
    def _known(cls, value: Any) -> Any:
        number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not number and value not in ("none", "node"):
            raise PydanticCustomError(
                "clients", "Input should be none, node for one a node, or how many, from 1 on"
            )
        return value

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
