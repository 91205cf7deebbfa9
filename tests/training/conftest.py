"""A small graph whose labels can be learned, and a loop of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from siafu.data import community
from siafu.event_log import EventLog
from siafu.graph import Graph
from siafu.methods.full.procedure import FullProcedure
from siafu.nn import Gnn, ModelConfig
from siafu.training.config import TrainConfig
from siafu.training.loop import Loop
from siafu.training.procedure import Callbacks, Monitor
from siafu.training.task import task_of

MakeLoop = Callable[..., Loop]
MakeMonitor = Callable[..., Monitor]


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    """So small a graph is trained fastest by one thread, above all where tests run side by side."""


@pytest.fixture(scope="session")
def graph() -> Graph:
    """300 nodes of 3 classes."""
    return community(300, degree=8, classes=3, features=12)


@pytest.fixture
def make_loop(graph: Graph) -> MakeLoop:
    """A loop of a small GCN, or of ``model``, with settings of training as keywords."""

    def make(model: nn.Module | None = None, *, seed: int = 0, **settings: Any) -> Loop:
        config = TrainConfig.model_validate({"epochs": 8, **settings})
        assert graph.x is not None
        if model is None:
            model = Gnn(ModelConfig(hidden=8), in_features=12, out_features=3)
            model.reset(torch.Generator().manual_seed(seed))
        procedure = FullProcedure(model, graph.block, graph.x, task_of(graph, config), config, seed=seed)
        return Loop(procedure, config)

    return make


@pytest.fixture
def make_monitor(tmp_path: Path) -> Iterator[MakeMonitor]:
    """A monitor that writes below ``tmp_path``."""
    events = EventLog(tmp_path / "events.jsonl")

    def make(**changes: Any) -> Monitor:
        return Monitor(
            events=events,
            checkpoint=tmp_path / "latest.safetensors",
            callbacks=Callbacks(**changes),
        )

    yield make
    events.close()
