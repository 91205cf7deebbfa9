"""The work of a model's layers on a graph that does not change; see :mod:`siafu.training.scoring_interval`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.methods.method import ConfigLike
from siafu.methods.static import build_static_model
from siafu.native import SparseRows
from siafu.nn.embedded import model_of
from siafu.nn.model import Model
from siafu.training.link.task import LinkTask
from siafu.training.scoring_interval import EpochWork
from siafu.training.task import Task

TRAIN_PASSES = 3.0  # forward and backward, in forward passes
_EDGE_COLUMN = 6.0  # multiplications of a product in the time that one number takes along an edge


class LayerWork(NamedTuple):
    """The work of one layer, in multiplications with an addition.

    Attributes:
        node: for each row that is projected.
        edge: for each edge; 0 where the aggregate is computed once.
    """

    node: float
    edge: float


def build_for_work(config: ConfigLike, graph: Graph, task: Task) -> Model:
    """The model of a run, for its widths alone."""
    width = 0 if graph.x is None else graph.x.shape[1]
    outputs = config.model.hidden if config.task == "link" else task.num_outputs
    return model_of(build_static_model(config, in_features=width, out_features=outputs, num_nodes=1))


def layer_works(model: Model, graph: Graph, config: ConfigLike, *, keeps: bool = True) -> list[LayerWork]:
    """The work of each layer of a model, which ``keeps`` aggregates of its inputs where it can."""
    works, kept = (
        [],
        model.num_kept(torch.empty(0, model.in_features)) if keeps and graph.x is not None else 0,
    )
    for number in range(model.num_aggregates):
        wide = float(model.z_features(number, first=True))
        if number == 0 and config.data.layout == "sparse":
            wide *= _density(graph.x)
        projected = model.z_features(number, first=False)
        along_edge = _EDGE_COLUMN * min(wide, projected)
        works.append(LayerWork(wide * projected, 0.0 if number < kept else along_edge))
    return works


def whole_graph_work(works: Sequence[LayerWork], graph: Graph) -> float:
    """The work of one pass over the whole graph."""
    return sum(graph.num_nodes * layer.node + graph.num_edges * layer.edge for layer in works)


def epoch_work(train: float, whole: float, task: Task) -> EpochWork:
    """The work of a run, from that of training an epoch and of a pass over the whole graph."""
    ranking = task.ranking_work if isinstance(task, LinkTask) else 0.0
    each = ranking if isinstance(task, LinkTask) and task.ranks else 0.0
    return EpochWork(train, whole + each, fixed=whole + ranking)


def _density(x: Tensor | SparseRows | None) -> float:
    if isinstance(x, SparseRows):
        return x.density
    return 1.0 if x is None else float(x.count_nonzero()) / max(1, x.numel())
