"""The attention kernels against plain torch."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu import native
from siafu.graph import Block
from siafu.native import Attention, Dropout
from siafu.native import attention_reference as reference

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")

# One head, all of a vector's heads and not all; numbers that the core knows when it is compiled and others.
HEADS = [1, 2, 3, 4, 8]
# Of each: below, at and above every share of a vector (1, 2, 4, 8, 16 floats; 1, 2, 4, 8 doubles), and several vectors.
WIDTHS = [*range(1, 18), 31, 32, 33, 47, 63, 64, 65]
DROPOUT = Dropout.of(0.4, key=0xFEDCBA9876543210)


def block_of(
    edges: list[tuple[int, int]], *, num_dst: int, num_src: int, node_id: Tensor | None = None
) -> Block:
    """A block of (source, destination) pairs."""
    src, dst = torch.tensor(edges, dtype=torch.int32).reshape(-1, 2).T
    csr = native.build_csr(dst, src, num_rows=num_dst)
    return Block(csr.indptr, csr.indices, num_src, node_id=node_id)


# 0 has a loop twice, 1 a double edge, 2 nothing at all, 3 only its loop, 4 sources that are no destinations.
SMALL = [
    (0, 0),
    (1, 0),
    (0, 0),
    (3, 1),
    (0, 1),
    (3, 1),
    (3, 3),
    (5, 4),
    (6, 4),
    (1, 4),
    (0, 4),
    (4, 4),
    (2, 4),
]


def small() -> Block:
    return block_of(SMALL, num_dst=5, num_src=8)


def crowded() -> Block:
    """A destination with more in-edges, and a source with more out-edges, than are worked on together."""
    many = [(s, 0) for s in range(150)] + [(7, d) for d in range(100)]
    return block_of(many, num_dst=100, num_src=150)


@pytest.fixture(params=["chosen", "baseline"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run once on the instruction set of this machine and once on the lowest."""
    native.core.kernels.use_baseline(request.param == "baseline")
    yield request.param
    native.core.kernels.use_baseline(False)


def rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def run(block: Block, z_src: Tensor, grad_dst: Tensor, how: Attention) -> list[Tensor]:
    """The output and the gradient of GAT's kernel."""
    saved = native.attend(block.csr, z_src, how)
    grad = native.attend_backward(block.csr, block.transposed, z_src, saved, grad_dst, how)
    return [*saved, grad]


def run_v2(block: Block, z_src: Tensor, vector: Tensor, grad_dst: Tensor, how: Attention) -> list[Tensor]:
    """The output and the gradients of GATv2's kernel."""
    saved = native.attend_v2(block.csr, z_src, vector, how)
    return [
        *saved,
        *native.attend_v2_backward(block.csr, block.transposed, (z_src, vector), saved, grad_dst, how),
    ]


def expect(block: Block, z_src: Tensor, grad_dst: Tensor, how: Attention) -> list[Tensor]:
    return [
        *reference.attend(block.csr, z_src, how),
        reference.attend_backward(block.csr, z_src, grad_dst, how),
    ]


def expect_v2(block: Block, z_src: Tensor, vector: Tensor, grad_dst: Tensor, how: Attention) -> list[Tensor]:
    grads = reference.attend_v2_backward(block.csr, z_src, vector, grad_dst, how)
    return [*reference.attend_v2(block.csr, z_src, vector, how), *grads]


def assert_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        tolerance = (
            2e-5 if one.dtype == torch.float32 else 1e-12
        )  # sums of hundreds of numbers, in another order
        torch.testing.assert_close(
            one, other, rtol=tolerance, atol=tolerance * (1 + float(other.abs().max()))
        )


