"""The loader's minibatches are PyG's, and the same for any number of threads and ranks."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import siafu
from siafu.comm import Comm
from siafu.graph import Graph
from siafu.launch.elastic import launch
from siafu.launch.local import run_threads
from siafu.partition.cut import Part, cut, whole_part
from siafu.sampling import KeyedPermutation
from siafu.store import write_store

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric import EdgeIndex
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.nn import GATConv, SAGEConv
    from torch_geometric.utils import k_hop_subgraph, trim_to_layer

NODES, ISOLATED = 120, 119


def data_of(**others: Any) -> Data:
    """120 nodes with loops and repeated edges; the last one is isolated."""
    draw = torch.Generator().manual_seed(3)
    edges = torch.randint(NODES - 1, (2, 1000), generator=draw)
    edges = torch.cat([edges, edges[:, :30]], 1)
    return Data(
        x=torch.randn(NODES, 5, generator=draw),
        y=torch.randint(3, (NODES,), generator=draw),
        edge_index=edges,
        edge_attr=torch.randn(edges.shape[1], 2, generator=draw),
        train_mask=torch.rand(NODES, generator=draw) < 0.4,
        num_nodes=NODES,
        **others,
    )


def graph_of(**others: Any) -> Graph:
    data = data_of()
    del data.edge_attr  # which a graph does not hold
    return replace(Graph.from_pyg(data), **others)


def edges_of(batch: Data) -> list[tuple[int, int]]:
    """By the user's ids, in their order."""
    return [(source, target) for source, target in batch.n_id[batch.edge_index].T.tolist()]


