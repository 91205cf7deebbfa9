"""The work of an epoch over time and that of scoring the validation samples."""

import torch

from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.task import TemporalTask
from siafu.nn.config import ModelConfig
from siafu.nn.temporal import TemporalLayer, build_temporal
from siafu.nn.temporal.recurrent import Recurrent
from siafu.training.link.config import LinkConfig
from siafu.training.link.scores import ranking_work
from siafu.training.scoring_interval import EpochWork

_TRAIN_PASSES = 4.0  # forward, once more for gradient checkpointing, and backward, in forward passes
_EDGE_COLUMN = 6.0  # multiplications of a product in the time that one number takes along an edge
_GATES = 8  # products of the state's width with itself, as an LSTM has
_DEGREE_INPUTS = 128  # about the width of inputs where degrees are the inputs


def epoch_work(
    graph: DynamicGraph, task: TemporalTask, config: SnapshotsConfig, model: ModelConfig, *, link: LinkConfig
) -> EpochWork:
    """Count the work of a run: of training on its samples, and of scoring those of validation and test."""
    steps, width = _StepWork(graph, config, model), link.width or model.hidden
    ranked = task.kind == "link" and link.evaluation == "all"
    score, test = (
        steps.of_samples(task.samples[split])
        + (steps.of_ranking(task.samples[split], link, width=width) if ranked else 0.0)
        for split in ("val", "test")
    )
    untrained = (
        score if link.recency and task.kind == "link" else 0.0
    )  # see SnapshotsProcedure.score_untrained
    train = _TRAIN_PASSES * steps.of_samples(task.samples["train"])
    return EpochWork(train, score, fixed=score + test + untrained)


def _node_work(layer: TemporalLayer) -> float:
    """The work of one node in one step: the projection, and the gates of a recurrence."""
    gates = _GATES * layer.out_features**2 if isinstance(layer, Recurrent) else 0
    return layer.in_features * layer.out_features + gates


class _StepWork:
    """The work of forward passes over steps."""

    def __init__(self, graph: DynamicGraph, config: SnapshotsConfig, model: ModelConfig) -> None:
        self._graph, self._window = graph, config.window or 0
        self._life = model.band if model.kind == "tm-gcn" else config.edge_life or 1
        layers = build_temporal(model, in_features=graph.num_features or _DEGREE_INPUTS).temporal_layers
        self._edge = _EDGE_COLUMN * sum(min(each.in_features, each.out_features) for each in layers)
        self._node = sum(_node_work(each) for each in layers)

    def of_samples(self, samples: range) -> float:
        """The work of the passes that some samples need: one for each with a window, else one for all."""
        if not samples:
            return 0.0
        if self._window:
            return sum(self._of_steps(range(each - self._window, each + 1)) for each in samples)
        return self._of_steps(range(samples.stop))

    def of_ranking(self, samples: range, link: LinkConfig, *, width: int) -> float:
        """The work of ranking the links of some samples among all pairs."""
        distinct = [self._distinct_nodes(each, all_steps=link.recency) for each in samples]
        return sum(ranking_work(each, each, width, rows=2 * self._graph.num_nodes) for each in distinct)

    def _distinct_nodes(self, sample: int, *, all_steps: bool) -> int:
        """Estimate how many nodes differ in their outputs: those with an event that the pass of a sample reads.

        All others are equal, unless nodes have features. With ``all_steps`` events before the window are read too.
        """
        graph = self._graph
        if graph.x is not None:
            return graph.num_nodes
        first = sample - self._window - self._life + 1 if self._window and not all_steps else 0
        events, active = graph.events(max(0, first), sample + 1), torch.zeros(graph.num_nodes)
        for ends in (graph.src, graph.dst):
            active[ends[events].long()] = 1
        return min(graph.num_nodes, 1 + int(active.sum()))

    def _of_steps(self, steps: range) -> float:
        graph, both = self._graph, 2 if self._graph.undirected else 1
        edges = sum(graph.count(step - self._life + 1, step + 1) for step in steps)
        return both * edges * self._edge + len(steps) * graph.num_nodes * self._node
