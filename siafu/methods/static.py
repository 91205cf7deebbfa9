"""Inputs, task and model of one rank on a graph that does not change: what ``full``, ``sampled`` and others share."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from siafu.comm import Comm
from siafu.comm.halo import Halo
from siafu.context import NO_EXCHANGE, Context, HaloExchange
from siafu.machine import usable_memory_bytes
from siafu.methods.method import ConfigLike, RankContext
from siafu.nn.embedded import Embedded, build_on_features, model_of
from siafu.nn.link import build_link_model, get_link_head
from siafu.nn.model import Model
from siafu.nn.streamed import Rows, Streamed
from siafu.partition.cut import Part
from siafu.training import inputs
from siafu.training.layerwise import Room
from siafu.training.link.split import split_edges
from siafu.training.link.task import build_link_task
from siafu.training.scaling import measure_scaling, save_scaling
from siafu.training.spill import spill_to
from siafu.training.task import Task, task_of


class NodeInputs(NamedTuple):
    """The part of a rank, the context of its layers, its input rows and its task."""

    part: Part
    context: Context
    x: Rows
    task: Task


class StaticInputs(NamedTuple):
    """Node inputs, and a model of siafu's own with fresh weights."""

    part: Part
    context: Context
    x: Rows
    task: Task
    model: Model | Embedded


def node_inputs(rank: RankContext) -> NodeInputs:
    """The inputs of a node task. Collective."""
    comm, part, config = rank.comm, rank.static_part, rank.config
    x, task = input_rows(rank, part), task_of(part.own, config.train, comm)
    exchange: HaloExchange = NO_EXCHANGE
    if comm.world_size > 1:
        exchange = Halo(comm, part.route, num_own=part.own.num_nodes, precision=config.comm.precision)
    return NodeInputs(part, _context(part, x, rank, exchange), x, task)


def static_inputs(rank: RankContext) -> StaticInputs:
    """Inputs, task and model of a node or link task. Collective."""
    config = rank.config
    if config.task == "link":
        return _link_inputs(rank)
    part, context, x, task = node_inputs(rank)
    model = build_on_features(
        config.model, in_features=x.shape[1], out_features=task.num_outputs, num_nodes=part.num_nodes
    )
    model.reset(torch.Generator().manual_seed(config.seed))
    return StaticInputs(part, context, x, task, model)


def _link_inputs(rank: RankContext) -> StaticInputs:
    config = rank.config
    split = split_edges(rank.static_part.own, shares=config.link.split, fold=config.data.fold)
    part = replace(rank.static_part, own=split.graph)
    x = input_rows(rank, part)
    model = build_static_model(
        config, in_features=x.shape[1], out_features=config.model.hidden, num_nodes=part.num_nodes
    )
    model.reset(torch.Generator().manual_seed(config.seed))
    task = build_link_task(
        part.own,
        split,
        get_link_head(model),
        config=config.train,
        link=config.link,
        seed=config.seed,
        fold=config.data.fold,
        comm=rank.comm,
    )
    return StaticInputs(part, _context(part, x, rank, NO_EXCHANGE), x, task, model)


def build_static_model(
    config: ConfigLike, *, in_features: int, out_features: int, num_nodes: int
) -> Model | Embedded:
    """The model of a node or link task, without its weights."""
    if config.task == "link":
        hidden = config.link.width or config.model.hidden
        return build_link_model(
            config.model,
            in_features=in_features,
            num_nodes=num_nodes,
            kind=config.link.static_head,
            hidden=hidden,
        )
    return build_on_features(
        config.model, in_features=in_features, out_features=out_features, num_nodes=num_nodes
    )


def require_features(model: nn.Module, part: Part, method: str) -> Model:
    """The model if it reads features; a model that learns a row for each node is refused."""
    if not isinstance(model, Model):
        raise ValueError(
            f"{part.own.name}: method {method} reads features, but there are none; use method full"
        )
    return model


def input_rows(rank: RankContext, part: Part) -> Rows:
    """The input rows of a rank's own nodes; a plain GCN alone reads narrow numbers. Collective.

    The scaling of standardised columns is written into the folder of the run.
    """
    config, scaling = rank.config, None
    if config.data.normalize == "standard" and part.own.x is not None:
        scaling = measure_scaling(part.own, rank.comm)
        if rank.comm.rank == 0:
            save_scaling(scaling, rank.scratch)
    return inputs.input_rows(part.own, config.data, config.model, scratch=rank.scratch, scaling=scaling)


def layer_room(
    comm: Comm, part: Part, model: Model | Embedded, x: Rows, *, ranks: int, budget_mb: float, scratch: Path
) -> Room | None:
    """Room for the activations of all nodes while they are scored; None where they fit into memory. Collective."""
    widest = model_of(model).widest
    needed = 3 * 4 * part.num_nodes * widest  # what a layer reads, what it aggregates, what it writes
    large = isinstance(x, Streamed) or needed > usable_memory_bytes() / 2
    anyone = int(comm.all_reduce(torch.tensor([int(large)]), label="control"))
    return make_room(ranks=ranks, budget_mb=budget_mb, scratch=scratch) if anyone else None


def make_room(*, ranks: int, budget_mb: float, scratch: Path) -> Room:
    """Room on disk for activations, and a share of the memory."""
    budget = min(budget_mb * 1e6, usable_memory_bytes() / (8 * ranks))
    return Room(spill_to(scratch), int(budget))


def _context(part: Part, x: Rows, rank: RankContext, exchange: HaloExchange) -> Context:
    context = part.context(exchange, narrow=rank.config.comm.narrow)
    on_disk = rank.config.data.inputs == "stream" and x.shape[1] > 0
    return replace(context, spill=spill_to(rank.scratch)) if on_disk else context