class Sage(nn.Module):
    """A user's PyG Data."""

    def __init__(self, layer: Any = SAGEConv) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = layer(5, 8), layer(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def test_a_minibatch_has_the_fields_of_pyg() -> None:
    data = data_of(kind="a word")
    loader = siafu.NeighborLoader(data, [4, 3], input_nodes=data.train_mask, batch_size=16)
    batch = next(iter(loader))
    seeds = data.train_mask.nonzero()[:16, 0]
    assert isinstance(batch, Data)
    assert batch.batch_size == 16
    assert torch.equal(batch.n_id[:16], seeds)
    assert torch.equal(batch.input_id, seeds)
    assert batch.n_id.unique().numel() == batch.num_nodes == batch.n_id.numel()
    for name in ("x", "y", "train_mask"):
        assert torch.equal(batch[name], data[name][batch.n_id]), name
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert batch.edge_index.dtype == torch.int64
    assert sum(batch.num_sampled_nodes) == batch.num_nodes
    assert sum(batch.num_sampled_edges) == batch.num_edges
    assert len(batch.num_sampled_nodes) == 3
    assert len(batch.num_sampled_edges) == 2
    assert batch.kind == "a word"
    assert torch.equal(data.edge_index, data_of().edge_index)  # what was given is as it was


def test_edges_may_be_of_pygs_own_type_and_rows_of_any() -> None:
    data = data_of(words=np.arange(NODES), wide=torch.zeros(NODES, 2, 3, dtype=torch.bfloat16))
    wanted = next(iter(siafu.NeighborLoader(data, [4], batch_size=30)))
    data.edge_index = EdgeIndex(data.edge_index, sparse_size=(NODES, NODES))
    data.x = data.x.clone().requires_grad_()
    batch = next(iter(siafu.NeighborLoader(data, [4], batch_size=30)))
    assert torch.equal(batch.edge_index, wanted.edge_index)
    assert torch.equal(batch.words, batch.n_id)
    assert batch.wide.shape == (batch.num_nodes, 2, 3)
    batch.x.sum().backward()
    assert data.x.grad.sum() == 5 * batch.num_nodes


def test_nodes_that_were_met_in_the_last_hop_are_expanded_once_and_keep_their_fanout() -> None:
    data = data_of()
    degree = torch.bincount(data.edge_index[1], minlength=NODES)
    for batch in siafu.NeighborLoader(data, [4, 3], batch_size=10):
        ends = torch.tensor(batch.num_sampled_nodes).cumsum(0).tolist()
        drawn = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        wanted = degree[batch.n_id].clone()
        wanted[: ends[0]].clamp_(max=4)
        wanted[ends[0] : ends[1]].clamp_(max=3)
        wanted[ends[1] :] = 0
        assert torch.equal(drawn, wanted)
        assert batch.e_id.unique().numel() == batch.e_id.numel()  # without replacement
        assert int(batch.edge_index[0, : batch.num_sampled_edges[0]].max()) < ends[1]


def test_with_replacement_every_node_that_has_neighbours_draws_all() -> None:
    batch = next(iter(siafu.NeighborLoader(data_of(), [50], batch_size=NODES, replace=True)))
    drawn = torch.bincount(batch.edge_index[1], minlength=NODES)
    assert drawn[:-1].eq(50).all()
    assert drawn[ISOLATED] == 0


def test_all_neighbours_are_the_neighbourhood() -> None:
    data = data_of()
    for batch in siafu.NeighborLoader(data, [-1, -1], batch_size=3, input_nodes=[7, 0, 99]):
        nodes, edges, _, mask = k_hop_subgraph([7, 0, 99], 2, data.edge_index, num_nodes=NODES)
        assert batch.n_id.sort().values.tolist() == nodes.tolist()
        inner = batch.n_id[: sum(batch.num_sampled_nodes[:2])]
        wanted = torch.isin(data.edge_index[1], inner).nonzero()[:, 0]
        assert batch.e_id.sort().values.tolist() == wanted.tolist()
        assert edges.shape[1] == mask.sum()


@pytest.mark.parametrize("layer", [SAGEConv, GATConv])
@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_a_pyg_model_says_of_seeds_what_it_says_on_the_whole_graph(layer: Any, subgraph_type: str) -> None:
    data, model = data_of(), Sage(layer)
    whole_graph = model(data.x, data.edge_index)
    for batch in siafu.NeighborLoader(data, [-1, -1], batch_size=32, subgraph_type=subgraph_type):
        found = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(found, whole_graph[batch.input_id], rtol=1e-5, atol=1e-5)


def test_a_pyg_model_trains_on_minibatches() -> None:
    graph = siafu.load("community:nodes=600,classes=3,features=5,degree=10,seed=1")
    loader = siafu.NeighborLoader(graph, [5, 5], graph.train_mask, batch_size=64, shuffle=True)
    model = Sage()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(12):
        total = 0.0
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    assert losses[-1] < 0.7 * losses[0]


def test_trimming_to_layers_changes_nothing() -> None:
    data, model = data_of(), Sage()
    for batch in siafu.NeighborLoader(data, [4, 3], batch_size=16):
        wanted = model(batch.x, batch.edge_index)[: batch.batch_size]
        x, edges = batch.x, batch.edge_index
        for number, layer in enumerate((model.first, model.second)):
            x, edges, _ = trim_to_layer(number, batch.num_sampled_nodes, batch.num_sampled_edges, x, edges)
            x = layer(x, edges).relu() if number == 0 else layer(x, edges)
        torch.testing.assert_close(x[: batch.batch_size], wanted)


def test_batches_depend_on_no_thread() -> None:
    graph = siafu.load("community:nodes=3000,classes=3,features=4")

    def batches(threads: int) -> list[Data]:
        def rank(_: Comm) -> list[Data]:
            return list(siafu.NeighborLoader(graph, [10, 10], batch_size=1000, shuffle=True, seed=5))

        (found,) = run_threads(rank, ranks=1, threads=threads)
        return found

    one = batches(1)
    for threads in (2, 8):
        for batch, wanted in zip(batches(threads), one, strict=True):
            assert torch.equal(batch.n_id, wanted.n_id)
            assert torch.equal(batch.edge_index, wanted.edge_index)
            assert torch.equal(batch.x, wanted.x)


def test_the_same_edges_in_another_order_give_the_same_batches() -> None:
    data = data_of()
    order = torch.randperm(data.num_edges, generator=torch.Generator().manual_seed(1))
    other = data_of()
    other.edge_index, other.edge_attr = data.edge_index[:, order], data.edge_attr[order]
    pairs = [siafu.NeighborLoader(each, [3, 2], batch_size=20) for each in (data, other, graph_of())]
    for one, two, three in zip(*pairs, strict=True):
        assert edges_of(one) == edges_of(two) == edges_of(three)


@pytest.mark.parametrize("drop_last", [False, True])
def test_shuffled_epochs_have_other_orders_and_all_seeds(drop_last: bool) -> None:
    data = data_of()
    how = {"batch_size": 50, "shuffle": True, "drop_last": drop_last}
    loader = siafu.NeighborLoader(data, [2], **how)
    assert len(loader) == (2 if drop_last else 3)
    epochs = [torch.cat([batch.input_id for batch in loader]) for _ in range(3)]
    assert all(each.unique().numel() == (100 if drop_last else 120) for each in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    again = siafu.NeighborLoader(data, [2], **how)
    again.epoch = 2
    assert torch.equal(torch.cat([batch.input_id for batch in again]), epochs[2])
    other = siafu.NeighborLoader(data, [2], **how, seed=1)
    assert not torch.equal(torch.cat([batch.input_id for batch in other]), epochs[0])


def test_epochs_draw_anew_and_the_same_seed_draws_the_same() -> None:
    loader = siafu.NeighborLoader(data_of(), [3], batch_size=NODES)
    first, second = next(iter(loader)), next(iter(loader))
    assert edges_of(first) != edges_of(second)
    assert edges_of(next(iter(siafu.NeighborLoader(data_of(), [3], batch_size=NODES)))) == edges_of(first)


@pytest.mark.parametrize("count", [1, 2, 7, 64, 65, 1000])
def test_a_shuffled_order_names_each_number_once(count: int) -> None:
    order = KeyedPermutation(count, key=9).at(torch.arange(count))
    assert order.sort().values.tolist() == list(range(count))
    if count > 64:
        drift = (order - torch.arange(count)).abs().double().mean() / count
        assert 0.2 < drift < 0.45  # a third of the way, on average
        assert not torch.equal(order, KeyedPermutation(count, key=8).at(torch.arange(count)))


def test_an_isolated_seed_is_a_minibatch_of_its_own() -> None:
    batch = next(iter(siafu.NeighborLoader(data_of(), [3, 3], input_nodes=torch.tensor([ISOLATED]))))
    assert batch.n_id.tolist() == [ISOLATED]
    assert batch.edge_index.shape == (2, 0)
    assert batch.edge_attr.shape == (0, 2)
    assert batch.num_sampled_nodes == [1, 0, 0]
    assert batch.num_sampled_edges == [0, 0]


def test_an_index_is_counted_by_its_places_and_may_repeat() -> None:
    batch = next(iter(siafu.NeighborLoader(data_of(), [-1], input_nodes=[5, 3, 5], batch_size=3)))
    assert batch.input_id.tolist() == [0, 1, 2]
    assert batch.n_id[:3].tolist() == [5, 3, 5]
    both = [batch.e_id[batch.edge_index[1] == row].tolist() for row in (0, 2)]
    assert both[0] == both[1]


@given(
    edges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=14),
    seeds=st.lists(st.integers(0, 5), min_size=1, max_size=9),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 2]), min_size=1, max_size=3),
    replace=st.booleans(),
    subgraph_type=st.sampled_from(["directional", "bidirectional", "induced"]),
)
def test_repeated_seeds_have_rows_of_their_own_and_edges_of_the_graph(
    edges: list[tuple[int, int]],
    seeds: list[int],
    fanouts: list[int],
    replace: bool,
    subgraph_type: str,
) -> None:
    pairs = torch.tensor(edges, dtype=torch.int64).view(-1, 2).T
    data = Data(x=torch.arange(6.0)[:, None], edge_index=pairs, num_nodes=6)
    how: dict[str, Any] = {"replace": replace, "subgraph_type": subgraph_type, "batch_size": len(seeds)}
    batch = next(iter(siafu.NeighborLoader(data, fanouts, input_nodes=seeds, **how)))
    assert batch.batch_size == len(seeds)
    assert batch.input_id.tolist() == list(range(len(seeds)))
    assert batch.n_id[: len(seeds)].tolist() == seeds
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert batch.n_id[len(seeds) :].unique().numel() == batch.num_nodes - len(seeds)
    assert not set(batch.n_id[len(seeds) :].tolist()) & set(seeds)
    known = set(edges) | ({(b, a) for a, b in edges} if subgraph_type == "bidirectional" else set())
    assert set(edges_of(batch)) <= known
    # The minibatch of each seed once, of which every row has the in-edges.
    once = next(iter(siafu.NeighborLoader(data, fanouts, input_nodes=list(dict.fromkeys(seeds)), **how)))
    for row, node in enumerate(batch.n_id.tolist()):
        its = batch.edge_index[1] == row
        wanted = once.edge_index[1] == once.n_id.tolist().index(node)
        assert batch.n_id[batch.edge_index[0, its]].tolist() == once.n_id[once.edge_index[0, wanted]].tolist()
        assert batch.e_id[its].tolist() == once.e_id[wanted].tolist()
    assert set(batch.edge_index[0].tolist()) <= {seeds.index(node) for node in seeds} | set(
        range(len(seeds), batch.num_nodes)
    )
    if subgraph_type == "directional":
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
        assert batch.num_sampled_nodes[0] == len(seeds)


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_a_pyg_model_says_the_same_of_a_seed_however_often_it_repeats(subgraph_type: str) -> None:
    data, model = data_of(), Sage()
    how: dict[str, Any] = {"subgraph_type": subgraph_type, "batch_size": 6}
    batch = next(iter(siafu.NeighborLoader(data, [3, 2], input_nodes=[7, 3, 7, 7, 99, 3], **how)))
    once = next(iter(siafu.NeighborLoader(data, [3, 2], input_nodes=[7, 3, 99], **how)))
    found, wanted = (model(each.x, each.edge_index) for each in (batch, once))
    torch.testing.assert_close(found[:6], wanted[[0, 1, 0, 0, 2, 1]])
    if subgraph_type == "directional":
        x, edges, _ = trim_to_layer(
            1, batch.num_sampled_nodes, batch.num_sampled_edges, batch.x, batch.edge_index
        )
        assert x.shape[0] == sum(batch.num_sampled_nodes[:2])
        assert edges.shape[1] == batch.num_sampled_edges[0] == int((batch.edge_index[1] < 6).sum())


