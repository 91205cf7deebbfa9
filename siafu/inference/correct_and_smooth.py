"""Correct-and-smooth after training, and again when a run predicts the graph that it was trained on."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from siafu.comm.halo import Halo
from siafu.config import Config
from siafu.context import NO_EXCHANGE, Context, HaloExchange
from siafu.graph import Graph
from siafu.methods import RankContext
from siafu.training.correct_and_smooth.adjacency import SymmetricAdjacency
from siafu.training.correct_and_smooth.propagation import TABLES, CorrectAndSmooth
from siafu.training.spill import spill_to, tables_in
from siafu.training.task import SPLITS, Task, task_of

SMOOTHED = "smoothed"  # the metric that says whether the outputs of a run are the smoothed ones
Scores = dict[str, dict[str, float | None]]


class ChosenOutputs(NamedTuple):
    """The outputs of a run after correct-and-smooth.

    Attributes:
        out: (D, C), the smoothed outputs, or those of the model where their validation score is better.
        selecting: (D, C), the same without labels of validation nodes, to choose by.
        scores: the metrics of each split.
        figures: the scores without and with correct-and-smooth.
    """

    out: Tensor
    selecting: Tensor
    scores: Scores
    figures: dict[str, Any]


def choose_outputs(
    rank: RankContext, config: Config, task: Task, out: Tensor, scores: Scores
) -> ChosenOutputs:
    """Correct and smooth the model's outputs; use the result unless its validation score is worse. Collective.

    The choice and the validation score never read the labels of validation nodes. Without validation nodes the result
    is used.
    """
    part = rank.static_part
    exchange: HaloExchange = NO_EXCHANGE
    if rank.comm.world_size > 1:
        exchange = Halo(rank.comm, part.route, num_own=part.own.num_nodes)
    steps = _steps(part.context(exchange), task, config, part.num_nodes, rank.scratch)
    corrected = steps.correct(out)
    smoothed = steps.smooth(corrected, ["train"])
    found = {split: task.scores(smoothed, split) for split in SPLITS}
    scored = [found["val"][task.metric], scores["val"][task.metric]]
    used = _is_no_worse(*(scored if task.higher_is_better else scored[::-1]))
    selecting = smoothed
    if config.correct_and_smooth.validation_labels and task.count["val"]:
        smoothed = steps.smooth(corrected, ["train", "val"])
        found |= {split: task.scores(smoothed, split) for split in ("train", "test")}
    figures: dict[str, Any] = {SMOOTHED: used}
    for split in ("val", "test"):
        figures[f"unsmoothed_{split}_score"] = scores[split][task.metric]
        figures[f"smoothed_{split}_score"] = found[split][task.metric]
    if not used:
        return ChosenOutputs(out, out, scores, figures)
    return ChosenOutputs(smoothed, selecting, found, figures)


def smooth_predictions(graph: Graph, config: Config, out: Tensor, *, scratch: Path) -> Tensor:
    """Correct and smooth the outputs of a prepared graph, from its own labels: (N, C) -> (N, C)."""
    spill = spill_to(scratch) if config.data.inputs == "stream" else None
    context = Context(graph.block, NO_EXCHANGE, spill=spill)
    steps = _steps(context, task_of(graph, config.train), config, graph.num_nodes, scratch)
    splits = ["train", "val"] if config.correct_and_smooth.validation_labels else ["train"]
    return steps.smooth(steps.correct(out), splits)


def _steps(context: Context, task: Task, config: Config, num_nodes: int, scratch: Path) -> CorrectAndSmooth:
    table = tables_in(scratch, count=TABLES, rows=num_nodes, width=task.num_outputs)
    return CorrectAndSmooth(SymmetricAdjacency(context), task, config.correct_and_smooth, table)


def _is_no_worse(score: float | None, before: float | None) -> bool:
    return score is None or before is None or score >= before
