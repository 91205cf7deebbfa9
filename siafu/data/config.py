"""Settings of the input data."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from siafu.conditions import ALWAYS, Applies, unless

_STATIC = unless("method", "snapshots")


class DataConfig(BaseModel):
    """The split, and how features are prepared and read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fold: int = Field(0, ge=0)
    # rows: each row sums to 1; standard: each column has mean 0 and deviation 1 on the training nodes;
    # auto: by the recipe of the run, or else rows where features are counts
    normalize: Literal["auto", "rows", "standard", "none"] = "auto"
    layout: Literal["auto", "sparse", "dense"] = (
        "auto"  # of features in memory; auto: sparse where most are zero and the method reads sparse rows
    )
    reorder: Literal["auto", "on", "off"] = "auto"  # put neighbours near each other in memory
    inputs: Literal["auto", "memory", "stream"] = (
        "auto"  # stream: features are read from disk range by range; auto: where they would fill the memory
    )

    applies: ClassVar[Applies] = {
        "fold": ALWAYS,
        "normalize": (_STATIC,),
        "layout": (_STATIC,),
        "reorder": (_STATIC,),
        "inputs": (_STATIC,),
    }
