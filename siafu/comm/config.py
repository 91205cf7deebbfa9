"""Settings of communication between ranks."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from siafu.conditions import ALWAYS, Applies, unless

Precision = Literal["fp32", "bf16", "int8", "int4"]


class CommConfig(BaseModel):
    """Precision of rows and gradients on the wire, the deadline for peers, and encryption."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    precision: Precision = "fp32"  # of rows on the wire
    gradients: Precision = "fp32"  # of the weights' gradients on the wire
    narrow: bool = True  # send and aggregate the narrower side of a linear layer
    deadline: float = Field(
        30.0, gt=0
    )  # seconds without a heartbeat or progress before a peer counts as lost
    encrypt: bool = True  # TLS between ranks on several hosts
    trust_network: bool = False  # let ranks on several hosts store without a secret

    applies: ClassVar[Applies] = {
        "precision": ALWAYS,  # methods that cannot round rows refuse other values than fp32
        "gradients": ALWAYS,
        "narrow": (unless("method", "snapshots"),),
        "deadline": ALWAYS,
        "encrypt": ALWAYS,
        "trust_network": ALWAYS,
    }
