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
    function: str = ""  # lambda: its name or ARN; http: its URL
    endpoint: str = ""  # lambda: of the API, where that is not AWS's own
    lease_key_file: str = ""  # lambda and http: holds the key that their leases are signed with
    host: str = "127.0.0.1"  # where ranks listen for workers; beyond this machine they speak TLS
    address: str = ""  # what workers are told of that, where it is something else
    function_price: str = ""  # lambda-x86, lambda-arm or cloud-run; empty: the one of the kind of workers
    memory_mb: int = Field(1769, ge=128, le=10_240)  # of a function, for its price
    instance: str = "c5n.2xlarge"  # what a rank runs on, for its price
    prices: str = ""  # a TOML file of your own prices, over those that come with siafu
