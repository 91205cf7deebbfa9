"""Cutting any graph in any way: nothing is lost or duplicated, and parts agree on what they exchange."""

from collections import Counter
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu.context import NO_EXCHANGE, ExchangeMode
from siafu.graph import Graph
from siafu.partition.cut import NODE_FIELDS, Part, cut, whole_part


class Case(NamedTuple):
    """A graph, and who owns which of its nodes."""

    graph: Graph
    part_of_node: Tensor
    parts: int
    order: Tensor | None


@st.composite
def cases(draw: Any) -> Case:
    """Directed graphs with loops, repeated edges and isolated nodes; parts of any size, the empty one included."""
    nodes = draw(st.integers(1, 8))
    node = st.integers(0, nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=24))
    weighted, known, moved = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    split = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=nodes, max_size=nodes)))
    about: dict[str, Any] = {
        "x": torch.arange(2 * nodes).view(nodes, 2).float(),
        "y": torch.arange(nodes) - 1,
    }
    about |= {"train_mask": split == 0, "val_mask": split == 1, "test_mask": split == 2}
    graph = Graph.from_edges(
        torch.tensor(edges, dtype=torch.int64).view(-1, 2).T,
        edge_weight=torch.arange(1, len(edges) + 1).float() if weighted else None,
        num_nodes=nodes,
        name="drawn",
        **(about if known else {}),
    )
    graph = replace(graph, class_names=tuple(map(str, range(nodes))) if known else None)
    if moved:
        graph = graph.reordered(torch.tensor(draw(st.permutations(range(nodes)))))
    parts = draw(st.integers(1, 5))
    owner = torch.tensor(
        draw(st.lists(st.integers(0, parts - 1), min_size=nodes, max_size=nodes)), dtype=torch.int32
    )
    order = torch.tensor(draw(st.permutations(range(nodes)))) if draw(st.booleans()) else None
    return Case(graph, owner, parts, order)


def ids_of(graph: Graph) -> Tensor:
    """The user's row number of each row."""
    return torch.arange(graph.num_nodes) if graph.node_id is None else graph.node_id


def edges_of(graph: Graph, source_id: Tensor) -> Counter[tuple[int, int, float]]:
    """Source and target by the user's numbers, with the weight; each as often as it stands there."""
    target = ids_of(graph).repeat_interleave(graph.indptr.diff())
    weight = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    return Counter(
        zip(source_id[graph.indices.long()].tolist(), target.tolist(), weight.tolist(), strict=True)
    )


def cut_up(case: Case) -> list[Part]:
    made = cut(case.graph, case.part_of_node, parts=case.parts, order=case.order)
    return [one.part(case.graph) for one in made]


def source_id(part: Part) -> Tensor:
    return torch.cat([ids_of(part.own), part.halo_id])


drawn = given(cases())
some = settings(max_examples=60, deadline=None)


@some
@drawn
def test_every_node_has_one_owner_and_stands_where_the_order_puts_it(case: Case) -> None:
    parts, user_id = cut_up(case), ids_of(case.graph)
    order = torch.arange(case.graph.num_nodes) if case.order is None else case.order
    assert [part.number for part in parts] == list(range(case.parts))
    for part in parts:
        mine = order[case.part_of_node[order] == part.number]
        assert part.own.node_id is not None
        assert part.own.node_id.tolist() == user_id[mine].tolist()
        assert part.num_nodes == case.graph.num_nodes
        assert part.own.num_nodes == mine.numel()


@some
@drawn
def test_every_edge_is_there_once_with_its_weight(case: Case) -> None:
    parts = cut_up(case)
    total = sum((edges_of(part.own, source_id(part)) for part in parts), Counter[tuple[int, int, float]]())
    assert total == edges_of(case.graph, ids_of(case.graph))
    assert all((part.own.edge_weight is None) == (case.graph.edge_weight is None) for part in parts)


@some
@drawn
def test_the_halo_is_the_neighbours_that_others_own_by_owner(case: Case) -> None:
    owner_of = torch.empty_like(case.part_of_node)
    owner_of[ids_of(case.graph)] = case.part_of_node
    edges = edges_of(case.graph, ids_of(case.graph))
    for part in cut_up(case):
        own = set(ids_of(part.own).tolist())
        read = {source for source, target, _ in edges if target in own}
        assert sorted(part.halo_id.tolist()) == sorted(read - own)
        owner = owner_of[part.halo_id]
        assert owner.tolist() == sorted(owner.tolist())
        assert part.route.recv == tuple(torch.bincount(owner, minlength=case.parts).tolist())


