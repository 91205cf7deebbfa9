"""One graph server in this process, whose workers compute as a benchmark wants: late, slowly, or as they are."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from unittest import mock

import torch

from siafu import native
from siafu.comm.config import CommConfig
from siafu.data.config import DataConfig
from siafu.graph import Graph
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.pipeline.procedure import PipelineProcedure
from siafu.nn import Gnn, ModelConfig
from siafu.partition.cut import whole_part
from siafu.training import inputs
from siafu.training.config import TrainConfig
from siafu.training.task import task_of
from siafu.workers import worker_pool
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.torch_compute import TorchCompute

Wait = Callable[[Task, float], float]


def at_once(task: Task, cpu_s: float) -> float:
    """Add nothing."""
    return 0.0


class Late(TorchCompute):
    """Computes, then sleeps for as long as ``wait`` says of a task and of the CPU seconds it took; no core is held."""

    wait: Wait = staticmethod(at_once)

    def __call__(self, task: Task, weights: Arrays) -> Result:
        began_s = time.thread_time()
        result = super().__call__(task, weights)
        seconds = Late.wait(task, time.thread_time() - began_s)
        if seconds:
            time.sleep(seconds)
        return result


@contextmanager
def late_workers() -> Iterator[None]:
    """While it lasts, workers in this process wait as :attr:`Late.wait` says."""
    with mock.patch.object(worker_pool, "TorchCompute", Late), native.arrays_reused():
        yield


def prepared(graph: Graph) -> Graph:
    """The graph in the order in which a run would have it."""
    return inputs.prepare(graph, inputs.resolve(DataConfig(), graph))


@contextmanager
def server_of(graph: Graph, model: ModelConfig, pipeline: PipelineConfig) -> Iterator[PipelineProcedure]:
    """The procedure of a prepared graph, on one rank; its workers end with it."""
    part, config, data = whole_part(graph), TrainConfig(), DataConfig(normalize="none")
    task = task_of(graph, config)
    x = inputs.features(graph, data)
    made = Gnn(model, in_features=x.shape[1], out_features=task.num_outputs)
    made.reset(torch.Generator().manual_seed(0))
    trainer = PipelineProcedure(
        made,
        part.context(),
        x,
        task,
        config,
        pipeline=pipeline,
        route=part.route,
        seed=0,
        wire=CommConfig(),
    )
    with closing(trainer):
        yield trainer


def timed_epochs(trainer: PipelineProcedure, *, wait: Wait, epochs: int = 1) -> float:
    """The seconds of an epoch, of some in a row, in which workers wait so."""
    Late.wait = staticmethod(wait)
    began_s = time.perf_counter()
    trainer.train_epochs(trainer.epoch + epochs)
    return (time.perf_counter() - began_s) / epochs
