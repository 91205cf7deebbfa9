"""A small graph that has everything that may go wrong, its parts, and trainers of them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.comm.halo import Halo
from siafu.context import NO_EXCHANGE, HaloExchange
from siafu.graph import Graph
from siafu.methods.full.procedure import FullProcedure
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.pipeline.procedure import PipelineProcedure
from siafu.nn import Model, ModelConfig
from siafu.nn.embedded import build_on_features
from siafu.partition.cut import Part, cut, whole_part
from siafu.training.config import TrainConfig
from siafu.training.task import task_of

NODES, EDGES = 60, 400
PLAIN = CommConfig()
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn-wide": {"kind": "gcn", "hidden": 20, "layers": 3, "residual": True},
    "sage": {"kind": "sage", "norm": "layer"},
    "sage-max": {"kind": "sage", "reduce": "max", "layers": 3},
    "gat": {"kind": "gat", "heads": 2, "layers": 3},
    "gatv2": {"kind": "gatv2", "heads": 2},
    "gin": {"kind": "gin", "jump": "cat"},
    "batch-norm": {"kind": "gcn", "norm": "batch", "layers": 3},
    "jump-max": {"kind": "sage", "jump": "max", "norm": "batch"},
    "mlp": {"kind": "mlp"},
    "appnp": {"kind": "appnp", "hops": 4},
    "sgc": {"kind": "sgc", "dropout": 0.4, "layers": 3},
    "gcn2": {"kind": "gcn2", "layers": 4},
}


def graph_of(*, weighted: bool = False, labels: str = "class", features: bool = True) -> Graph:
    """60 nodes with loops, repeated edges, isolated nodes and a few nodes that train nothing."""
    draw = torch.Generator().manual_seed(5)
    edges = torch.randint(NODES - 2, (2, EDGES), generator=draw)
    edges = torch.cat([edges, edges[:, :20], torch.tensor([[3, 3, 4], [3, 3, 4]])], 1)
    split = torch.randint(3, (NODES,), generator=draw)
    y: dict[str, Tensor] = {
        "class": torch.randint(-1, 4, (NODES,), generator=draw),
        "labels": torch.randint(2, (NODES, 3), generator=draw, dtype=torch.uint8),
        "numbers": torch.randn(NODES, 2, generator=draw),
    }
    x = torch.randn(NODES, 9, generator=draw).relu().mul(4).round() / 4  # many ties
    weight = torch.rand(edges.shape[1], generator=draw) if weighted else None
    made = Graph.from_edges(
        edges,
        x=x if features else None,
        y=y[labels],
        train_mask=split == 0,
        val_mask=split == 1,
        test_mask=split == 2,
        edge_weight=weight,
        num_nodes=NODES,
    )
    return replace(made, x=None if made.x is None else made.x.double())


def parts_of(graph: Graph, ranks: int) -> list[Part]:
    if ranks == 1:
        return [whole_part(graph)]
    draw = torch.Generator().manual_seed(ranks)
    part_of_node = torch.randint(ranks, (NODES,), generator=draw).to(torch.int32)
    order = torch.randperm(NODES, generator=draw)
    return [one.part(graph) for one in cut(graph, part_of_node, parts=ranks, order=order)]


def trainer_of(
    comm: Comm,
    part: Part,
    model: dict[str, Any],
    comm_config: CommConfig,
    *,
    pipeline: PipelineConfig | None = None,
    **train: Any,
) -> FullProcedure:
    config = TrainConfig.model_validate(train)
    task = task_of(part.own, config, comm)
    task = replace(
        task,
        y=task.y.double() if task.y.is_floating_point() else task.y,
        class_weight=None if task.class_weight is None else task.class_weight.double(),
    )
    x = part.own.x if part.own.x is not None else torch.empty(part.own.num_nodes, 0, dtype=torch.float64)
    made = build_on_features(
        ModelConfig.model_validate({"hidden": 8, "dropout": 0.4} | model),
        in_features=x.shape[1],
        out_features=task.num_outputs,
        num_nodes=part.num_nodes,
    )
    made.reset(torch.Generator().manual_seed(1))
    exchange: HaloExchange = NO_EXCHANGE
    if comm.world_size > 1:
        exchange = Halo(comm, part.route, num_own=part.own.num_nodes, precision=comm_config.precision)
    context = part.context(exchange, narrow=comm_config.narrow)
    made = made.double()
    if pipeline is None:
        return FullProcedure(made, context, x, task, config, seed=3)
    assert isinstance(made, Model)
    return PipelineProcedure(
        made, context, x, task, config, pipeline=pipeline, route=part.route, seed=3, wire=comm_config
    )
