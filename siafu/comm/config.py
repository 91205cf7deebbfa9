"""Settings of communication between ranks."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

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
