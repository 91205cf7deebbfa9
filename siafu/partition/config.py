"""Settings of the partitioner."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from siafu.conditions import Applies, unless


class PartitionConfig(BaseModel):
    """The partitioner that assigns nodes to parts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str = Field("stream", min_length=1)  # stream, metis, kaminpar, hash, or the path of a file

    applies: ClassVar[Applies] = {"by": (unless("method", "snapshots"),)}
