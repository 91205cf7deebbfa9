"""Contexts: what a layer is given, what they keep, and where the transpose lies."""

from dataclasses import replace

import torch
from torch import Tensor

from siafu.comm import single_rank_comm
from siafu.comm.halo import Halo
from siafu.comm.route import empty_route
from siafu.context import NO_EXCHANGE, Context, context_of
from siafu.graph import Block, Graph
from siafu.nn import Gcn


def part() -> Block:
    """Two destinations of three sources."""
    return Block(
        torch.tensor([0, 1, 3]),
        torch.tensor([1, 0, 2], dtype=torch.int32),
        3,
        node_id=torch.tensor([7, 8, 9]),
    )


def test_a_layer_is_given_all_sources_unless_there_is_a_halo() -> None:
    halo = Halo(single_rank_comm(), empty_route(), num_own=2)
    alone, cut = Context(part()), Context(part(), halo)
    assert (alone.has_halo, alone.num_given, cut.has_halo, cut.num_given) == (False, 3, True, 2)
    assert alone.given_id is not None
    assert cut.given_id is not None
    assert (alone.given_id.tolist(), cut.given_id.tolist()) == ([7, 8, 9], [7, 8])
    assert (cut.num_dst, cut.num_src, cut.num_edges, cut.node_id) == (2, 3, 3, cut.block.node_id)


def test_without_a_halo_nothing_travels() -> None:
    x = torch.ones(3, 2)
    assert NO_EXCHANGE.start_gather(x, "training")().shape == (0, 2)
    NO_EXCHANGE.start_reduce(x[:0])(x)
    assert x.eq(1).all()
    assert NO_EXCHANGE.all_reduce(x) is x
    assert NO_EXCHANGE.state() == {}


def test_what_a_context_keeps_is_computed_once_and_not_for_other_static_rows() -> None:
    calls = []

    def compute() -> Tensor:
        calls.append(1)
        return torch.ones(1)

    static = part().with_static(torch.ones(3, 1))
    assert static.keep("a", compute) is static.keep("a", compute)
    assert len(calls) == 1
    static.with_static(torch.zeros(3, 1)).keep("a", compute)
    assert len(calls) == 2


def test_the_scales_of_a_bare_block_are_kept_with_it() -> None:
    block = Graph.from_edges([[0, 1], [1, 0]]).block
    assert context_of(context := block.with_static(torch.ones(2, 1))) is context
    Gcn(1, 1)(block, torch.ones(2, 1))
    kept = dict(block.cache)
    assert kept
    Gcn(1, 1)(block, torch.ones(2, 1))
    assert all(block.cache[name] is value for name, value in kept.items())


def test_the_transpose_lies_where_it_is_told_to() -> None:
    context = Context(part())
    made: list[Tensor] = []

    def spill(rows: int, width: int) -> Tensor:
        made.append(torch.zeros(rows, width))
        return made[-1]

    turned = replace(context, spill=spill).turned
    assert torch.equal(turned.indices, context.turned.indices)
    assert turned.indices.data_ptr() == made[0].data_ptr()
    assert context.turned is context.block.turned
