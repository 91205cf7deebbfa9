"""Edge sampling: against plain Python, and as properties of any graph."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu import native
from siafu.native import Csr, sampling_reference

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")
SIZE = 9
edge_lists = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)), max_size=120)
anything = settings(max_examples=60, deadline=None)


@pytest.fixture(params=["chosen", "baseline"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run once on the instruction set of this machine and once on the lowest."""
    native.core.kernels.use_baseline(request.param == "baseline")
    yield request.param
    native.core.kernels.use_baseline(False)


def build(edges: list[tuple[int, int]]) -> Csr:
    row, col = torch.tensor(edges, dtype=torch.int32).reshape(-1, 2).T
    return native.sort_rows(native.build_csr(row, col, num_rows=SIZE, origin=True))


@anything
@given(
    edges=edge_lists,
    groups=st.lists(st.lists(st.integers(0, SIZE - 1), max_size=9), max_size=4),
    fanout=st.integers(-1, 12),
    replace=st.booleans(),
    named=st.booleans(),
    key=st.integers(-(2**63), 2**63 - 8),
)
def test_draws_keep_their_promises(
    edges: list[tuple[int, int]], groups: list[list[int]], fanout: int, replace: bool, named: bool, key: int
) -> None:
    csr, rows = build(edges), [row for group in groups for row in group]
    sizes = torch.tensor([len(group) for group in groups], dtype=torch.int64)
    keys = torch.arange(len(groups)) + key
    node_id, name = (torch.arange(SIZE) * 7 + 1, torch.arange(SIZE).int() * 3) if named else (None, None)
    asked = torch.tensor(rows, dtype=torch.int32)
    how: dict[str, Any] = {
        "key": keys,
        "fanout": fanout,
        "replace": replace,
        "node_id": node_id,
        "name": name,
    }
    found = native.sample_edges(csr, asked, sizes=sizes, edges=True, **how)
    group_ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    wanted = sampling_reference.sample_edges(csr, asked, group_ptr=group_ptr, edges=True, **how)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(native.sample_edges(csr, asked, sizes=sizes, **how).source, found.source)
    assert found.edge is not None
    for place, row in enumerate(rows):
        drawn = found.edge[found.indptr[place] : found.indptr[place + 1]].tolist()
        degree = int(csr.indptr[row + 1] - csr.indptr[row])
        assert all(csr.indptr[row] <= edge < csr.indptr[row + 1] for edge in drawn)
        assert drawn == sorted(drawn)
        if fanout < 0:
            assert len(drawn) == degree
        elif replace:
            assert len(drawn) == (fanout if degree else 0)
        else:
            assert len(set(drawn)) == len(drawn) == min(fanout, degree)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [-1, 0, 5, 15, 63, 64, 65, 2000])
@pytest.mark.usefixtures("instructions")
def test_rows_of_every_size_are_drawn_as_by_the_reference(fanout: int, replace: bool) -> None:
    degrees = torch.tensor([0, 1, 7, 33, 63, 64, 65, 128, 129, 256, 257, 4096, 4097, 40])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    csr = Csr(indptr, torch.arange(int(indptr[-1]), dtype=torch.int32))
    rows, how = torch.arange(degrees.numel(), dtype=torch.int32).repeat(3), {"key": torch.tensor([5, 8])}
    sizes = torch.tensor([12, 30])
    found = native.sample_edges(csr, rows, sizes=sizes, edges=True, fanout=fanout, replace=replace, **how)
    alone = native.sample_edges(csr, rows, sizes=sizes, fanout=fanout, replace=replace, **how)
    assert torch.equal(alone.source, found.source)
    group_ptr = torch.tensor([0, 12, 42])
    wanted = sampling_reference.sample_edges(
        csr,
        rows,
        group_ptr=group_ptr,
        edges=True,
        fanout=fanout,
        replace=replace,
        node_id=None,
        name=None,
        **how,
    )
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [3, 70])
def test_every_edge_is_drawn_as_often_as_any_other(fanout: int, replace: bool) -> None:
    degree, times = 100, 4000
    csr = Csr(torch.tensor([0, degree]), torch.arange(degree, dtype=torch.int32))
    rows, ones = torch.zeros(times, dtype=torch.int32), torch.ones(times, dtype=torch.int64)
    drawn = native.sample_edges(
        csr, rows, sizes=ones, key=torch.arange(times), fanout=fanout, replace=replace
    ).source
    count = torch.bincount(drawn, minlength=degree).double()
    share = fanout / degree
    spread = (times * share * (1 if replace else 1 - share)) ** 0.5
    assert float((count - times * share).abs().max()) < 5 * spread