def test_induced_and_bidirectional_subgraphs() -> None:
    data = data_of()
    how = {"num_neighbors": [3, 2], "batch_size": 8}
    for plain, inner, both in zip(
        siafu.NeighborLoader(data, **how),
        siafu.NeighborLoader(data, **how, subgraph_type="induced"),
        siafu.NeighborLoader(data, **how, subgraph_type="bidirectional"),
        strict=True,
    ):
        assert torch.equal(plain.n_id, inner.n_id)
        known = torch.isin(data.edge_index, plain.n_id).all(0)
        assert inner.e_id.sort().values.tolist() == known.nonzero()[:, 0].tolist()
        assert torch.equal(inner.n_id[inner.edge_index], data.edge_index[:, inner.e_id])
        there = set(edges_of(plain))
        assert sorted(edges_of(both)) == sorted(there | {(target, source) for source, target in there})
        assert torch.equal(both.edge_attr, data.edge_attr[both.e_id])
        assert "num_sampled_nodes" not in inner
        assert "num_sampled_edges" not in both


def test_a_graph_gives_its_weights_and_rows_in_its_own_order() -> None:
    graph = Graph.from_edges(
        data_of().edge_index, x=data_of().x, edge_weight=torch.rand(1030), num_nodes=NODES
    ).reordered(torch.arange(NODES).flip(0))
    assert graph.x is not None
    assert graph.edge_weight is not None
    batch = next(iter(siafu.NeighborLoader(graph, [4, 4], batch_size=9)))
    assert torch.equal(batch.x, graph.x[batch.n_id])
    assert torch.equal(batch.edge_weight, graph.edge_weight[batch.e_id])
    assert torch.equal(graph.indices[batch.e_id].long(), batch.n_id[batch.edge_index[0]])