def check(block: Block, how: Attention, width: int, dtype: torch.dtype = torch.float32) -> None:
    """Both kernels, forward and backward, against their references."""
    heads = how.heads
    grad_dst = rows(block.num_dst, heads * width, dtype=dtype, seed=1)
    z_src = rows(block.num_src, heads * width + 2 * heads, dtype=dtype, seed=2)
    assert_close(run(block, z_src, grad_dst, how), expect(block, z_src, grad_dst, how))
    z_src, vector = (
        rows(block.num_src, 2 * heads * width, dtype=dtype, seed=3),
        rows(heads, width, dtype=dtype),
    )
    assert_close(run_v2(block, z_src, vector, grad_dst, how), expect_v2(block, z_src, vector, grad_dst, how))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dropout", [Dropout(), DROPOUT], ids=["whole", "dropped"])
def test_kernels_agree_with_plain_torch(
    instructions: str, heads: int, dtype: torch.dtype, dropout: Dropout
) -> None:
    for width in WIDTHS:
        check(small(), Attention(heads, 0.2, dropout), width, dtype)


@pytest.mark.parametrize(("heads", "width"), [(1, 9), (4, 9), (64, 9), (8, 8), (7, 8), (8, 4)])
def test_rows_with_many_edges_are_summed_in_batches(instructions: str, heads: int, width: int) -> None:
    check(crowded(), Attention(heads, 0.2, DROPOUT), width)


def test_a_block_without_edges_gives_each_destination_its_own_row(instructions: str) -> None:
    block = block_of([], num_dst=3, num_src=4)
    z_src = rows(4, 2 * 5 + 4)
    out, _ = native.attend(block.csr, z_src, Attention(2))
    torch.testing.assert_close(out, z_src[:3, :10])
    check(block, Attention(2), 5)


def test_a_block_without_destinations_gives_no_rows() -> None:
    check_shapes = native.attend(block_of([], num_dst=0, num_src=2).csr, rows(2, 6), Attention(1))[0]
    assert check_shapes.shape == (0, 4)


def test_loops_in_the_graph_change_nothing() -> None:
    plain = [(s, d) for s, d in SMALL if s != d]
    z_src, grad_dst = rows(8, 3 * 4 + 2 * 4), rows(5, 3 * 4, seed=1)
    how = Attention(4, 0.2, DROPOUT)
    with_loops = run(small(), z_src, grad_dst, how)
    without = run(block_of(plain, num_dst=5, num_src=8), z_src, grad_dst, how)
    for one, other in zip(with_loops, without, strict=True):
        assert torch.equal(one, other)


def test_large_scores_neither_overflow_nor_vanish(instructions: str) -> None:
    how = Attention(2)
    z_src, grad_dst = rows(8, 2 * 4 + 4, dtype=torch.float64), rows(5, 8, dtype=torch.float64, seed=1)
    z_src[:, 8:] *= 1e4
    assert_close(run(small(), z_src, grad_dst, how), expect(small(), z_src, grad_dst, how))
    narrow = run(small(), z_src.float(), grad_dst.float(), how)
    vector = rows(2, 4) * 1e4
    narrow += run_v2(small(), rows(8, 16), vector, grad_dst.float(), how)
    assert all(bool(value.isfinite().all()) for value in narrow)


def test_not_a_number_is_passed_on() -> None:
    z_src = rows(8, 6)
    z_src[6, 4] = float("nan")  # source 6 has an edge to destination 4 alone
    out, _ = native.attend(small().csr, z_src, Attention(1))
    assert out[4].isnan().all()
    assert not out[:4].isnan().any()


def test_rows_within_wider_rows_and_expanded_gradients_are_taken() -> None:
    wide, how = rows(8, 30), Attention(2)
    z_src, grad_dst = wide[:, 3:15], torch.ones(1).expand(5, 8)
    assert_close(run(small(), z_src, grad_dst, how), expect(small(), z_src, grad_dst, how))


