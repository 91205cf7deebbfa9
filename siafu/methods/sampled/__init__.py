"""Sampled minibatches, several of them merged into one exchange (BatchGNN)."""

from typing import TYPE_CHECKING, Any

from torch import nn

from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.methods.method import ConfigLike, Method, RankContext
from siafu.methods.sampled.config import SampledConfig
from siafu.methods.static import build_static_model, layer_room, require_features, static_inputs
from siafu.methods.static_work import build_for_work, epoch_work, layer_works, whole_graph_work
from siafu.training.scoring_interval import EpochWork

if TYPE_CHECKING:
    from siafu.methods.sampled.procedure import SampledProcedure


class Sampled(Method):
    """An epoch is many steps, each on a minibatch of training nodes or edges and some of their neighbours."""

    tasks = ("node", "link")
    race_method = "sampled"

    def check(self, config: ConfigLike) -> None:
        """Refuse batch norm on several ranks."""
        if config.ranks > 1 and config.model.norm == "batch":
            raise ValueError(
                "model.norm is batch, whose moments in a minibatch would be each rank's own; set it to layer, or train "
                "on one rank"
            )

    def build(self, rank: RankContext) -> "SampledProcedure":
        """Build the procedure of one rank. Collective."""
        from siafu.methods.sampled.procedure import SampledProcedure

        config, sampled = rank.config, rank.config.of(SampledConfig)
        part, context, x, task, model = static_inputs(rank)
        if config.task == "node":
            require_features(model, part, "sampled")
        room = layer_room(
            rank.comm,
            part,
            model,
            x,
            ranks=config.ranks,
            budget_mb=sampled.budget_mb,
            scratch=rank.scratch,
        )
        return SampledProcedure(
            model,
            part,
            context,
            x,
            task,
            config.train,
            sampled=sampled,
            seed=config.seed,
            wire=config.comm,
            room=room,
        )

    def epoch_work(self, config: ConfigLike, graph: Graph | DynamicGraph, task: Any) -> EpochWork:
        """Minibatches, and passes over the whole graph to score."""
        from siafu.methods.sampled.work import training_work

        assert isinstance(graph, Graph)
        sampled, model = config.of(SampledConfig), build_for_work(config, graph, task)
        layers = layer_works(model, graph, config, keeps=sampled.cache_aggregate)
        ends = (
            2 * (1 + task.negatives) if config.task == "link" else 1
        )  # nodes of a training edge and its negatives
        train = training_work(
            graph,
            layers,
            sampled.fanouts(model.num_aggregates),
            seeds=ends * min(sampled.batch_size, task.count["train"]),
            batches=-(-task.count["train"] // sampled.batch_size),
        )
        return epoch_work(train, whole_graph_work(layers, graph), task)

    def build_model(
        self, config: ConfigLike, *, in_features: int, out_features: int, num_nodes: int
    ) -> nn.Module:
        """Build the model of a run, without its weights."""
        return build_static_model(
            config, in_features=in_features, out_features=out_features, num_nodes=num_nodes
        )

    def reads_sparse_inputs(self, config: ConfigLike) -> bool:
        """Most models do; GIN and the maximum combine inputs element by element."""
        return config.model.kind != "gin" and config.model.reduce != "max"

    def streams_inputs(self, config: ConfigLike) -> bool:
        """Every model of siafu's own reads minibatches from disk."""
        return config.model.kind != "custom"
