"""Synchronous full-graph training, on one rank or many."""

from typing import TYPE_CHECKING, Any

from torch import nn

from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.methods.method import ConfigLike, Method, RankContext
from siafu.methods.static import build_static_model, node_inputs, static_inputs
from siafu.methods.static_work import (
    TRAIN_PASSES,
    build_for_work,
    epoch_work,
    layer_works,
    whole_graph_work,
)
from siafu.nn.norm import BatchNorm
from siafu.nn.streamed import Rows, Streamed
from siafu.training.scoring_interval import EpochWork

if TYPE_CHECKING:
    from siafu.methods.full.procedure import FullProcedure


class Full(Method):
    """Every epoch is one step on the whole graph."""

    tasks = ("node", "link")
    trains_modules = True
    race_method = "full"

    def build(self, rank: RankContext) -> "FullProcedure":
        """Build the procedure of one rank. Collective."""
        from siafu.methods.full.procedure import FullProcedure

        config = rank.config
        if rank.module is not None:
            return _build_custom(rank, rank.module)
        _, context, x, task, model = static_inputs(rank)
        return FullProcedure(model, context, x, task, config.train, seed=config.seed, wire=config.comm)

    def reads_sparse_inputs(self, config: ConfigLike) -> bool:
        """Most models do; GIN and the maximum combine inputs element by element, and your module reads tensors."""
        return config.model.kind not in ("custom", "gin") and config.model.reduce != "max"

    def epoch_work(self, config: ConfigLike, graph: Graph | DynamicGraph, task: Any) -> EpochWork | None:
        """A pass over the graph to score takes a quarter of an epoch's time; ranking pairs may take longer."""
        if config.task != "link":
            return None
        assert isinstance(graph, Graph)
        whole = whole_graph_work(layer_works(build_for_work(config, graph, task), graph, config), graph)
        return epoch_work(TRAIN_PASSES * whole, whole, task)

    def build_model(
        self, config: ConfigLike, *, in_features: int, out_features: int, num_nodes: int
    ) -> nn.Module:
        """Build the model of a run, without its weights."""
        return build_static_model(
            config, in_features=in_features, out_features=out_features, num_nodes=num_nodes
        )


def _build_custom(rank: RankContext, module: nn.Module) -> "FullProcedure":
    from siafu.methods.full.procedure import FullProcedure

    config = rank.config
    part, context, x, task = node_inputs(rank)
    _check_module(module, x, part.own.name, ranks=rank.comm.world_size)
    for value in module.state_dict().values():  # each process may have made its own
        value.copy_(rank.comm.broadcast(value, label="weights"))
    return FullProcedure(module, context, x, task, config.train, seed=config.seed, wire=config.comm)


def _check_module(module: nn.Module, x: Rows, name: str, *, ranks: int) -> None:
    if isinstance(x, Streamed):
        raise ValueError("your module reads all inputs at once, but data.inputs is stream; set it to memory")
    if not x.shape[1]:
        raise ValueError(f"{name}: no features for your module to read; give x")
    for part in module.modules():
        if (
            ranks > 1
            and isinstance(part, nn.modules.batchnorm._BatchNorm)
            and not isinstance(part, BatchNorm)
        ):
            raise ValueError(
                f"your module has a {type(part).__name__}, which knows the rows of one rank alone; use "
                "siafu.nn.norm.BatchNorm, called with (rows, block), or train on one rank"
            )
