"""Settings of the partitioner."""

from pydantic import BaseModel, ConfigDict, Field


class PartitionConfig(BaseModel):
    """The partitioner that assigns nodes to parts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by: str = Field("stream", min_length=1)  # stream, metis, kaminpar, hash, or the path of a file
