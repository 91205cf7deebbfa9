"""Settings of lazy training."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from siafu.comm.config import Precision
from siafu.conditions import Applies, unless, when
from siafu.nn.config import ModelConfig

# The wire precision of rows, by lazy.bits.
PRECISIONS: dict[int, Precision] = {32: "fp32", 16: "bf16", 8: "int8", 4: "int4"}

# Defaults of other settings for this method: those of the publication, but with fewer and smaller updates.
DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"norm": "layer"},
    "train": {"patience": 10},
    "comm": {"gradients": "int4"},
}

_LAZY = when("method", "lazy")
_CLIENTS = unless("lazy.clients", "none", advice="node")
_STAGES = unless("lazy.recipe", "frugal")


class LazyConfig(BaseModel):
    """Recipe, precision of rows, local steps, and the simulation of clients."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # rows between stages: hidden rows, class scores, or (frugal) smoothed scores of closed-form heads
    recipe: Literal["published", "logits", "frugal"] = "published"
    bits: Literal[32, 16, 8, 4] = 32  # per value of a row on the wire
    local_epochs: int = Field(1, ge=1)  # local steps before weights are averaged
    features: bool = True  # whether features of boundary nodes may be sent
    gate: bool = True  # skip a stage whose validation score is worse than an earlier one's
    clients: int | Literal["none", "node"] = "none"  # one per node, or their number
    participation: float = Field(1.0, gt=0, le=1)  # share of the training clients drawn for a round
    away: float = Field(0.0, ge=0, lt=1)  # probability that a client is away for a stage
    quorum: float = Field(0.0, ge=0, le=1)  # share of the clients that a stage needs
    local_lr: float = Field(0.1, gt=0)  # of clients' SGD steps, if local_epochs is above 1
    missing: Literal["mask", "last"] = "mask"  # drop edges from absent clients, or use their last rows

    applies: ClassVar[Applies] = {
        "recipe": (_LAZY,),
        "bits": (_LAZY, _STAGES),
        "local_epochs": (_LAZY, _STAGES),
        "features": (_LAZY,),
        "gate": (_LAZY, _STAGES),
        "clients": (_LAZY,),
        "participation": (_LAZY, _CLIENTS),
        "away": (_LAZY, _CLIENTS),
        "quorum": (_LAZY, _CLIENTS),
        "local_lr": (_LAZY, _CLIENTS, _STAGES),
        "missing": (_LAZY, _CLIENTS, _STAGES),
    }

    @field_validator("clients", mode="plain")
    @classmethod
    def _check_clients(cls, value: Any) -> Any:
        number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not number and value not in ("none", "node"):
            raise PydanticCustomError(
                "clients", "Input should be none, node for one a node, or how many, from 1 on"
            )
        return value

    def num_stages(self, model: ModelConfig) -> int:
        """The number of stages of a model with this recipe."""
        match self.recipe:
            case "published":
                return model.layers + (model.jump != "none")
            case "logits":
                return 1 + (0 if model.kind == "mlp" else model.layers)
            case "frugal":
                return 1

    @property
    def precision(self) -> Precision:
        """The wire precision of rows."""
        return PRECISIONS[self.bits]
