"""What is read of a data set, and how its features are prepared."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class DataConfig(BaseModel):
    """Which split is used and how features enter the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fold: int = Field(0, ge=0)
    normalize: Literal["auto", "rows", "none"] = (
        "auto"  # rows: each row sums to 1; auto: where features are counts
    )
    reorder: Literal["auto", "on", "off"] = "auto"  # put neighbours near each other in memory
    inputs: Literal["auto", "memory", "stream"] = (
        "auto"  # stream: features are read from disk range by range; auto: where they would fill the memory
    )
