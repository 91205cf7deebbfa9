"""CSR operations (structure.py): against plain torch, and as properties of any graph."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu import native
from siafu.native import Csr, reference

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")

Edges = list[tuple[int, int]]  # (row, column)
SIZE = 7
edge_lists = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=60)
orders = st.permutations(range(SIZE)).map(torch.tensor)
anything = settings(max_examples=60, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def threads() -> Iterator[Callable[[int], None]]:
    """One thread, since edges are few, unless a test sets another number; what it was comes back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def build(edges: Edges, *, num_rows: int = SIZE, origin: bool = True) -> Csr:
    row, col = torch.tensor(edges, dtype=torch.int32).reshape(-1, 2).T
    return native.build_csr(row, col, num_rows=num_rows, origin=origin)


def edges_of(csr: Csr) -> Edges:
    """Its (row, column) pairs, in order."""
    row_edge = torch.arange(csr.indptr.numel() - 1).repeat_interleave(csr.indptr.diff())
    return list(zip(row_edge.tolist(), csr.indices.tolist(), strict=True))


def assert_same(found: Csr, wanted: Csr) -> None:
    assert torch.equal(found.indptr, wanted.indptr)
    assert torch.equal(found.indices, wanted.indices)
    assert (found.origin is None) == (wanted.origin is None)
    if found.origin is not None and wanted.origin is not None:
        assert torch.equal(found.origin, wanted.origin)


def assert_points_back(csr: Csr, edges: Edges, *, swapped: bool = False) -> None:
    """Each edge is the one that stood at its origin."""
    assert csr.origin is not None
    found = [edges[place] for place in csr.origin.tolist()]
    assert edges_of(csr) == ([(col, row) for row, col in found] if swapped else found)


