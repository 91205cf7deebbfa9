"""The compiled core refuses arrays that it cannot read; valid and invalid calls at random."""

from typing import Any

import fuzz
import pytest
import torch

from siafu import native

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")

INDPTR, INDICES = torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1], dtype=torch.int32)


def spmm(**other: Any) -> Any:
    fits = {
        "indptr": INDPTR,
        "indices": INDICES,
        "x": torch.ones(2, 3),
        "weight": None,
        "pre": None,
        "post": None,
    }
    rest = {
        "loop": None,
        "out": torch.empty(2, 3),
        "ends": None,
        "first_src": 0,
        "add": False,
        "span": (0, 2),
    }
    return native.core.kernels.spmm(*(fits | rest | other).values())


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"indptr": INDPTR.int()}, TypeError),
        ({"indices": INDICES.long()}, TypeError),
        ({"out": torch.empty(2, 3, dtype=torch.float64)}, TypeError),
        ({"out": torch.empty(3, 2).T}, TypeError),
        ({"x": torch.ones(2)}, TypeError),
        ({"weight": torch.ones(6)[::2]}, TypeError),
        ({"weight": torch.ones(2)}, ValueError),
        ({"pre": torch.ones(3)}, ValueError),
        ({"post": torch.ones(1)}, ValueError),
        ({"loop": torch.ones(3)}, ValueError),
        ({"out": torch.empty(1, 3)}, ValueError),
        ({"out": torch.empty(2, 4)}, ValueError),
        ({"indices": INDICES[:2]}, ValueError),
        ({"indptr": INDPTR[:2]}, ValueError),
        ({"span": (0, 3)}, ValueError),
        ({"span": (-1, 1)}, ValueError),
        ({"span": (2, 1)}, ValueError),
        ({"ends": torch.tensor([1])}, ValueError),
    ],
)
def test_a_sum_of_arrays_that_do_not_fit_is_refused(other: dict[str, Any], error: type[Exception]) -> None:
    spmm()
    with pytest.raises(error):
        spmm(**other)


def test_rows_that_a_call_names_are_looked_at() -> None:
    with pytest.raises(IndexError, match=r"gather: index\[1\] is 2; expected 0 to 1"):
        native.gather(torch.ones(2, 3), torch.tensor([0, 2]))
    with pytest.raises(IndexError, match=r"build_csr: row\[0\] is 5; expected 0 to 1"):
        native.build_csr(
            torch.tensor([5], dtype=torch.int32), torch.tensor([0], dtype=torch.int32), num_rows=2
        )
    csr = native.Csr(INDPTR, INDICES)
    with pytest.raises(IndexError, match=r"rows\[0\] is -1"):
        native.sample_edges(
            csr,
            torch.tensor([-1], dtype=torch.int32),
            sizes=torch.tensor([1]),
            key=torch.tensor([0]),
            fanout=1,
        )
    with pytest.raises(ValueError, match="an offset is 3; expected 2"):
        native.transpose(native.Csr(INDPTR, INDICES[:2]), num_cols=2)


def test_a_sum_of_fewer_sparse_rows_than_the_columns_name_is_refused() -> None:
    none = (torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), torch.empty(0), 2)
    counts = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(IndexError, match=r"sparse_sum: indices\[0\] is 1; expected 0 to -1"):
        native.core.kernels.sparse_sum(
            INDPTR, INDICES, (*none, None, 0, 0, 1.0), None, None, None, None, counts, None, None
        )


def test_infinite_scores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = native.Factors(torch.tensor([[1.0], [float("inf")]]), torch.tensor([[1.0], [2.0]]), None)
    args = factors, torch.tensor([0, 1, 2]), torch.tensor([1.0, float("inf")])
    found = native.count_ranks(*args)
    monkeypatch.setattr(native.core, "kernels", None)
    wanted = native.count_ranks(*args)
    for one, other in zip(found, wanted, strict=True):
        assert one.tolist() == other.tolist()


def test_calls_at_random_are_taken_or_refused() -> None:
    fuzz.check_all_are_called()
    found = fuzz.fuzz(0, seed=3, calls=3000)
    assert found["right, taken"] > 900
    assert found["refused"] > 900
