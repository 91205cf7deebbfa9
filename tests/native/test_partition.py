"""The streaming partitioner: its guarantees for any graph, with and without the compiled core."""

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu import native
from siafu.native import Csr, PartCounts
from siafu.native import partition_reference as reference

anything = settings(max_examples=150, deadline=None)
compiled = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")


@pytest.fixture(params=["core", "reference"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run once on the compiled core and once on the plain twin."""
    if request.param == "reference":
        monkeypatch.setattr(native.core, "kernels", None)
    elif not native.compiled():
        pytest.skip("the core was not compiled")
    return request.param


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def csr_of(src: Tensor, dst: Tensor, num_nodes: int) -> Csr:
    return native.build_csr(dst.to(torch.int32), src.to(torch.int32), num_rows=num_nodes)


def both_ways(src: Tensor, dst: Tensor, num_nodes: int) -> Csr:
    return csr_of(torch.cat([src, dst]), torch.cat([dst, src]), num_nodes)


def planted(communities: int, size: int, *, inside: int, outside: int, seed: int = 0) -> Csr:
    """Communities of shuffled nodes; of each node's draws some fall inside its own, some anywhere."""
    random = torch.Generator().manual_seed(seed)
    num_nodes = communities * size
    name = torch.randperm(num_nodes, generator=random)
    node = torch.arange(num_nodes)
    home = node.repeat_interleave(inside)
    near = home // size * size + torch.randint(size, home.shape, generator=random)
    far = torch.randint(num_nodes, (num_nodes * outside,), generator=random)
    one, other = torch.cat([home, node.repeat_interleave(outside)]), torch.cat([near, far])
    return both_ways(name[one], name[other], num_nodes)


def grid(side: int) -> Csr:
    node = torch.arange(side * side).view(side, side)
    src = torch.cat([node[:, :-1].reshape(-1), node[:-1].reshape(-1)])
    dst = torch.cat([node[:, 1:].reshape(-1), node[1:].reshape(-1)])
    return both_ways(src, dst, side * side)


def cut_of(csr: Csr, part: Tensor) -> float:
    row = torch.arange(part.numel()).repeat_interleave(csr.indptr.diff())
    return float((part[row] != part[csr.indices.long()]).double().mean())


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Csr, Tensor | None, int]:
    """Any directed graph with loops, repeated edges and isolated nodes; training nodes or none; parts."""
    num_nodes = draw(st.integers(1, 30))
    ends = st.integers(0, num_nodes - 1)
    hub = draw(st.lists(ends, max_size=20))
    edges = draw(st.lists(st.tuples(ends, ends), max_size=80)) + [(source, 0) for source in hub]
    src, dst = torch.tensor(edges).reshape(-1, 2).T
    train = draw(
        st.none() | st.lists(st.booleans(), min_size=num_nodes, max_size=num_nodes).map(torch.tensor)
    )
    return csr_of(src, dst, num_nodes), train, draw(st.integers(1, num_nodes))


def assert_promised(csr: Csr, train: Tensor | None, part: Tensor, parts: int) -> None:
    """Every node in a part, none empty; edges a node's above the mean at most, training nodes within their cap."""
    edges_of = csr.indptr.diff()
    trained = torch.ones(part.numel(), dtype=torch.bool) if train is None else train
    assert part.dtype == torch.int32
    assert part.shape == edges_of.shape
    assert part.unique().tolist() == list(range(parts))
    edges = torch.zeros(parts, dtype=torch.int64).index_add_(0, part, edges_of)
    mean = float(edges_of.sum()) / parts
    assert int(edges.max()) <= max(1.05 * mean, mean + int(edges_of.max()))
    most = int(torch.bincount(part[trained], minlength=parts).max())
    assert most <= max(1.10 * float(trained.sum()) / parts, -(-int(trained.sum()) // parts))


@pytest.mark.parametrize("core", [pytest.param(True, marks=compiled), False], ids=["core", "reference"])
def test_any_graph_is_partitioned_evenly_and_no_part_is_empty(core: bool) -> None:
    assign = native.assign_parts if core else reference.assign_parts

    @anything
    @given(graph=graphs(), seed=st.integers(0, 2**64 - 1))
    def check(graph: tuple[Csr, Tensor | None, int], seed: int) -> None:
        csr, train, parts = graph
        part = assign(csr, train, parts=parts, seed=seed)
        assert_promised(csr, train, part, parts)
        assert torch.equal(part, assign(csr, train, parts=parts, seed=seed))

    check()


def test_a_hub_has_a_part_of_its_own(kernels: str) -> None:
    leaf = torch.arange(1, 101)
    ring = csr_of(torch.cat([leaf, leaf]), torch.cat([torch.zeros_like(leaf), leaf % 100 + 1]), 101)
    part = native.assign_parts(ring, None, parts=4, seed=0)
    assert_promised(ring, None, part, 4)
    others = torch.bincount(part, minlength=4).tolist()
    edges = torch.zeros(4, dtype=torch.int64).index_add_(0, part, ring.indptr.diff())
    assert max(edges[p] for p in range(4) if p != part[0]) <= 40
    assert min(others) >= 1


def test_training_nodes_are_even_though_they_lie_together(kernels: str) -> None:
    csr = planted(8, 40, inside=6, outside=0)
    train = torch.zeros(320, dtype=torch.bool)
    first = native.assign_parts(csr, None, parts=8, seed=0) == 0
    train[first] = True
    part = native.assign_parts(csr, train, parts=4, seed=0)
    assert_promised(csr, train, part, 4)


@compiled
@pytest.mark.parametrize("seed", range(4))
def test_planted_communities_are_found(seed: int) -> None:
    csr = planted(64, 100, inside=8, outside=1, seed=seed)
    part = native.assign_parts(csr, None, parts=8, seed=seed)
    assert_promised(csr, None, part, 8)
    anywhere = 1 / 9 * 7 / 8  # edges that were drawn anywhere, less those that fell into the same part
    assert cut_of(csr, part) <= 1.05 * anywhere  # seeds vary by a hundredth


@compiled
def test_communities_without_edges_between_them_are_not_cut() -> None:
    csr = planted(16, 50, inside=8, outside=0)
    assert cut_of(csr, native.assign_parts(csr, None, parts=4, seed=3)) == 0


@compiled
def test_a_mesh_and_a_path_are_cut_along_short_lines() -> None:
    mesh = grid(128)
    assert cut_of(mesh, native.assign_parts(mesh, None, parts=4, seed=0)) < 0.05
    step = torch.arange(9999)
    path = both_ways(step, step + 1, 10000)
    assert cut_of(path, native.assign_parts(path, None, parts=4, seed=0)) < 0.01


@compiled
@pytest.mark.parametrize("parts", [2, 8, 100])
def test_the_number_of_threads_changes_nothing(threads: Callable[[int], None], parts: int) -> None:
    csr = planted(100, 100, inside=12, outside=3)
    assert csr.indices.numel() > 1 << 17  # else one thread does it all
    train = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) < 0.3
    threads(1)
    alone = native.assign_parts(csr, train, parts=parts, seed=7)
    assert_promised(csr, train, alone, parts)
    for count in (2, 3):
        threads(count)
        assert torch.equal(native.assign_parts(csr, train, parts=parts, seed=7), alone)


@compiled
def test_the_stated_bytes_are_the_allocated_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    csr, taken = planted(20, 50, inside=5, outside=1), list[int]()
    empty = torch.empty

    def counting(*size: int, dtype: torch.dtype) -> Tensor:
        taken.append(size[0] * dtype.itemsize)
        return empty(*size, dtype=dtype)

    monkeypatch.setattr(torch, "empty", counting)
    native.assign_parts(csr, None, parts=4, seed=0)
    assert sum(taken) == native.assign_bytes(1000, parts=4)


@compiled
def test_a_byte_behind_the_work_space_is_never_written() -> None:
    bare = csr_of(torch.empty(0), torch.empty(0), 50)
    for csr, parts in [(planted(20, 50, inside=5, outside=1), 4), (grid(30), 7), (bare, 5)]:
        num_nodes = csr.indptr.numel() - 1
        num_bytes = native.core.kernels.partition_bytes(num_nodes, parts)
        guarded = torch.full((num_bytes + 4096,), 0xA5, dtype=torch.uint8)
        part = torch.empty(num_nodes, dtype=torch.int32)
        native.core.kernels.partition(csr.indptr, csr.indices, None, parts, 0, guarded[:num_bytes], part)
        assert bool((guarded[num_bytes:] == 0xA5).all())


@compiled
@pytest.mark.parametrize("num_nodes", [2_000_000, 16_000_000])
def test_at_most_48_bytes_a_node_are_needed(threads: Callable[[int], None], num_nodes: int) -> None:
    threads(2)
    assert native.assign_bytes(num_nodes, parts=8) <= 48 * num_nodes


def test_more_parts_than_nodes_are_refused(kernels: str) -> None:
    with pytest.raises(ValueError, match="3 nodes into 4 parts"):
        native.assign_parts(csr_of(torch.empty(0), torch.empty(0), 3), None, parts=4, seed=0)


def brute_force(csr: Csr, train: Tensor | None, part: list[int], parts: int) -> list[list[int]]:
    nodes, edges, trained, inside = ([0] * parts for _ in range(4))
    halo: list[set[int]] = [set() for _ in range(parts)]
    for v, p in enumerate(part):
        nodes[p] += 1
        trained[p] += int(train is not None and bool(train[v]))
        for u in csr.indices[csr.indptr[v] : csr.indptr[v + 1]].tolist():
            edges[p] += 1
            inside[p] += part[u] == p
            if part[u] != p:
                halo[p].add(u)
    return [nodes, edges, trained, inside, [len(rows) for rows in halo]]


@pytest.mark.parametrize("core", [pytest.param(True, marks=compiled), False], ids=["core", "reference"])
def test_counts_of_any_partition_are_those_of_a_brute_force(core: bool) -> None:
    count = native.count_parts if core else reference.count_parts

    @anything
    @given(graph=graphs(), data=st.data())
    def check(graph: tuple[Csr, Tensor | None, int], data: st.DataObject) -> None:
        csr, train, parts = graph
        num_nodes = csr.indptr.numel() - 1
        part = data.draw(st.lists(st.integers(0, parts - 1), min_size=num_nodes, max_size=num_nodes))
        found = PartCounts(*count(csr, train, torch.tensor(part, dtype=torch.int32), parts=parts))
        assert [value.tolist() for value in found] == brute_force(csr, train, part, parts)

    check()


@compiled
def test_counts_are_the_same_on_several_threads(threads: Callable[[int], None]) -> None:
    csr = planted(100, 100, inside=12, outside=3)
    part = native.assign_parts(csr, None, parts=8, seed=0)
    threads(3)
    found = native.count_parts(csr, None, part, parts=8)
    wanted = reference.count_parts(csr, None, part, parts=8)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
