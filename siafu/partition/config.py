"""How a graph is cut into parts."""

from pydantic import BaseModel, ConfigDict, Field


class PartitionConfig(BaseModel):
    """Who decides which part owns a node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str = Field("stream", min_length=1)  # stream, metis, kaminpar, hash, or the path of a file
