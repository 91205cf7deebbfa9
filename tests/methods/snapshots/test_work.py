"""The count of a run's work over time, which decides how often links are ranked."""

import torch

from siafu.comm import single_rank_comm
from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.task import TemporalTask
from siafu.methods.snapshots.work import epoch_work
from siafu.nn.config import ModelConfig
from siafu.training.link.config import LinkConfig

STEPS, ACTIVE = 20, 50


def score_work(
    *, nodes: int, features: bool = False, window: int = 3, kind: str = "link", **link: bool | int
) -> float:
    """The work of scoring, where each step has events of other nodes."""
    src = torch.arange(STEPS * ACTIVE) % nodes
    x = torch.ones(nodes, 8) if features else None
    t = torch.arange(STEPS).repeat_interleave(ACTIVE)
    graph = DynamicGraph.from_events(src, src, t, steps=STEPS, num_nodes=nodes, x=x)
    samples = {"train": range(8), "val": range(12, 14), "test": range(14, 16)}
    task = TemporalTask(
        graph=graph,
        samples=samples,
        count={split: len(steps) for split, steps in samples.items()},
        comm=single_rank_comm(),
        seed=0,
        kind=kind,
        metric="map",
        num_outputs=1,
        num_counts=4,
    )
    config = SnapshotsConfig(window=window, edge_life=1)
    model = ModelConfig(kind="evolvegcn-o", hidden=4, layers=1)
    return epoch_work(graph, task, config, model, link=LinkConfig(**link)).score


def ranking(**how: bool | int) -> float:
    return score_work(**how) - score_work(**how, evaluation=10)


def test_nodes_without_an_event_in_the_window_are_ranked_as_one() -> None:
    few, more = ranking(nodes=2000), ranking(nodes=2000, window=7)
    assert few < more < ranking(nodes=2000, recency=True) < ranking(nodes=2000, features=True)
    assert ranking(nodes=2000, window=0) == ranking(nodes=2000, recency=True)
    assert 2 < more / few < 4


def test_other_tasks_rank_no_pairs() -> None:
    assert score_work(nodes=2000, kind="edge") == score_work(nodes=2000, evaluation=10)
