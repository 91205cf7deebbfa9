"""Pair scores and rank counts against plain torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu import native
from siafu.native import Csr, Factors, RankCounts, pairs_reference

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


def repeated(x: torch.Tensor, rows: int, seed: int) -> torch.Tensor:
    """So many rows, of which some are equal."""
    draw = torch.Generator().manual_seed(seed)
    return x[torch.randint(0, x.shape[0], (rows,), generator=draw)]


def counted(scores: torch.Tensor, indptr: torch.Tensor, score: torch.Tensor, rows: slice) -> RankCounts:
    """The counts of some rows of an array of all scores, (S, C)."""
    row = torch.arange(scores.shape[0]).repeat_interleave(indptr.diff())
    looked_at = torch.zeros(scores.shape[0], dtype=torch.bool)
    looked_at[rows] = True
    own, every = scores[row], scores[rows].reshape(-1).sort().values
    every = every[~every.isnan()]
    below, up_to = (torch.searchsorted(every, score, right=right) for right in (False, True))
    row_above, row_same = (own > score[:, None]).sum(1), (own == score[:, None]).sum(1)
    return RankCounts(
        every.numel() - up_to, up_to - below, row_above * looked_at[row], row_same * looked_at[row]
    )


def assert_equal(found: RankCounts, wanted: RankCounts) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one, other)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[Factors, torch.Tensor, torch.Tensor, tuple[Csr, torch.Tensor] | None]:
    """Factors, some with equal rows and infinities, positives by row, of which few or many are at computed scores."""
    num_src, num_dst, width = (draw(st.integers(1, most)) for most in (40, 1100, 70))
    seed, distinct = draw(st.integers(0, 10**6)), draw(st.sampled_from([1, 3, 2000]))
    random = torch.Generator().manual_seed(seed)
    a, b, w = (
        torch.randn(*size, generator=random) for size in ((num_src, width), (num_dst, width), (width,))
    )
    if draw(st.booleans()):
        a, b, w = (x.round() for x in (a, b, w))
    for x in (a, b) if draw(st.booleans()) else ():
        x[torch.rand(x.shape, generator=random) < 0.1 / width] = draw(
            st.sampled_from([torch.inf, -torch.inf, torch.nan])
        )
    a, b = (repeated(x[:distinct], x.shape[0], seed) for x in (a, b))
    factors = Factors(a, b, None if draw(st.booleans()) else w)
    positives = draw(st.sampled_from([1, 5, 40, 3000]))
    src = torch.randint(0, num_src, (positives,), generator=random).sort().values
    dst = torch.randint(0, num_dst, (positives,), generator=random)
    score = native.pair_scores(factors, src, dst).nan_to_num(nan=0.5)
    moved = torch.rand(positives, generator=random) < 0.3
    score = torch.where(moved, torch.nextafter(score, score + 1), score)
    pairs = sparse(num_src, num_dst, seed) if draw(st.booleans()) else None
    return factors, torch.searchsorted(src, torch.arange(num_src + 1)), score, pairs


@anything
@given(ranking=rankings(), threads=st.sampled_from([1, 2, 4]), share=st.floats(0, 1))
def test_counts_are_those_of_an_array_of_all_scores(
    ranking: tuple[Factors, torch.Tensor, torch.Tensor, tuple[Csr, torch.Tensor] | None],
    threads: int,
    share: float,
) -> None:
    factors, indptr, score, given_scores = ranking
    num_src, num_dst = factors.a_src.shape[0], factors.b_dst.shape[0]
    src, dst = torch.arange(num_src).repeat_interleave(num_dst), torch.arange(num_dst).repeat(num_src)
    scores = native.pair_scores(factors, src, dst).view(num_src, num_dst)
    if given_scores is not None:
        csr, values = given_scores
        scores[torch.arange(num_src).repeat_interleave(csr.indptr.diff()), csr.indices.long()] = values
    cut = round(share * num_src)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for rows in (slice(0, cut), slice(cut, num_src), slice(0, num_src)):
            found = native.count_ranks(factors, indptr, score, given=given_scores, rows=rows)
            wanted = counted(scores, indptr, score, rows)
            assert_equal(found, wanted)
            own = native.count_ranks(factors, indptr, score, given=given_scores, rows=rows, overall=False)
            nothing = torch.zeros_like(wanted.above)
            assert_equal(own, wanted._replace(above=nothing, same=nothing))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize(("distinct", "each"), [(1, 70_000), (5, 16_000)])
def test_counts_of_equal_rows_may_exceed_32_bits(dot: bool, distinct: int, each: int) -> None:
    rows = torch.arange(1.0, distinct + 1).repeat_interleave(each)[:, None]
    factors = Factors(rows, rows, None if dot else torch.ones(1))
    indptr = torch.zeros(rows.shape[0] + 1, dtype=torch.int64)
    indptr[1:] = 2
    found = native.count_ranks(factors, indptr, torch.tensor([0.0, float(rows[0] * rows[0]) + 1 - dot]))
    assert found.above.tolist() == [(distinct * each) ** 2, (distinct * each) ** 2 - each**2]
    assert found.same.tolist() == [0, each**2]
    assert found.row_above.tolist() == [distinct * each, (distinct - 1) * each]


def test_rows_are_distinct_if_a_bit_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    nan = torch.nan
    x = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0], [nan, 2.0], [0.0, 1.5], [nan, 2.0], [-0.0, 1.0]])
    wanted = [[0, 1, 0, 2, 3, 2, 1], [0, 1, 3, 4], [2, 2, 2, 1]]
    assert [each.tolist() for each in native.distinct_rows(x)] == wanted
    assert [each.tolist() for each in native.distinct_rows(x[:0])] == [[], [], []]
    assert native.distinct_rows(x[:, :0]).times.tolist() == [7]
    odd = torch.randint(0, 2, (5000, 3), generator=torch.Generator().manual_seed(0)).float()
    assert native.distinct_rows(odd).times.numel() == 8
    found = native.distinct_rows(odd)
    monkeypatch.setattr(native.core, "kernels", None)
    assert [each.tolist() for each in native.distinct_rows(x)] == wanted
    for one, other in zip(found, native.distinct_rows(odd), strict=True):
        assert torch.equal(one, other)


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
