"""How rows travel between ranks: the settings of an exchange."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Precision = Literal["fp32", "bf16", "int8", "int4"]


class CommConfig(BaseModel):
    """What is sent, how precisely, and how long ranks wait for each other."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    precision: Precision = "fp32"  # of rows on the wire
    gradients: Precision = "fp32"  # of the weights' gradients on the wire
    narrow: bool = True  # send and aggregate the narrower side of a linear layer
    deadline: float = Field(30, gt=0)  # seconds without progress before a peer counts as lost
    encrypt: bool = True  # TLS between ranks on several hosts
    trust_network: bool = False  # let ranks on several hosts meet without a secret