def test_draws_are_the_same_for_any_number_of_threads() -> None:
    draw = torch.Generator().manual_seed(0)
    row, col = torch.randint(500, (2, 20_000), generator=draw, dtype=torch.int32)
    csr = native.build_csr(row, col, num_rows=500)
    rows, sizes = torch.arange(500, dtype=torch.int32).repeat(4), torch.tensor([500, 0, 900, 600])
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 8):
        torch.set_num_threads(threads)
        found.append(native.sample_edges(csr, rows, sizes=sizes, key=torch.arange(4), fanout=10).source)
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [300, 200_000])  # few nodes have an array of places, many have a table
@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.usefixtures("instructions")
def test_drawing_and_meeting_at_once_is_drawing_and_then_meeting(
    threads: int, size: int, weighted: bool, replace: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    row, col = torch.randint(300, (2, 9000), generator=draw, dtype=torch.int32)
    csr = native.build_csr(row, col + size - 300, num_rows=size)
    known = [torch.randperm(300, generator=draw)[:count].int() for count in (290, 0, 7, 150)]
    how: dict[str, Any] = {"fanout": 12, "replace": replace, "node_id": torch.arange(size) * 5}
    how |= {"key": torch.arange(4), "edges": weighted}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    met = native.sample_and_relabel(csr, known, **how)
    torch.set_num_threads(before)
    sizes = torch.tensor([nodes.numel() for nodes in known])
    drawn = native.sample_edges(csr, torch.cat(known), sizes=sizes, **how)
    places, fresh = sampling_reference.local_rows(
        known, drawn.source, [place.numel() for place in met.src_row]
    )
    assert torch.equal(met.indptr, drawn.indptr)
    assert (met.edge is None) == (drawn.edge is None)
    if met.edge is not None and drawn.edge is not None:
        assert torch.equal(met.edge, drawn.edge)
    for one, other in zip([*met.src_row, *met.new_nodes], [*places, *fresh], strict=True):
        assert torch.equal(one, other)


@anything
@given(values=st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=8), seed=st.integers(0, 99))
def test_rows_of_values_are_scattered(values: list[list[int]], seed: int) -> None:
    rows = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    counts = torch.tensor([len(each) for each in values], dtype=torch.int64)
    to = torch.zeros(len(values) + 1, dtype=torch.int64)
    to[1:] = torch.zeros_like(counts).index_copy(0, rows, counts).cumsum(0)
    out = torch.empty(int(counts.sum()), dtype=torch.float32)
    flat = torch.tensor([value for each in values for value in each], dtype=torch.float32)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    native.scatter_rows(indptr, flat, rows, to, out)
    wanted = torch.empty_like(out)
    sampling_reference.scatter_rows(indptr, flat, rows, to, wanted)
    assert torch.equal(out, wanted)
    for each, row in zip(values, rows.tolist(), strict=True):
        assert out[to[row] : to[row + 1]].tolist() == each


@anything
@given(
    groups=st.lists(
        st.tuples(st.lists(st.integers(0, 30), unique=True), st.lists(st.integers(0, 30))), min_size=1
    )
)
def test_nodes_that_are_met_get_places_in_the_order_of_meeting(
    groups: list[tuple[list[int], list[int]]],
) -> None:
    known = [torch.tensor(nodes, dtype=torch.int32) for nodes, _ in groups]
    met = [torch.tensor(nodes, dtype=torch.int32) for _, nodes in groups]
    sizes = [nodes.numel() for nodes in met]
    places, fresh = native.local_rows(known, torch.cat(met), sizes)
    wanted_places, wanted_fresh = sampling_reference.local_rows(known, torch.cat(met), sizes)
    for one, other in zip(places + fresh, wanted_places + wanted_fresh, strict=True):
        assert one.tolist() == other.tolist()
    for nodes, seen, place, first in zip(known, met, places, fresh, strict=True):
        assert torch.equal(torch.cat([nodes, first])[place.long()], seen)


def test_a_table_of_places_grows() -> None:
    draw = torch.Generator().manual_seed(0)
    known, met = (
        torch.tensor([7], dtype=torch.int32),
        torch.randint(10**6, (30_000,), generator=draw, dtype=torch.int32),
    )
    (place,), (fresh,) = native.local_rows([known], met, [met.numel()])
    assert torch.equal(torch.cat([known, fresh])[place.long()], met)
    assert fresh.unique().numel() == fresh.numel()


@anything
@given(edges=edge_lists, order=st.permutations(range(SIZE)))
def test_the_order_by_ids_is_that_of_no_renaming(edges: list[tuple[int, int]], order: list[int]) -> None:
    csr, ids = build(edges), torch.tensor(order) + 2**40
    found = native.sort_rows_by_id(csr, ids)
    wanted = sampling_reference.sort_rows_by_id(csr, ids)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)
    for row in range(SIZE):
        cols = found.indices[found.indptr[row] : found.indptr[row + 1]].long()
        assert ids[cols].tolist() == sorted(ids[cols].tolist())
