"""Sparse rows: products, sums, picked rows and dense copies equal those of dense rows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu import native
from siafu.native import Csr, Dropout, Epilogue, SparseRows, Term, reference, sparse_rows_reference

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")
DROP = Dropout.of(0.4, key=7)
SHAPES = [(0, 3, 5), (1, 1, 1), (5, 7, 8), (7, 100, 33), (130, 257, 47), (40, 30, 256), (3000, 20, 64)]


@pytest.fixture(params=["chosen", "baseline"], autouse=True)
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once on the instruction set of this machine and once on the lowest."""
    native.core.kernels.use_baseline(request.param == "baseline")
    yield
    native.core.kernels.use_baseline(False)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mostly_zero(rows: int, width: int, *, share: float = 0.1, seed: int = 0) -> Tensor:
    """Random rows; some of them, the last one among them, are empty."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=draw) * (torch.rand(rows, width, generator=draw) < share)
    x[-1:] = 0
    return x


def dense_copy(x: SparseRows) -> Tensor:
    """All numbers, by loops."""
    out = torch.zeros(len(x), x.width)
    for row in range(len(x)):
        for place in range(int(x.indptr[row]), int(x.indptr[row + 1])):
            out[row, int(x.indices[place])] = x.values[place]
    return out


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 9), st.integers(1, 70), st.sampled_from([0.0, 0.05, 0.5, 1.0]), st.integers(0, 2**31 - 1)
)
def test_rows_become_sparse_and_dense_again(rows: int, width: int, share: float, seed: int) -> None:
    x = mostly_zero(rows, width, share=share, seed=seed)
    sparse = SparseRows.from_dense(x)
    assert sparse.shape == x.shape
    assert sparse.values.numel() == int(x.count_nonzero())
    assert torch.equal(sparse.to_dense(), x)
    assert torch.equal(dense_copy(sparse), x)
    torch.testing.assert_close(sparse.row_sums(), x.sum(1))
    scale = randn(rows, seed=seed)
    assert torch.equal(sparse.scaled(scale).to_dense(), x * scale[:, None])
    index = torch.randint(max(1, rows), (7 if rows else 0,), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(sparse.take(index).to_dense(), x[index])
    assert torch.equal(sparse.dense_rows(index), x[index])
    half = rows // 2
    assert torch.equal(sparse[half:].to_dense(), x[half:])
    joined = SparseRows.concatenate([sparse[half:], sparse[:half]])
    assert torch.equal(joined.to_dense(), torch.cat([x[half:], x[:half]]))


def test_sparse_rows_become_a_numpy_array() -> None:
    x = mostly_zero(6, 9)
    sparse = SparseRows.from_dense(x)
    assert np.array_equal(np.asarray(sparse), x.numpy())
    assert np.asarray(sparse, dtype=np.float64).dtype == np.float64
    with pytest.raises(TypeError, match=r"take\(index\), or to_dense"):
        sparse[torch.tensor([1, 2])]  # type: ignore[index]


def test_dropout_falls_on_elements_of_the_users_rows() -> None:
    x = mostly_zero(50, 40)
    row_id = torch.arange(50).flip(0) * 3
    sparse = SparseRows.from_dense(x)
    for ids in (None, row_id):
        kept = reference.dropout_mask(DROP, torch.arange(50) if ids is None else ids, 40)
        wanted = torch.where(kept, x * DROP.scale, 0.0)
        dropped = sparse.dropped(DROP, ids)
        assert torch.equal(dropped.to_dense(), wanted)
        assert torch.equal(dropped[10:30].to_dense(), wanted[10:30])
        index = torch.tensor([4, 4, 49, 0])
        assert torch.equal(dropped.take(index).to_dense(), wanted[index])


@pytest.mark.parametrize("after", [None, "relu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_equal_those_of_dense_rows(shape: tuple[int, int, int], after: str | None) -> None:
    rows, width, out_width = shape
    x, weight = mostly_zero(rows, width), randn(width, out_width, seed=1)
    epilogue = None
    if after is not None:
        epilogue = Epilogue(randn(out_width, seed=2), "relu", Dropout.of(0.3, key=9), None)
    for sparse in (SparseRows.from_dense(x), SparseRows.from_dense(x).dropped(DROP, None)):
        term = Term(sparse.to_dense(), weight)
        for add in (None, randn(out_width, seed=4), randn(rows, out_width, seed=5)):
            found = native.sparse_product(sparse, weight, add=add, after=epilogue)
            plain = sparse_rows_reference.product(sparse, weight, add=add, after=epilogue, out=None)
            torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                found, native.product([term], add=add, after=epilogue), rtol=1e-5, atol=1e-5
            )
        wide = randn(rows, 2 * out_width, seed=6)
        for grad in (wide[:, :out_width].contiguous(), wide[:, :out_width]):
            how: dict[str, Any] = {"output": None if epilogue is None else found, "after": epilogue}
            of_weight, of_bias = native.sparse_product_backward(sparse, grad, **how)
            plain_pair = sparse_rows_reference.product_backward(sparse, grad, **how)
            torch.testing.assert_close((of_weight, of_bias), plain_pair, rtol=1e-3, atol=1e-3)
            _, (dense_weight,), dense_bias = native.product_backward([term], grad, **how, wants_x=[False])
            torch.testing.assert_close(of_weight, dense_weight, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(of_bias, dense_bias, rtol=1e-4, atol=1e-4)


def random_csr(num_dst: int, num_src: int, *, seed: int = 3) -> Csr:
    """A few edges a row, some repeated, and empty rows."""
    draw = torch.Generator().manual_seed(seed)
    count = torch.randint(5, (num_dst,), generator=draw)
    indptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return Csr(indptr, torch.randint(num_src, (int(indptr[-1]),), generator=draw, dtype=torch.int32))


@pytest.mark.parametrize("width", [1, 63, 200])
@pytest.mark.parametrize("scaled", [False, True])
def test_sums_over_neighbours_equal_those_of_dense_rows(width: int, scaled: bool) -> None:
    x = mostly_zero(60, width)
    csr = random_csr(50, 60)
    how: dict[str, Any] = {}
    if scaled:
        edges = csr.indices.numel()
        how = {"weight": randn(edges, seed=1), "pre": randn(60, seed=2), "post": randn(50, seed=3)}
        how["loop"] = randn(50, seed=4)
    found = native.sparse_sum(csr, SparseRows.from_dense(x), **how)
    assert torch.equal(found.to_dense(), native.spmm(csr, x, **how))
    wanted = sparse_rows_reference.sum_rows(
        csr, SparseRows.from_dense(x), **{**dict.fromkeys(["weight", "pre", "post", "loop"]), **how}
    )
    torch.testing.assert_close(found.to_dense(), wanted.to_dense())
    for row in range(50):
        columns = found.indices[int(found.indptr[row]) : int(found.indptr[row + 1])].tolist()
        assert columns == sorted(set(columns)), "each column once, ascending"


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    x, weight, grad = mostly_zero(3000, 50), randn(50, 33, seed=1), randn(3000, 33, seed=2)
    sparse, csr = SparseRows.from_dense(x).dropped(DROP, None), random_csr(3000, 3000)

    def compute(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        summed = native.sparse_sum(csr, replace(sparse, dropout=Dropout()))
        return [
            native.sparse_product(sparse, weight),
            *native.sparse_product_backward(sparse, grad),
            summed.values,
            sparse.to_dense(),
        ]

    before = torch.get_num_threads()
    try:
        for one, two in zip(compute(1), compute(2), strict=True):
            assert torch.equal(one, two)
    finally:
        torch.set_num_threads(before)


def test_plain_torch_stands_in_for_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, csr = mostly_zero(40, 30), randn(30, 9), random_csr(40, 40)
    sparse = SparseRows.from_dense(x).dropped(DROP, None)

    def compute() -> list[Tensor]:
        product = native.sparse_product(sparse, weight)
        picked = sparse.take(torch.tensor([3, 3, 0])).to_dense()
        return [
            product,
            *native.sparse_product_backward(sparse, product),
            picked,
            native.sparse_sum(csr, SparseRows.from_dense(x)).to_dense(),
        ]

    compiled = compute()
    monkeypatch.setattr(native.core, "kernels", None)
    torch.testing.assert_close(compute(), compiled)
