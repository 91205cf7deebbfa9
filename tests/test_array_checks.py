"""Arrays that are out of range are refused where they enter, and never reach the compiled core."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu import native
from siafu.array_checks import check_offsets, check_permutation
from siafu.dynamic import DynamicGraph
from siafu.graph import Block, Graph
from siafu.native import reference


def ids(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


INDPTR, INDICES = torch.tensor([0, 1, 2, 3]), ids(1, 2, 0)
WRONG: list[tuple[Tensor, Tensor, str]] = [
    (INDPTR, ids(1, 2, 3), r"indices\[2\] names node 3 of 3 nodes; expected 0 to 2"),
    (INDPTR, ids(1, -1, 0), r"indices\[1\] names node -1"),
    (INDPTR, ids(1, 2**31 - 1, 0), r"names node 2147483647"),
    (torch.tensor([0, 2, 1, 3]), INDICES, r"indptr\[2\] is 1, but the offset before it is 2"),
    (torch.tensor([1, 1, 2, 3]), INDICES, r"indptr\[0\] is 1; expected offsets from 0"),
    (torch.tensor([0, 1, 2, 4]), INDICES, "indptr ends at 4, but there are 3 indices"),
    (torch.tensor([0, 1, 2, 2]), INDICES, "indptr ends at 2, but there are 3 indices"),
    (torch.empty(0, dtype=torch.int64), ids(), "indptr is empty"),
    (INDPTR.int(), INDICES, r"indptr is \(4,\) torch.int32 on cpu; expected \(any\) int64"),
    (INDPTR, INDICES.long(), r"indices is \(3,\) torch.int64 on cpu; expected \(any\) int32"),
    (INDPTR, ids(1, 0, 2, 0, 0, 0)[::2], "indices is not contiguous"),
    (INDPTR[None], INDICES, r"indptr is \(1, 4\)"),
]


@pytest.mark.parametrize(("indptr", "indices", "message"), WRONG)
def test_a_graph_or_block_out_of_range_is_refused(indptr: Tensor, indices: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Block(indptr, indices, 3)
    if indptr.ndim == 1:
        with pytest.raises(ValueError, match=message):
            Graph(indptr, indices)


def test_a_copy_with_other_edges_is_checked_again_and_one_with_the_same_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = Graph(INDPTR, INDICES)
    with pytest.raises(ValueError, match="names node 9"):
        replace(graph, indices=ids(0, 0, 9))
    with pytest.raises(ValueError, match="names node 2 of 2 nodes"):
        replace(graph.block, num_src=2)
    monkeypatch.setattr(native, "first_out_of_range", lambda *_: pytest.fail("read again"))
    assert replace(graph, name="other").block.num_edges == 3


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("x", torch.zeros(2, 1), "x has 2 rows; expected 3, one for each node"),
        ("x", torch.zeros(3), r"x is \(3,\)"),
        ("x", torch.zeros(3, 0), r"x is \(3, 0\); expected at least one feature a node"),
        ("x", [[0.0]] * 3, "x is a list; expected a torch.Tensor"),
        ("y", torch.tensor([0, -5, 1]), r"y\[1\] is -5; expected a class from 0, or -1 for none"),
        ("y", torch.zeros(3, dtype=torch.int32), "y is .* torch.int32 .*; expected"),
        ("train_mask", torch.zeros(3), "train_mask is .*; expected .* bool"),
        ("val_mask", torch.zeros(4, dtype=torch.bool), "val_mask has 4 rows; expected 3"),
        ("edge_weight", torch.zeros(2), "edge_weight has 2 rows; expected 3, one for each edge"),
        ("edge_split", torch.zeros(3), "edge_split is .*; expected .* uint8"),
        ("node_id", torch.arange(2), "node_id has 2 rows"),
        ("x_scale", torch.ones(3), "x is None with x_scale"),
    ],
)
def test_arrays_of_nodes_and_edges_that_do_not_fit_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph(INDPTR, INDICES, **{field: value})


def test_a_slice_of_columns_is_copied() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    graph = Graph(INDPTR, INDICES, x=x[:, 1:3])
    assert graph.x is not None
    assert graph.x.is_contiguous()
    assert torch.equal(graph.x, x[:, 1:3])


def test_a_class_without_a_name_is_refused_where_classes_have_names() -> None:
    with pytest.raises(ValueError, match=r"y\[2\] is 2, but there are names of 2 classes"):
        Graph(INDPTR, INDICES, y=torch.tensor([0, 1, 2]), class_names=("a", "b"))


def test_a_block_has_at_least_as_many_sources_as_destinations() -> None:
    with pytest.raises(ValueError, match="3 destinations, but num_src is 2"):
        Block(torch.tensor([0, 0, 0, 1]), ids(1), 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"src": ids(0, 3)}, r"src\[1\] names node 3 of 3 nodes"),
        ({"dst": ids(-1, 0)}, r"dst\[0\] names node -1"),
        ({"dst": ids(1)}, r"dst is \(1,\)"),
        ({"src": torch.tensor([0, 1])}, "src is .* torch.int64"),
        ({"step_ptr": torch.tensor([0, 2, 1])}, "step_ptr"),
        ({"step_ptr": torch.tensor([0, 3])}, "step_ptr ends at 3, but there are 2 events"),
        ({"step_ptr": torch.tensor([0])}, "step_ptr"),
        ({"num_nodes": 0}, "num_nodes is 0"),
        ({"weight": torch.ones(3)}, r"weight is \(3,\)"),
        ({"edge_y": torch.tensor([0, -2])}, r"edge_y\[1\] is -2"),
        ({"y": torch.tensor([0, -2, 0])}, r"y\[1\] is -2"),
        ({"x": torch.zeros(3, 0)}, r"x is \(3, 0\); expected at least one feature a node"),
        ({"x": torch.zeros(2, 3, 0)}, r"x is \(2, 3, 0\); expected at least one feature a node"),
        ({"whole_ptr": torch.tensor([0, 5, 4])}, "whole_ptr"),
    ],
)
def test_events_out_of_range_are_refused(fields: dict[str, Any], message: str) -> None:
    fits: dict[str, Any] = {
        "src": ids(0, 1),
        "dst": ids(1, 2),
        "step_ptr": torch.tensor([0, 1, 2]),
        "num_nodes": 3,
    }
    assert DynamicGraph(**fits).num_steps == 2
    with pytest.raises(ValueError, match=message):
        DynamicGraph(**fits | fields)


@pytest.mark.parametrize("order", [[0, 1, 1], [0, 1, 3], [-1, 0, 1], [0, 1]])
def test_an_order_that_is_no_permutation_is_refused(order: list[int]) -> None:
    with pytest.raises(ValueError, match="order"):
        check_permutation(torch.tensor(order), 3, "order")
    check_permutation(torch.tensor([2, 0, 1]), 3, "order")


@pytest.mark.parametrize("place", range(1, 8))
def test_plain_torch_looks_across_the_ranges_in_which_it_reads(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(reference, "_CHUNK", 3)
    for core in (native.core.kernels, None):
        monkeypatch.setattr(native.core, "kernels", core)
        indptr = torch.arange(8)
        check_offsets(indptr, 7, "it")
        indptr[place] = 0 if place > 1 else 7
        with pytest.raises(ValueError, match=r"never fall|ends at"):
            check_offsets(indptr, 7, "it")
        assert native.first_out_of_range(torch.arange(8).int(), place) == place
        assert native.first_out_of_range(torch.arange(-place, 3), 9) == 0
        assert native.first_out_of_range(torch.arange(8), 8) == -1


def test_the_first_unsorted_row_is_found_by_the_core_as_by_plain_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for indices, row in ((ids(0, 1, 0, 5, 5), -1), (ids(1, 0, 0, 5, 5), 0), (ids(0, 1, 0, 5, 4), 2)):
        csr = native.Csr(torch.tensor([0, 2, 2, 5]), indices)
        assert native.first_unsorted_row(csr) == row
        with monkeypatch.context() as patch:
            patch.setattr(native.core, "kernels", None)
            assert native.first_unsorted_row(csr) == row
