"""The work of a model's layers on a graph that does not change; see :mod:`siafu.training.scoring_interval`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from siafu.graph import Graph
from siafu.methods.method import ConfigLike
from siafu.methods.static import build_static_model
from siafu.nn.embedded import model_of
from siafu.nn.model import Model
from siafu.training.inputs import density
from siafu.training.link.task import LinkTask
from siafu.training.scoring_interval import EpochWork
from siafu.training.task import Task

TRAIN_PASSES = 3.0  # forward and backward, in forward passes
# What else takes time, in multiplications of a product that take as long; measured on one core, to a factor of 2 or so:
_EDGE_COLUMN = 6.0  # one number along an edge, which memory limits
_ATTENTION = 4.0  # the same with an attention weight or a maximum, in sums
_SPARSE = 4.0  # a multiplication of a sparse row
_PASS = 4e7  # one pass over a graph, however small


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
        wide, projected = float(model.z_features(number, first=True)), model.z_features(number, first=False)
        node = float(model.num_weights(number))
        if number == 0 and config.data.layout == "sparse" and graph.x is not None:
            wide, node = wide * density(graph.x), _SPARSE * node * density(graph.x)
        along_edge = _EDGE_COLUMN * min(wide, projected) * (1.0 if model.kind(number).linear else _ATTENTION)
        works.append(LayerWork(node, 0.0 if number < kept else along_edge))
    return works


def whole_graph_work(works: Sequence[LayerWork], graph: Graph) -> float:
    """The work of one pass over the whole graph."""
    return _PASS + sum(graph.num_nodes * layer.node + graph.num_edges * layer.edge for layer in works)


def epoch_work(train: float, whole: float, task: Task) -> EpochWork:
    """The work of a run, from that of training an epoch and of a pass over the whole graph."""
    if not isinstance(task, LinkTask):
        return EpochWork(train, whole, fixed=whole)
    ranks, areas = task.ranking_work, task.comparison_work
    return EpochWork(train, whole + (ranks if task.ranks else areas), fixed=whole + ranks + 2 * areas)
