"""Who the members of rounds are, and how they come and go: settings."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError


class RoundsConfig(BaseModel):
    """Clients that are simulated in one process."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

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
