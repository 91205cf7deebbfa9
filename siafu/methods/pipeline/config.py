"""The settings of method pipeline."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from siafu.conditions import Applies, unless, when

WorkerKind = Literal["inline", "threads", "processes", "lambda", "http", "ray"]

_PIPELINE = when("method", "pipeline")
_FUNCTIONS = when("pipeline.workers", "lambda", "http")


class PipelineConfig(BaseModel):
    """Intervals, staleness, workers and their prices."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    staleness: int = Field(0, ge=0)  # epochs by which rows of other ranks, and weights, may be behind
    intervals: int = Field(0, ge=0)  # of each rank; 0: 32, or fewer so that each has 4,096 rows
    workers: WorkerKind = "processes"
    num_workers: int = Field(0, ge=0)  # of all ranks; 0: cores of this machine; tuned for functions
    hedge: bool = True  # run a second copy of tasks that take much longer than others of their kind
    trace_epochs: int = Field(3, ge=0)  # epochs whose tasks are traced one by one
    function: str = ""  # lambda: its name or ARN; http: its URL
    endpoint: str = ""  # lambda: URL of the API, if not AWS's own
    lease_key_file: str = ""  # lambda and http: the file with the key that leases are signed with
    host: str = "127.0.0.1"  # the address on which ranks listen for workers; TLS is on unless it is loopback
    address: str = ""  # the address in leases, if it is not host
    function_price: str = ""  # lambda-x86, lambda-arm or cloud-run; empty: the price of the kind of workers
    memory_mb: int = Field(1769, ge=128, le=10_240)  # of a function, for its price
    instance: str = "c5n.2xlarge"  # the machine of a rank, for its price
    prices: str = ""  # a TOML file of your own prices, which override those of siafu

    applies: ClassVar[Applies] = {
        "staleness": (_PIPELINE,),
        "intervals": (_PIPELINE,),
        "workers": (_PIPELINE,),
        "num_workers": (_PIPELINE, unless("pipeline.workers", "inline", advice="processes")),
        "hedge": (_PIPELINE,),
        "trace_epochs": (_PIPELINE,),
        "function": (_PIPELINE, _FUNCTIONS),
        "endpoint": (_PIPELINE, when("pipeline.workers", "lambda")),
        "lease_key_file": (_PIPELINE, _FUNCTIONS),
        "host": (_PIPELINE,),
        "address": (_PIPELINE,),
        "function_price": (_PIPELINE,),
        "memory_mb": (_PIPELINE,),
        "instance": (_PIPELINE,),
        "prices": (_PIPELINE,),
    }
