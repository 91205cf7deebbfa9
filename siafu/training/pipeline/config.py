"""How the pipeline runs."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

WorkerKind = Literal["inline", "threads", "processes", "lambda", "http", "ray"]


class PipelineConfig(BaseModel):
    """Intervals, staleness, workers and their price."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    staleness: int = Field(0, ge=0)  # epochs by which rows of other ranks, and weights, may be behind
    intervals: int = Field(0, ge=0)  # of each rank's nodes; 0: as many as keep workers busy
    workers: WorkerKind = "processes"
    num_workers: int = Field(0, ge=0)  # of all ranks together; 0: the cores of this machine
    hedge: bool = True  # have a task that takes much longer than its like done a second time
    trace_epochs: int = Field(3, ge=0)  # whose tasks are written down one by one
