"""Products of rows and weights against plain torch, in every size of a tile, and the same for any number of threads."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu import native
from siafu.native import Dropout, Epilogue, Term, products

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")
# Below, at and above a tile of 6 rows, of 8, 16 or 32 columns, of 128 rows and of 256 terms.
SHAPES = [
    (0, 3, 5),
    (1, 1, 1),
    (5, 7, 8),
    (6, 16, 16),
    (7, 100, 33),
    (49, 0, 4),
    (130, 257, 47),
    (3000, 20, 64),
]
AFTER = {
    "nothing": None,
    "relu": Epilogue(torch.linspace(-1, 1, 64), "relu", Dropout.of(0.4, key=7), None),
    "elu": Epilogue(None, "elu", Dropout.of(0.3, key=9), torch.arange(3000).flip(0)),
}


@pytest.fixture(params=["chosen", "baseline"], autouse=True)
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once on the instruction set of this machine and once on the lowest."""
    native.core.kernels.use_baseline(request.param == "baseline")
    yield
    native.core.kernels.use_baseline(False)


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fitting(after: Epilogue | None, num_rows: int, width: int) -> Epilogue | None:
    if after is None:
        return None
    bias, row_id = (
        None if each is None else each[:size]
        for each, size in ((after.bias, width), (after.row_id, num_rows))
    )
    return after._replace(bias=bias, row_id=row_id)


def terms_of(shape: tuple[int, int, int]) -> list[Term]:
    """Two products; the second one's rows are as wide as the result."""
    num_rows, width, out_width = shape
    return [
        Term(rows(num_rows, width), rows(width, out_width, seed=1)),
        Term(rows(num_rows, out_width, seed=2), rows(out_width, out_width, seed=3)),
    ]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("follows", AFTER)
def test_products_and_their_gradients_are_those_of_torch(shape: tuple[int, int, int], follows: str) -> None:
    num_rows, _, out_width = shape
    terms, after = terms_of(shape), fitting(AFTER[follows], num_rows, out_width)
    for some in (terms[:1], terms):
        for add in (None, rows(out_width, seed=4), rows(num_rows, out_width, seed=5)):
            found = native.product(some, add=add, after=after)
            wanted = products._plain_product(some, add, after, torch.empty_like(found))
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        grad = rows(num_rows, out_width, seed=6)
        wants = [True, False][: len(some)]
        how: dict[str, Any] = {"output": found, "after": after, "wants_x": wants}
        plain = products._plain_backward(some, grad, found, after, wants)
        for one, other in zip(native.product_backward(some, grad, **how), plain, strict=True):
            ones, others = (each if isinstance(each, list) else [each] for each in (one, other))
            for left, right in zip(ones, others, strict=True):
                assert (left is None) == (right is None)
                if left is not None and right is not None:
                    torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("width", [1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65])
def test_results_of_any_width_are_those_of_torch_and_nothing_beyond_is_written(width: int) -> None:
    terms, grad = [Term(rows(131, 13), rows(13, width, seed=1))], rows(131, width, seed=2)
    whole = torch.full((132, width), float("nan"))
    native.product(terms, out=whole[:131])
    torch.testing.assert_close(whole[:131], terms[0].x @ terms[0].weight, rtol=1e-4, atol=1e-4)
    assert whole[131].isnan().all()
    (grad_x,), (grad_weight,), bias = native.product_backward(terms, grad, wants_x=[True])
    assert grad_x is not None
    torch.testing.assert_close(grad_x, grad @ terms[0].weight.t(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad_weight, terms[0].x.t() @ grad, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(bias, grad.sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("follows", AFTER)
def test_rows_of_gradients_may_lie_apart(follows: str) -> None:
    shape = num_rows, _, out_width = 130, 9, 47
    terms, after = terms_of(shape), fitting(AFTER[follows], num_rows, out_width)
    output = native.product(terms, after=after)
    wide = rows(num_rows, 3 * out_width, seed=6)
    how: dict[str, Any] = {"output": output, "after": after, "wants_x": [True, True]}
    some = wide[:, out_width : 2 * out_width]
    found = native.product_backward(terms, some, **how)
    for one, other in zip(found, native.product_backward(terms, some.contiguous(), **how), strict=True):
        ones, others = (each if isinstance(each, list) else [each] for each in (one, other))
        assert all(torch.equal(left, right) for left, right in zip(ones, others, strict=True))


def test_a_product_may_be_added_to_where_it_is() -> None:
    terms, add = [Term(rows(20, 9), rows(9, 40, seed=1))], rows(20, 40, seed=2)
    wanted = native.product(terms, add=add)
    found = native.product(terms, add=add, out=add)
    assert found is add
    assert torch.equal(found, wanted)


def test_no_bit_depends_on_the_number_of_threads() -> None:
    terms, grad = terms_of((5000, 30, 50)), rows(5000, 50, seed=9)
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        (grad_x, _), weights, bias = native.product_backward(terms, grad, wants_x=[True, False])
        assert grad_x is not None
        found.append([native.product(terms), grad_x, *weights, bias])
    torch.set_num_threads(before)
    for some in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(some, found[0], strict=True))