def test_features_in_int8_are_served_as_numbers() -> None:
    levels, scale = torch.arange(NODES * 2).view(NODES, 2).to(torch.int8), torch.rand(NODES)
    graph = graph_of(x=levels, x_scale=scale)
    (batch,) = siafu.NeighborLoader(graph, [2], batch_size=NODES)
    assert torch.equal(batch.x, (levels.float() * scale[:, None])[batch.n_id])
    assert "x_scale" not in batch


def test_a_name_a_transform_and_what_changes_nothing() -> None:
    loader = siafu.NeighborLoader(
        "karate",
        [5],
        num_workers=2,
        persistent_workers=True,
        disjoint=False,
        transform=lambda batch: batch.n_id,
    )
    assert len(list(loader)) == len(loader) == 34
    assert all(isinstance(each, Tensor) for each in loader)


def test_a_store_is_served_from_disk_and_damage_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    graph = graph_of()
    write_store(graph, tmp_path / "store")
    loaders = [siafu.NeighborLoader(each, [3, 2], batch_size=50) for each in (graph, tmp_path / "store")]
    for wanted, batch in zip(*loaders, strict=True):
        assert torch.equal(batch.n_id, wanted.n_id)
        assert torch.equal(batch.edge_index, wanted.edge_index)
        assert torch.equal(batch.x, wanted.x)
        assert torch.equal(batch.train_mask, wanted.train_mask)
    edges = tmp_path / "store" / "indices.bin"
    edges.write_bytes(b"\xff\xff\xff\x0f" * (edges.stat().st_size // 4))
    with pytest.raises(ValueError, match="an edge names node 268435455 of 120 nodes: the store is damaged"):
        list(siafu.NeighborLoader(str(tmp_path / "store"), [3, 2]))


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"time_attr": "t"}, ValueError, "time_attr is 't'; expected None"),
        ({"weight_attr": "w"}, ValueError, "weight_attr is 'w'"),
        ({"disjoint": True}, ValueError, "disjoint is True; expected False"),
        ({"sufle": True}, TypeError, "no argument 'sufle'; did you mean shuffle"),
        ({"num_neighbors": [3, -2]}, ValueError, r"num_neighbors is \[3, -2\]"),
        (
            {"num_neighbors": []},
            ValueError,
            r"num_neighbors is \[\]; expected whole numbers up to 1000000, one a hop",
        ),
        ({"num_neighbors": {"a": [3]}}, ValueError, "dict"),
        ({"batch_size": 0}, ValueError, "batch_size is 0; expected a whole number from 1"),
        ({"subgraph_type": "whole"}, ValueError, "subgraph_type is 'whole'; expected one of directional"),
        (
            {"input_nodes": torch.ones(3, dtype=torch.bool)},
            ValueError,
            r"mask of shape \(3,\); expected \(120,\)",
        ),
        ({"input_nodes": torch.tensor([3, 120])}, ValueError, "names node 120; expected 0 to 119"),
        ({"input_nodes": torch.ones(2, 2)}, ValueError, "one dimension"),
        ({"input_nodes": ("paper", None)}, ValueError, "type of nodes"),
        ({"data": HeteroData()}, ValueError, "HeteroData: several types of nodes; call to_homogeneous"),
        ({"data": Data(x=torch.ones(2, 1))}, ValueError, "Data has no edge_index; expected edge_index alone"),
        ({"data": data_of(adj_t=torch.eye(NODES).to_sparse())}, ValueError, "Data has adj_t"),
        ({"data": 7}, ValueError, "data is a int; expected a torch_geometric.data.Data"),
        ({"data": whole_part(graph_of())}, ValueError, "give comm too"),
    ],
)
def test_unsupported_arguments_are_refused(how: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        siafu.NeighborLoader(**{"data": data_of(), "num_neighbors": [3], **how})


def test_without_pyg_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(ImportError, match=r"pip install 'siafu\[pyg\]'"):
        siafu.NeighborLoader(graph_of(), [3])


# Several ranks.


def parts_of(graph: Graph, ranks: int, share: float) -> list[Part]:
    """Parts in which the first rank has ``share`` of the nodes."""
    draw = torch.Generator().manual_seed(ranks)
    owner = torch.randint(1, ranks, (NODES,), generator=draw).to(torch.int32)
    owner[torch.rand(NODES, generator=draw) < share] = 0
    order = torch.randperm(NODES, generator=draw)
    return [one.part(graph) for one in cut(graph, owner, parts=ranks, order=order)]


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("share", [0.8, 0.02])
def test_ranks_have_the_minibatches_of_one(share: float, subgraph_type: str) -> None:
    weight = torch.rand(1030, generator=torch.Generator().manual_seed(1))
    graph = graph_of(edge_weight=weight)
    how: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 16, "shuffle": True, "seed": 7}
    how["subgraph_type"] = subgraph_type
    parts = parts_of(graph, 2, share)

    def rank(comm: Comm) -> list[Data]:
        part = parts[comm.rank]
        return list(siafu.NeighborLoader(part, input_nodes=part.own.train_mask, comm=comm, **how))

    one = siafu.NeighborLoader(graph, input_nodes=graph.train_mask, **how)
    found = run_threads(rank, ranks=2, threads=1)
    assert len(found[0]) == len(found[1]) == len(one)
    for number, (wanted, *batches) in enumerate(zip(one, *found, strict=True)):
        seeds = [batch.n_id[: batch.batch_size] for batch in batches]
        assert sorted(torch.cat(seeds).tolist()) == sorted(wanted.input_id.tolist())
        for mine, batch in zip(seeds, batches, strict=True):
            # The one loader, asked for this rank's share of the minibatch.
            share_of_it = one._source.batch(subgraph := one._sample_around(mine, key_of(0, number)))
            assert torch.equal(batch.n_id, share_of_it.n_id)
            assert torch.equal(batch.edge_index, subgraph.edge_index)
            for name in ("x", "y", "train_mask", "edge_weight"):
                assert torch.equal(batch[name], share_of_it[name]), name
            assert "e_id" not in batch
            assert batch.get("num_sampled_nodes") == subgraph.hop_nodes


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
def test_seeds_may_repeat_on_several_ranks(subgraph_type: str) -> None:
    graph = graph_of()
    how: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 16, "subgraph_type": subgraph_type}
    parts = parts_of(graph, 2, 0.5)

    def rank(comm: Comm) -> list[Data]:
        rows = torch.arange(10).repeat(3)
        return list(siafu.NeighborLoader(parts[comm.rank], input_nodes=rows, comm=comm, **how))

    pairs = data_of().edge_index
    pairs = torch.cat([pairs, pairs.flip(0)], 1) if subgraph_type == "bidirectional" else pairs
    known = {(source, target) for source, target in pairs.T.tolist()}
    for batches in run_threads(rank, ranks=2, threads=1):
        assert sum(batch.batch_size for batch in batches) == 30
        for batch in batches:
            assert batch.n_id[: batch.batch_size].unique().numel() < batch.batch_size
            assert torch.equal(batch.x, graph.x[batch.n_id])  # type: ignore[index]
            assert set(edges_of(batch)) <= known