def test_what_lies_beyond_a_row_is_neither_read_nor_written(instructions: str) -> None:
    """Columns beside the rows are not a number, and stay so."""
    block = small()
    for heads, width in ((8, 8), (3, 5), (8, 3), (5, 16), (1, 47)):
        how, columns = Attention(heads, 0.2, DROPOUT), heads * width
        z_src, grad_dst = rows(8, columns + 2 * heads), rows(5, columns, seed=1)
        wide = torch.full((10, columns), float("nan"))
        top = torch.full((10, 2, heads), float("nan"))
        into = wide[:5], top[:5]
        native.attend(block.csr, z_src, how, into=into)
        assert wide[:5].isfinite().all()
        assert wide[5:].isnan().all()
        assert top[5:].isnan().all()
        assert run(block, z_src, grad_dst, how)[-1].isfinite().all()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("heads", "width"), [(4, 9), (8, 8), (3, 5), (1, 47)])
def test_the_number_of_threads_changes_no_bit(version: int, heads: int, width: int) -> None:
    block, how, columns = crowded(), Attention(heads, 0.2, DROPOUT), heads * width
    grad_dst, vector = rows(100, columns, seed=1), rows(heads, width)

    def result() -> list[Tensor]:
        if version == 1:
            return run(block, rows(150, columns + 2 * heads), grad_dst, how)
        return run_v2(block, rows(150, 2 * columns), vector, grad_dst, how)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = result()
        torch.set_num_threads(3)
        together = result()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_relabelled_nodes_drop_the_same_edges() -> None:
    edges = [(s, d) for s, d in SMALL if max(s, d) < 5]
    block = block_of(edges, num_dst=5, num_src=5)
    order = torch.tensor([3, 0, 4, 1, 2])
    csr = native.relabel(block.csr, order)
    moved = Block(csr.indptr, csr.indices, 5, node_id=order)
    z_src, grad_dst = rows(5, 6 + 4, dtype=torch.float64), rows(5, 6, dtype=torch.float64, seed=1)
    found = run(moved, z_src[order], grad_dst[order], Attention(2, 0.2, DROPOUT, order))
    assert_close(found, [value[order] for value in run(block, z_src, grad_dst, Attention(2, 0.2, DROPOUT))])


def test_dropout_drops_at_its_rate_and_heads_differ() -> None:
    src, dst = torch.arange(200).repeat(200), torch.arange(200).repeat_interleave(200)
    kept = reference.attention_dropout_mask(Dropout.of(0.3, key=5), dst, src, 4)
    assert float(kept.float().mean()) == pytest.approx(0.7, abs=0.005)
    both = (kept[:, 0] & kept[:, 1]).float().mean()
    assert float(both) == pytest.approx(0.49, abs=0.01)
    swapped = reference.attention_dropout_mask(Dropout.of(0.3, key=5), src, dst, 4)
    assert not torch.equal(kept, swapped)  # an edge and its reverse are two


def test_a_negative_slope_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slope below zero is -0\.1"):
        native.attend(small().csr, rows(8, 3), Attention(1, -0.1))


def test_too_many_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="513 heads"):
        native.attend(small().csr, rows(8, 3 * 513), Attention(513))


@settings(max_examples=30, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=30),
    heads=st.integers(1, 5),
    width=st.integers(1, 20),
    slope=st.sampled_from([0.0, 0.2, 1.0, 1.5]),
)
def test_any_block_agrees_with_plain_torch(
    edges: list[tuple[int, int]], heads: int, width: int, slope: float
) -> None:
    node_id = torch.tensor([9, 2**40, 4, 0, 77, 1, 5])
    block = block_of(edges, num_dst=4, num_src=7, node_id=node_id)
    check(block, Attention(heads, slope, DROPOUT, node_id), width, torch.float64)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-7), (torch.float64, 1e-15)])
def test_elu_is_exact_to_the_last_digits(instructions: str, dtype: torch.dtype, tolerance: float) -> None:
    x = torch.cat([-torch.logspace(-30, 2.5, 4000, dtype=torch.float64), torch.tensor([0.0, 1.5, -1e30])])
    x = x.to(dtype)[None]
    found = native.epilogue(x, bias=None, activation="elu", dropout=Dropout())
    exact = torch.where(x > 0, x.double(), x.double().expm1())
    error = (found.double() - exact).abs() / exact.abs().clamp(min=1e-37)
    assert float(error.max()) <= tolerance
