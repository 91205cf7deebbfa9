"""Training on dynamic graphs: ranks own snapshots, and transpose rows between time-major and node-major."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from siafu.comm import Comm
from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.methods.method import ConfigLike, Method, RankContext
from siafu.methods.snapshots.config import DEFAULTS, SnapshotsConfig, task_config_of
from siafu.training.scoring_interval import EpochWork

if TYPE_CHECKING:
    from siafu.methods.snapshots.procedure import SnapshotsProcedure


class Snapshots(Method):
    """Snapshot partitioning, with gradient checkpointing over time."""

    tasks = ("link", "edge", "node")
    defaults = DEFAULTS
    over_time = True

    def build(self, rank: RankContext) -> "SnapshotsProcedure":
        """Build the procedure of one rank. Collective."""
        from siafu.methods.snapshots.build import build_predictor, build_task, build_timeline
        from siafu.methods.snapshots.procedure import SnapshotsProcedure

        config, graph, snapshots = rank.config, rank.part, rank.config.of(SnapshotsConfig)
        assert isinstance(graph, DynamicGraph)
        timeline = build_timeline(graph, snapshots, config.model)
        task = build_task(graph, task_config_of(config), rank.comm)
        model = build_predictor(
            config.model,
            config.link,
            task=config.task,
            in_features=timeline.in_features,
            out_features=task.num_outputs,
        )
        model.reset(torch.Generator().manual_seed(config.seed))
        return SnapshotsProcedure(
            model, timeline, task, config.train, snapshots=snapshots, seed=config.seed, wire=config.comm
        )

    def build_model(
        self, config: ConfigLike, *, in_features: int, out_features: int, num_nodes: int
    ) -> nn.Module:
        """Build the model of a run, without its weights."""
        from siafu.methods.snapshots.build import build_predictor

        return build_predictor(
            config.model, config.link, task=config.task, in_features=in_features, out_features=out_features
        )

    def epoch_work(self, config: ConfigLike, graph: Graph | DynamicGraph, task: Any) -> EpochWork:
        """Passes over time, and pairs that are ranked."""
        from siafu.methods.snapshots.work import epoch_work

        assert isinstance(graph, DynamicGraph)
        return epoch_work(graph, task, config.of(SnapshotsConfig), config.model, link=config.link)

    def receive_part(self, comm: Comm, path: Path, config: ConfigLike) -> DynamicGraph:
        """Receive this rank's shard of the event log in ``path``. Collective."""
        from siafu.methods.snapshots.shard_plan import plan_shards
        from siafu.partition.distribute_log import distribute_log

        shares = partial(
            plan_shards, model=config.model, target=task_config_of(config), ranks=comm.world_size
        )
        return distribute_log(comm, path, shares)