def key_of(epoch: int, number: int) -> int:
    from siafu.nn.dropout import mix

    return mix(mix(mix(7) ^ epoch) ^ number)


def test_gradients_of_all_ranks_add_up_to_those_of_one() -> None:
    graph, how = graph_of(), {"num_neighbors": [-1, -1], "batch_size": 16, "shuffle": True}
    parts, models = parts_of(graph, 2, 0.02), [Sage(), Sage(), Sage()]

    def gradients(model: nn.Module, batch: Data) -> Tensor:
        model.zero_grad()
        out, y = model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
        (nn.functional.cross_entropy(out, y, reduction="sum") / 16).backward()
        return torch.cat([weight.grad.reshape(-1) for weight in model.parameters()])  # type: ignore[union-attr]

    def rank(comm: Comm) -> list[tuple[int, Tensor]]:
        part, model = parts[comm.rank], models[comm.rank]
        loader = siafu.NeighborLoader(part, input_nodes=part.own.train_mask, comm=comm, **how)
        return [
            (batch.batch_size, comm.all_reduce(gradients(model, batch), label="gradients"))
            for batch in loader
        ]

    found = run_threads(rank, ranks=2, threads=1)
    assert 0 in [size for size, _ in found[0]]  # empty minibatches take part
    one = siafu.NeighborLoader(graph, input_nodes=graph.train_mask, **how)
    for (_, summed), batch in zip(found[0], one, strict=True):
        torch.testing.assert_close(summed, gradients(models[2], batch), rtol=1e-5, atol=1e-6)