@some
@drawn
def test_rows_ascend_with_own_columns_before_the_halo(case: Case) -> None:
    for part in cut_up(case):
        indptr, indices = part.own.indptr, part.own.indices
        assert (int(indptr[0]), int(indptr[-1]), indices.dtype) == (0, indices.numel(), torch.int32)
        for row in range(part.own.num_nodes):
            columns = indices[indptr[row] : indptr[row + 1]].tolist()
            assert columns == sorted(columns)
        read = set(indices[indices >= part.own.num_nodes].tolist())
        assert read == set(range(part.own.num_nodes, source_id(part).numel())), "no halo row is there in vain"


@some
@drawn
def test_sender_and_receiver_agree_on_rows_and_their_order(case: Case) -> None:
    parts = cut_up(case)
    for one in parts:
        assert (one.route.send[one.number], one.route.recv[one.number]) == (0, 0)
        for other, index in enumerate(one.route.index.split(list(one.route.send))):
            gets = parts[other].halo_id.split(list(parts[other].route.recv))[one.number]
            assert ids_of(one.own)[index].tolist() == gets.tolist()
            assert index.tolist() == sorted(index.tolist()), "rows are gathered from first to last"


@some
@drawn
def test_everything_that_is_known_of_a_node_goes_with_it(case: Case) -> None:
    rows = torch.empty(case.graph.num_nodes, dtype=torch.int64)
    rows[ids_of(case.graph)] = torch.arange(case.graph.num_nodes)
    for part in cut_up(case):
        assert (part.own.name, part.own.class_names) == ("drawn", case.graph.class_names)
        for field in NODE_FIELDS:
            of_all, found = getattr(case.graph, field), getattr(part.own, field)
            assert (found is None) == (of_all is None)
            if found is not None:
                assert (found.dtype, found.shape[1:]) == (of_all.dtype, of_all.shape[1:])
                assert found.tolist() == of_all[rows[ids_of(part.own)]].tolist(), field


class Neighbours:
    """A stand-in for the halo exchange, which is never called here."""

    has_halo = True

    def begin(self, label: str) -> None: ...
    def start_gather(self, x_own: Tensor, mode: ExchangeMode) -> Any: ...
    def start_reduce(self, grad_halo: Tensor) -> Any: ...
    def all_reduce(self, values: Tensor) -> Any: ...
    def state(self) -> Any: ...
    def load_state(self, state: dict[str, Tensor]) -> None: ...


@some
@drawn
def test_the_block_of_a_part_has_all_its_sources(case: Case) -> None:
    exchange = Neighbours()
    for part in cut_up(case):
        context = part.context(exchange, narrow=False)
        assert (context.exchange, context.narrow) == (exchange, False)
        assert (context.num_dst, context.num_given) == (part.own.num_nodes, part.own.num_nodes)
        assert context.num_src == source_id(part).numel()
        assert context.block.edge_weight is part.own.edge_weight
        assert context.node_id is not None
        assert context.node_id.tolist() == source_id(part).tolist()
        assert context.given_id is not None
        assert context.given_id.tolist() == ids_of(part.own).tolist()


@some
@drawn
def test_a_graph_in_one_part_is_the_whole(case: Case) -> None:
    part = whole_part(case.graph)
    assert part.own is case.graph
    assert (part.number, part.num_nodes, part.halo_id.numel()) == (0, case.graph.num_nodes, 0)
    assert (part.route.send, part.route.recv, part.route.index.numel()) == ((0,), (0,), 0)
    context = part.context(narrow=False)
    assert (context.narrow, context.num_src, context.exchange) == (False, case.graph.num_nodes, NO_EXCHANGE)
    (alone,) = cut_up(case._replace(part_of_node=torch.zeros_like(case.part_of_node), parts=1))
    assert alone.halo_id.numel() == 0
    found = alone.context()
    assert edges_of(alone.own, ids_of(alone.own)) == edges_of(case.graph, ids_of(case.graph))
    assert (found.num_src, found.exchange) == (case.graph.num_nodes, NO_EXCHANGE)


def test_a_part_with_a_halo_needs_an_exchange() -> None:
    graph = Graph.from_edges([[0], [1]])
    _, part = cut_up(Case(graph, torch.tensor([0, 1], dtype=torch.int32), 2, None))
    with pytest.raises(AssertionError):
        part.context()
