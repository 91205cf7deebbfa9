"""Products of rows and weights against plain torch, in every size of a tile, and the same for any number of threads."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from siafu import native
from siafu.native import reference

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")
# Below, at and above a tile of 6 rows, of 8, 16 or 32 columns, and of 256 terms.
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


@pytest.fixture(params=["chosen", "baseline"], autouse=True)
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """Once on the instruction set of this machine and once on the lowest."""
    native._core.use_baseline(request.param == "baseline")
    yield
    native._core.use_baseline(False)


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("picked", [False, True])
def test_products_are_those_of_torch(shape: tuple[int, int, int], picked: bool) -> None:
    num_rows, width, out_width = shape
    x, weight = rows(num_rows, width), rows(width, out_width, seed=1)
    index = torch.arange(num_rows).flip(0) // 2 if picked else None
    for add in (None, rows(out_width, seed=2), rows(num_rows, out_width, seed=3)):
        for turned in (False, True):
            given = weight.t().contiguous() if turned else weight
            wanted = reference.product(x, given, turned=turned, add=add, index=index, out=None)
            found = native.product(x, given, turned=turned, add=add, index=index)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    grad = rows(num_rows, out_width, seed=4)
    wanted = reference.product_weight(x, grad, index=index)
    torch.testing.assert_close(native.product_weight(x, grad, index=index), wanted, rtol=1e-4, atol=1e-3)


def test_a_product_may_be_added_to_where_it_is() -> None:
    x, weight, add = rows(20, 9), rows(9, 40, seed=1), rows(20, 40, seed=2)
    wanted = native.product(x, weight, add=add)
    found = native.product(x, weight, add=add, out=add)
    assert found is add
    assert torch.equal(found, wanted)


def test_no_bit_depends_on_the_number_of_threads() -> None:
    x, weight, grad = rows(5000, 30), rows(30, 50, seed=1), rows(5000, 50, seed=2)
    index, before = torch.arange(5000).flip(0), torch.get_num_threads()
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append((native.product(x, weight), native.product_weight(x, grad, index=index)))
    torch.set_num_threads(before)
    for out, of_weight in found[1:]:
        assert torch.equal(out, found[0][0])
        assert torch.equal(of_weight, found[0][1])