def test_a_rank_without_seeds_gets_empty_minibatches() -> None:
    graph = graph_of()
    parts = parts_of(graph, 3, 0.0)
    assert parts[0].own.num_nodes == 0

    def rank(comm: Comm) -> list[Data]:
        part = parts[comm.rank]
        seeds = torch.arange(5 * comm.rank)
        return list(siafu.NeighborLoader(part, [2, 2], seeds, batch_size=4, comm=comm))

    found = run_threads(rank, ranks=3, threads=1)
    assert [len(batches) for batches in found] == [4, 4, 4]
    assert [sum(batch.batch_size for batch in batches) for batches in found] == [0, 5, 10]
    for batch in found[0]:
        assert batch.x.shape == (0, 5)
        assert batch.edge_index.shape == (2, 0)
        assert batch.num_nodes == 0
        assert Sage()(batch.x, batch.edge_index).shape == (0, 3)


def test_a_part_of_another_rank_is_refused() -> None:
    parts = parts_of(graph_of(), 2, 0.5)

    def rank(comm: Comm) -> None:
        siafu.NeighborLoader(parts[0] if comm.rank else parts[1], [2], comm=comm)

    with pytest.raises(ValueError, match=r"data is part 1 of 2, but this is rank 0 of 2"):
        run_threads(rank, ranks=2, threads=1)
    with pytest.raises(ValueError, match=r"data is a Graph, but comm is given; expected a Part"):
        run_threads(lambda comm: siafu.NeighborLoader(graph_of(), [2], comm=comm), ranks=1, threads=1)


def test_a_script_is_alone_where_nobody_started_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with siafu.join() as comm:
        part = siafu.part_of("karate", comm)
        loader = siafu.NeighborLoader(part, [-1], batch_size=10, comm=comm)
        assert [batch.batch_size for batch in loader] == [10, 10, 10, 4]


SCRIPT = """
import sys
from pathlib import Path
import torch, siafu
with siafu.join() as comm:
    part = siafu.part_of("karate", comm, by="hash")
    loader = siafu.NeighborLoader(part, [-1, -1], batch_size=8, comm=comm)
    seeds = [batch.n_id[: batch.batch_size] for batch in loader]
    found = torch.cat(comm.all_gather(torch.cat(seeds), label="test"))
    assert found.sort().values.tolist() == list(range(34)), found
    assert len(seeds) == 5 and part.own.num_nodes < 34
    Path(sys.argv[1], f"done-{comm.rank}").touch()
"""


def test_two_processes_serve_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(siafu.__file__).parents[1]))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch([sys.executable, str(script), str(tmp_path)], ranks=2, threads=1, watch=lambda: False)
    assert sorted(each.name for each in tmp_path.glob("done-*")) == ["done-0", "done-1"]
