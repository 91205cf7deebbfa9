"""Pair scores and rank counts against plain torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu import native
from siafu.native import Csr, Factors, pairs_reference

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")
anything = settings(max_examples=60, deadline=None)


def whole_numbers(*shape: int, seed: int) -> torch.Tensor:
    """So that sums are exact, and some are equal."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def factors_of(num_src: int, num_dst: int, width: int, *, dot: bool, seed: int) -> Factors:
    weight = None if dot else whole_numbers(width, seed=seed + 2)
    return Factors(
        whole_numbers(num_src, width, seed=seed), whole_numbers(num_dst, width, seed=seed + 1), weight
    )


def sparse(num_src: int, num_dst: int, seed: int) -> tuple[Csr, torch.Tensor]:
    """Some pairs, each once, with scores of their own, some of which are infinitely low."""
    there = whole_numbers(num_src, num_dst, seed=seed) == 2
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)])
    scores = whole_numbers(int(indptr[-1]), seed=seed + 1)
    return Csr(indptr, there.nonzero()[:, 1].int()), torch.where(scores == -2, -torch.inf, scores)


@anything
@given(
    num_src=st.integers(1, 23),
    num_dst=st.integers(1, 70),
    width=st.integers(1, 9),
    positives=st.integers(0, 30),
    dot=st.booleans(),
    stands_instead=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_counts_are_those_of_plain_torch(
    num_src: int, num_dst: int, width: int, positives: int, dot: bool, stands_instead: bool, seed: int
) -> None:
    factors = factors_of(num_src, num_dst, width, dot=dot, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    src = torch.randint(0, num_src, (positives,), generator=draw).sort().values
    dst = torch.randint(0, num_dst, (positives,), generator=draw)
    score = native.pair_scores(factors, src, dst)
    assert torch.equal(score, pairs_reference.pair_scores(factors, src, dst))
    indptr = torch.searchsorted(src, torch.arange(num_src + 1))
    given = sparse(num_src, num_dst, seed) if stands_instead else None
    found = native.count_ranks(factors, indptr, score, given=given)
    if positives:
        wanted = pairs_reference.count_ranks(factors, indptr, score, given=given, rows=range(num_src))
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    cut = num_src // 2
    halves = [
        native.count_ranks(factors, indptr, score, given=given, rows=rows)
        for rows in (slice(cut), slice(cut, num_src))
    ]
    assert all(
        torch.equal(sum(parts), one) for parts, one in zip(zip(*halves, strict=True), found, strict=True)
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize("width", [1, 7, 64])
def test_a_pair_scored_alone_equals_itself_among_all_to_the_last_bit(dot: bool, width: int) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b, w = (torch.randn(*shape, generator=draw) for shape in ((40, width), (50, width), (width,)))
    factors = Factors(a, b, None if dot else w)
    src = torch.arange(40).repeat_interleave(50)
    score = native.pair_scores(factors, src, torch.arange(50).repeat(40))
    found = native.count_ranks(factors, torch.arange(41) * 50, score)
    order = score.sort(descending=True).values
    assert torch.equal(found.above, torch.searchsorted(-order, -score))
    assert int(found.row_same.min()) >= 1


def test_counts_do_not_depend_on_threads() -> None:
    factors = factors_of(100, 90, 5, dot=False, seed=3)
    score = native.pair_scores(factors, torch.arange(100), torch.arange(100) % 90)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = native.count_ranks(factors, torch.arange(101), score)
        torch.set_num_threads(3)
        three = native.count_ranks(factors, torch.arange(101), score)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


@anything
@given(
    num_src=st.integers(1, 70),
    num_dst=st.integers(1, 20),
    width=st.integers(1, 70),
    pairs=st.integers(0, 60),
    dot=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_pairs_to_learn_from_have_the_scores_and_gradients_of_plain_torch(
    num_src: int, num_dst: int, width: int, pairs: int, dot: bool, seed: int
) -> None:
    factors = factors_of(num_src, num_dst, width, dot=dot, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    src = torch.randint(0, num_src, (pairs,), generator=draw).int()
    dst = torch.randint(0, num_dst, (pairs,), generator=draw).int()
    csr, grad = native.build_csr(src, dst, num_rows=num_src), whole_numbers(pairs, seed=seed + 7)
    assert torch.equal(native.pair_rows(factors, csr), pairs_reference.pair_rows(factors, csr))
    found = native.pair_rows_backward(factors, csr, grad, with_weight=not dot)
    wanted = pairs_reference.pair_rows_backward(factors, csr, grad, with_weight=not dot)
    assert torch.equal(found[0], wanted[0])
    assert (found[1] is None) == dot
    if found[1] is not None and wanted[1] is not None:
        assert torch.equal(found[1], wanted[1])