def random_graph(num_nodes: int = 300, num_edges: int = 5000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Enough edges for several threads to share them."""
    pairs = torch.randint(0, num_nodes, (2, num_edges), generator=torch.Generator().manual_seed(seed))
    row, col = pairs.to(torch.int32)
    return row, col


@anything
@given(edges=edge_lists, origin=st.booleans())
def test_a_csr_holds_each_edge_once_in_the_order_given(edges: Edges, origin: bool) -> None:
    csr = build(edges, origin=origin)
    assert edges_of(csr) == sorted(edges, key=lambda edge: edge[0])  # sorted is stable
    assert csr.indptr[0] == 0
    assert csr.indptr.dtype == torch.int64
    assert csr.indices.dtype == torch.int32
    assert (csr.origin is not None) == origin
    if origin:
        assert_points_back(csr, edges)
    row, col = torch.tensor(edges, dtype=torch.int32).reshape(-1, 2).T
    assert_same(csr, reference.build_csr(row, col, num_rows=SIZE, origin=origin))


@anything
@given(edges=edge_lists, origin=st.booleans())
def test_transposing_exchanges_rows_and_columns(edges: Edges, origin: bool) -> None:
    csr = build(edges)
    turned = native.transpose(csr, num_cols=SIZE, origin=origin)
    assert Counter(edges_of(turned)) == Counter((col, row) for row, col in edges)
    assert edges_of(turned) == sorted(edges_of(turned))
    if origin:
        assert_points_back(turned, edges_of(csr), swapped=True)
    assert_same(turned, reference.transpose(csr, num_cols=SIZE, origin=origin))


@anything
@given(edges=edge_lists)
def test_transposing_twice_gives_the_sorted_original(edges: Edges) -> None:
    csr = build(edges, origin=False)
    twice = native.transpose(native.transpose(csr, num_cols=SIZE), num_cols=SIZE)
    assert_same(twice, native.sort_rows(csr))


def test_a_rectangle_is_transposed() -> None:
    csr = build([(0, 4), (1, 0), (1, 4), (0, 2)], num_rows=2)
    turned = native.transpose(csr, num_cols=5, origin=True)
    assert edges_of(turned) == [(0, 1), (2, 0), (4, 0), (4, 1)]
    assert turned.indptr.tolist() == [0, 1, 1, 2, 2, 4]
    assert turned.origin is not None
    assert turned.origin.tolist() == [2, 1, 0, 3]


@anything
@given(edges=edge_lists, origin=st.booleans())
def test_sorting_keeps_each_row_and_what_belongs_to_its_edges(edges: Edges, origin: bool) -> None:
    csr = build(edges, origin=origin)
    before = csr.indices.clone()
    ordered = native.sort_rows(csr)
    assert edges_of(ordered) == sorted(edges)
    assert torch.equal(csr.indices, before)  # what was given is left alone
    if origin:
        assert ordered.origin is not None
        assert ordered.origin.tolist() == sorted(range(len(edges)), key=lambda place: edges[place])
    assert_same(ordered, reference.sort_rows(csr))


@anything
@given(edges=edge_lists, origin=st.booleans())
def test_of_repeated_edges_the_first_is_kept(edges: Edges, origin: bool) -> None:
    csr = native.sort_rows(build(edges, origin=origin))
    before = csr.indices.clone()
    single = native.deduplicate(csr)
    assert edges_of(single) == sorted(set(edges))
    assert torch.equal(csr.indices, before)
    if origin:
        assert single.origin is not None
        assert single.origin.tolist() == [edges.index(edge) for edge in sorted(set(edges))]
    assert_same(single, reference.deduplicate(csr))


@anything
@given(edges=edge_lists, order=orders, origin=st.booleans())
def test_relabelling_keeps_every_edge_under_its_new_name(edges: Edges, order: Tensor, origin: bool) -> None:
    csr = build(edges)
    renamed = native.relabel(csr, order, origin=origin)
    old = order.tolist()
    assert edges_of(renamed) == sorted(edges_of(renamed))
    assert Counter((old[row], old[col]) for row, col in edges_of(renamed)) == Counter(edges)
    if origin:
        assert renamed.origin is not None
        found = [edges_of(csr)[place] for place in renamed.origin.tolist()]
        assert [(old[row], old[col]) for row, col in edges_of(renamed)] == found


@anything
@given(edges=edge_lists, order=orders, taken=st.integers(0, SIZE), origin=st.booleans())
def test_some_rows_are_taken_with_their_columns_renamed(
    edges: Edges, order: Tensor, taken: int, origin: bool
) -> None:
    csr, rows, name = build(edges), order[:taken], order.flip(0).to(torch.int32)
    found = native.take_rows(csr, rows, name=name, origin=origin)
    wanted = Counter((rows.tolist().index(row), int(name[col])) for row, col in edges if row in rows.tolist())
    assert Counter(edges_of(found)) == wanted
    assert edges_of(found) == sorted(edges_of(found))
    assert_same(found, reference.take_rows(csr, rows, name=name, origin=origin))
    mark = native.mark_columns(csr, rows, num_cols=SIZE)
    assert set(mark.nonzero()[:, 0].tolist()) == {col for row, col in edges if row in rows.tolist()}
    assert torch.equal(mark, reference.mark_columns(csr, rows, num_cols=SIZE))


@anything
@given(edges=edge_lists, weighted=st.booleans())
def test_adding_the_missing_loop_weight_makes_one_loop(edges: Edges, weighted: bool) -> None:
    csr = native.sort_rows(build(edges))
    weight = torch.arange(1.0, len(edges) + 1) if weighted else None
    found = native.missing_loops(csr, weight)
    assert torch.equal(found, reference.missing_loops(csr, weight))
    for row in range(SIZE):
        loops = [
            1.0 if weight is None else float(weight[e])
            for e, edge in enumerate(edges_of(csr))
            if edge == (row, row)
        ]
        assert float(found[row]) + sum(loops) == ([1.0, *loops][-1])


@anything
@given(edges=edge_lists, column=st.integers(0, SIZE))
def test_rows_are_split_at_a_column(edges: Edges, column: int) -> None:
    csr = native.sort_rows(build(edges))
    ends = native.split_rows(csr, column)
    assert torch.equal(ends, reference.split_rows(csr, column))
    for row in range(SIZE):
        below = csr.indices[csr.indptr[row] : ends[row]].tolist()
        beyond = csr.indices[ends[row] : csr.indptr[row + 1]].tolist()
        assert all(col < column for col in below)
        assert all(col >= column for col in beyond)


@anything
@given(edges=edge_lists, order=orders)
def test_relabelling_back_gives_the_sorted_original(edges: Edges, order: Tensor) -> None:
    csr = build(edges, origin=False)
    there = native.relabel(csr, order)
    assert_same(native.relabel(there, order.argsort()), native.sort_rows(csr))


@anything
@given(edges=edge_lists, max_community=st.integers(1, 8), rounds=st.integers(0, 8))
def test_a_locality_order_names_each_node_once(edges: Edges, max_community: int, rounds: int) -> None:
    csr = build(edges)
    order = native.locality_order(csr, max_community=max_community, rounds=rounds)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(SIZE))
    assert torch.equal(order, native.locality_order(csr, max_community=max_community, rounds=rounds))


def two_cliques(size: int, *, seed: int) -> tuple[Csr, Tensor]:
    """Two cliques, their nodes shuffled; which clique each node is of."""
    clique = torch.randperm(2 * size, generator=torch.Generator().manual_seed(seed)) % 2
    row, col = (clique[:, None] == clique[None, :]).fill_diagonal_(False).nonzero().T
    return native.build_csr(row.to(torch.int32), col.to(torch.int32), num_rows=2 * size), clique


@pytest.mark.parametrize("seed", range(5))
def test_a_locality_order_puts_each_clique_together(seed: int) -> None:
    csr, clique = two_cliques(20, seed=seed)
    along = clique[native.locality_order(csr)]
    assert int((along[1:] != along[:-1]).sum()) == 1
    assert int((clique[1:] != clique[:-1]).sum()) > 1


def test_no_community_outgrows_its_bound() -> None:
    csr, clique = two_cliques(20, seed=0)
    along = clique[native.locality_order(csr, max_community=5)]
    assert int((along[1:] != along[:-1]).sum()) > 1


def test_without_rounds_the_order_is_as_given() -> None:
    assert native.locality_order(two_cliques(5, seed=1)[0], rounds=0).tolist() == list(range(10))


def test_an_empty_graph_passes_through_everything() -> None:
    csr = build([], num_rows=3)
    assert csr.indptr.tolist() == [0, 0, 0, 0]
    for made in (
        native.transpose(csr, num_cols=3, origin=True),
        native.sort_rows(csr),
        native.deduplicate(csr),
        native.relabel(csr, torch.tensor([2, 0, 1]), origin=True),
    ):
        assert_same(made, csr)
    assert native.locality_order(csr).tolist() == [0, 1, 2]
    nothing = build([], num_rows=0)
    assert nothing.indptr.tolist() == [0]
    assert native.transpose(nothing, num_cols=2).indptr.tolist() == [0, 0, 0]
    assert native.locality_order(nothing).tolist() == []


def test_rows_and_columns_that_do_not_lie_side_by_side_are_taken() -> None:
    pairs = torch.tensor([[1, 0], [0, 2], [1, 1]], dtype=torch.int32)
    csr = native.build_csr(pairs[:, 0], pairs[:, 1], num_rows=2)
    assert edges_of(csr) == [(0, 2), (1, 0), (1, 1)]


def everything(row: Tensor, col: Tensor, num_nodes: int) -> list[Csr | Tensor]:
    """The results of every structure kernel on one graph."""
    csr = native.build_csr(row, col, num_rows=num_nodes, origin=True)
    order = native.locality_order(csr)
    ordered = native.sort_rows(csr)
    return [
        csr,
        native.transpose(csr, num_cols=num_nodes, origin=True),
        ordered,
        native.deduplicate(ordered),
        native.relabel(csr, order, origin=True),
        order,
    ]


def test_the_number_of_threads_changes_nothing(threads: Callable[[int], None]) -> None:
    row, col = random_graph()
    threads(1)
    alone = everything(row, col, 300)
    for count in (2, 3, 7):
        threads(count)
        for one, other in zip(alone, everything(row, col, 300), strict=True):
            if isinstance(one, Csr) and isinstance(other, Csr):
                assert_same(one, other)
            else:
                assert torch.equal(one, other)
    threads(1)


def test_many_edges_agree_with_plain_torch() -> None:
    row, col = random_graph()
    csr = native.build_csr(row, col, num_rows=300, origin=True)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    ordered = native.sort_rows(csr)
    assert_same(csr, reference.build_csr(row, col, num_rows=300, origin=True))
    assert_same(
        native.transpose(csr, num_cols=300, origin=True),
        reference.transpose(csr, num_cols=300, origin=True),
    )
    assert_same(ordered, reference.sort_rows(csr))
    assert_same(native.deduplicate(ordered), reference.deduplicate(ordered))
    name = order.to(torch.int32)
    found = native.take_rows(csr, order, name=name, origin=True)
    assert_same(found, reference.take_rows(csr, order, name=name, origin=True))


def test_the_reference_of_the_locality_order_leaves_all_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    csr, _ = two_cliques(5, seed=1)
    monkeypatch.setattr(native.core, "kernels", None)
    assert native.locality_order(csr).tolist() == list(range(10))


@anything
@given(edges=edge_lists, new=edge_lists, chosen=st.lists(st.integers(0, 59)))
def test_a_delta_makes_what_would_be_built_of_the_edges_that_are_left(
    edges: Edges, new: Edges, chosen: list[int]
) -> None:
    old = native.sort_rows(build(edges))
    gone = edges_of(old)
    kept_places = {place for place in range(len(gone)) if place not in chosen}
    dropped = [edge for place, edge in enumerate(gone) if place not in kept_places]
    add = native.sort_rows(build(new))
    add = add._replace(origin=add.origin + 100)
    drop = native.sort_rows(build(dropped))
    found = native.apply_delta(old, add=add, drop=drop)
    assert Counter(edges_of(found)) == Counter(edges) - Counter(dropped) + Counter(new)
    assert_same(found, reference.apply_delta(old, add=add, drop=drop))
    rows = [found.indices[found.indptr[row] : found.indptr[row + 1]].tolist() for row in range(SIZE)]
    assert rows == [sorted(row) for row in rows]


def test_a_delta_is_the_same_on_any_number_of_threads(threads: Callable[[int], None]) -> None:
    row, col = random_graph(num_nodes=30_000, num_edges=60_000)
    parts = [
        native.sort_rows(native.build_csr(row[part], col[part], num_rows=30_000))
        for part in (slice(0, 50_000), slice(50_000, None), slice(0, 20_000))
    ]
    found = native.apply_delta(parts[0], add=parts[1], drop=parts[2])
    wanted = native.sort_rows(native.build_csr(row[20_000:], col[20_000:], num_rows=30_000))
    assert_same(found, wanted)
    threads(4)
    assert_same(native.apply_delta(parts[0], add=parts[1], drop=parts[2]), found)


@pytest.mark.parametrize("dropped", [[(2, 3)], [(1, 0), (1, 0)], [(1, 5)]])
@pytest.mark.parametrize("apply", [native.apply_delta, reference.apply_delta])
def test_a_delta_that_takes_out_what_is_not_there_is_refused(apply, dropped: Edges) -> None:
    old = native.sort_rows(build([(1, 0), (1, 2), (0, 0)], origin=False))
    empty, drop = build([], origin=False), native.sort_rows(build(dropped, origin=False))
    with pytest.raises(ValueError, match=r"an edge out of row [12] that is not in it"):
        apply(old, add=empty, drop=drop)


@anything
@given(edges=edge_lists)
def test_different_columns_are_counted_once(edges: Edges) -> None:
    csr = native.sort_rows(build(edges))
    wanted = [len({col for row, col in edges if row == each}) for each in range(SIZE)]
    assert native.count_distinct(csr).tolist() == wanted
    assert reference.count_distinct(csr).tolist() == wanted


@anything
@given(edges=edge_lists, others=edge_lists)
def test_positions_of_edges_that_another_csr_lacks(edges: Edges, others: Edges) -> None:
    one, other = native.sort_rows(build(edges)), native.sort_rows(build(others))
    places = native.edges_not_in(one, other)
    assert torch.equal(places, reference.edges_not_in(one, other))
    lacking = Counter(edges_of(one)[place] for place in places.tolist())
    assert lacking == Counter(edges) - Counter(others)
