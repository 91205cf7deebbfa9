"""Kernels on rows (sparse.py, dense_rows.py) against plain torch: sums, maxima, gather and epilogue."""

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu import native
from siafu.graph import Block, Graph
from siafu.native import Csr, Dropout, reference
from siafu.nn import Gnn, ModelConfig
from siafu.nn.dropout import set_keys

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")

# Below, at and above every multiple of a vector (4, 8, 16 floats; 2, 4, 8 doubles) and of a tile of them.
WIDTHS = [1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65, 100, 256, 300]
DTYPES = [torch.float32, torch.float64]
DROPOUTS = [Dropout(), Dropout.of(0.4, key=0xFEDCBA9876543210)]


def block_of(edges: list[tuple[int, int]], *, num_dst: int, num_src: int) -> Block:
    """A block of (source, destination) pairs."""
    src, dst = torch.tensor(edges, dtype=torch.int32).reshape(-1, 2).T
    csr = native.build_csr(dst, src, num_rows=num_dst)
    return Block(csr.indptr, csr.indices, num_src)


# 0 has a loop twice, 1 a double edge, 2 no edge at all, 3 only its loop, 4 no in-edge, 5 many in-edges.
SMALL = [(0, 0), (1, 0), (0, 0), (3, 1), (0, 1), (3, 1), (3, 3), (4, 5), (0, 5), (1, 5), (5, 5), (3, 5)]
BLOCKS = {
    "square": block_of(SMALL, num_dst=6, num_src=6),
    "rectangular": block_of([*SMALL, (7, 0), (8, 5)], num_dst=6, num_src=9),
    "without edges": block_of([], num_dst=3, num_src=4),
    "one node": block_of([(0, 0)], num_dst=1, num_src=1),
}


def crowded() -> Block:
    """More rows than one thread takes at a time, and a row with more edges than are fetched ahead."""
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, 1500, (2, 12_000), generator=generator)
    edges = [*zip(src.tolist(), dst.tolist(), strict=True), *((s, 7) for s in range(500))]
    return block_of(edges, num_dst=1500, num_src=1500)


@pytest.fixture(params=["chosen", "baseline"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run once on the instruction set of this machine and once on the lowest."""
    native.core.kernels.use_baseline(request.param == "baseline")
    yield request.param
    native.core.kernels.use_baseline(False)


@pytest.fixture(autouse=True)
def threads() -> Iterator[Callable[[int], None]]:
    """One thread, since rows are few, unless a test sets another number; what it was comes back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    tolerance = 1e-5 if found.dtype == torch.float32 else 1e-12
    scale = 1 + (float(wanted.detach().abs().max()) if wanted.numel() else 0.0)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * scale)


def scales_of(block: Block, dtype: torch.dtype) -> Iterator[dict[str, Tensor | None]]:
    """Every combination of weight, pre, post and loop, there or not."""
    given_scales = {
        "weight": rows(block.num_edges, dtype=dtype, seed=1),
        "pre": rows(block.num_src, dtype=dtype, seed=2),
        "post": rows(block.num_dst, dtype=dtype, seed=3),
        "loop": rows(block.num_dst, dtype=dtype, seed=4).relu(),
    }
    for there in product([True, False], repeat=4):
        yield {key: given_scales[key] if on else None for key, on in zip(given_scales, there, strict=True)}


def backward(block: Block, grad_dst: Tensor, scales: dict[str, Tensor | None]) -> Tensor:
    """The gradient of a sum: the sum over the transposed block, its scales exchanged."""
    weight, origin = scales["weight"], block.transposed.origin
    assert origin is not None
    return native.spmm(
        block.transposed,
        grad_dst,
        weight=None if weight is None else weight[origin],
        pre=scales["post"],
        post=scales["pre"],
        loop=scales["loop"],
    )


def check_spmm(block: Block, width: int, dtype: torch.dtype) -> None:
    """Values and gradients, for every combination of scales."""
    x_src = rows(block.num_src, width, dtype=dtype)
    grad_dst = rows(block.num_dst, width, dtype=dtype, seed=5)
    for scales in scales_of(block, dtype):
        leaf = x_src.clone().requires_grad_()
        wanted = reference.spmm(block.csr, leaf, **scales)
        assert_close(native.spmm(block.csr, x_src, **scales), wanted.detach())
        (wanted_grad,) = torch.autograd.grad(wanted, leaf, grad_dst)
        assert_close(backward(block, grad_dst, scales), wanted_grad)


def check_max(block: Block, width: int, dtype: torch.dtype) -> None:
    """Values, sources and gradients."""
    x_src = rows(block.num_src, width, dtype=dtype)
    grad_dst = rows(block.num_dst, width, dtype=dtype, seed=5)
    (out, source), (wanted, wanted_source) = (
        native.segment_max(block.csr, x_src),
        reference.segment_max(block.csr, x_src),
    )
    assert torch.equal(out, wanted)
    assert torch.equal(source, wanted_source)
    found = native.segment_max_backward(block.transposed, grad_dst, source)
    assert_close(found, reference.segment_max_backward(block.transposed, grad_dst, source))
    leaf = x_src.clone().requires_grad_()
    top = reference.segment_max(block.csr, leaf)[0]
    assert_close(found, torch.autograd.grad(top, leaf, grad_dst)[0])


def check_epilogue(width: int, dtype: torch.dtype, activation: str, dropout: Dropout) -> None:
    """Values and gradients with and without bias and row ids, against autograd of the plain formula."""
    x, grad = rows(37, width, dtype=dtype), rows(37, width, dtype=dtype, seed=5)
    for bias, row_id in product([None, rows(width, dtype=dtype, seed=1)], [None, torch.randperm(37) * 2**33]):
        how = {"activation": activation, "dropout": dropout, "row_id": row_id}
        leaves = [x.clone().requires_grad_(), *([] if bias is None else [bias.clone().requires_grad_()])]
        wanted = reference.epilogue(leaves[0], bias=None if bias is None else leaves[1], **how)
        output = native.epilogue(x, bias=bias, **how)
        assert_close(output, wanted.detach())
        found = native.epilogue_backward(grad, output, with_bias=bias is not None, **how)
        assert (found[1] is None) == (bias is None)
        for one, other in zip(found, torch.autograd.grad(wanted, leaves, grad), strict=False):
            assert one is not None
            assert_close(one, other)
        for one, other in zip(
            found,
            reference.epilogue_backward(grad, output, with_bias=bias is not None, **how),
            strict=True,
        ):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert_close(one, other)


def test_the_lowest_instruction_set_can_be_asked_for(instructions: str) -> None:
    assert (native.instruction_set() == "baseline") or instructions == "chosen"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_agree_with_plain_torch(instructions: str, width: int, dtype: torch.dtype) -> None:
    for name in ("square", "rectangular"):
        check_spmm(BLOCKS[name], width, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_sum_in_two_goes_is_the_sum(instructions: str, width: int, dtype: torch.dtype) -> None:
    for name, cut in (("square", 3), ("rectangular", BLOCKS["rectangular"].num_dst)):
        block = BLOCKS[name]
        csr = native.sort_rows(block.csr)
        x_src, ends = rows(block.num_src, width, dtype=dtype), native.split_rows(csr, cut)
        for scales in scales_of(block, dtype):
            pre, loop = scales["pre"], scales["loop"]
            loop = None if loop is None else loop[:cut]
            ranges = [None, None] if pre is None else [pre[:cut], pre[cut:]]
            first = scales | {"pre": ranges[0], "loop": loop}
            second = scales | {"pre": ranges[1], "loop": None}
            for kernels in (native, reference):
                out = kernels.spmm(csr, x_src[:cut], **first, ends=ends)
                rest = Csr(ends, csr.indices)
                again = kernels.spmm(
                    rest, x_src[cut:], **second, ends=csr.indptr[1:], first_src=cut, add_to=out
                )
                assert again is out
                zeros = torch.zeros_like(out)
                assert_close(
                    kernels.spmm(csr, x_src, **(scales | {"loop": loop}), add_to=zeros),
                    reference.spmm(csr, x_src, **(scales | {"loop": loop})),
                )
                assert_close(out, reference.spmm(csr, x_src, **(scales | {"loop": loop})))


def test_of_equal_rows_the_lowest_id_gives_the_maximum(instructions: str) -> None:
    block = BLOCKS["square"]
    x_src = rows(block.num_src, 9).relu().round()  # many ties
    node_id = torch.randperm(block.num_src, generator=torch.Generator().manual_seed(1)) + 2**40
    out, source = native.segment_max(block.csr, x_src, node_id=node_id)
    wanted, wanted_source = reference.segment_max(block.csr, x_src, node_id=node_id)
    assert torch.equal(out, wanted)
    assert torch.equal(source, wanted_source)
    assert not torch.equal(source, native.segment_max(block.csr, x_src)[1])
    for row, (begin, end) in enumerate(
        zip(block.indptr[:-1].tolist(), block.indptr[1:].tolist(), strict=True)
    ):
        sources = block.indices[begin:end].long()
        for column in range(9 if end > begin else 0):
            best = sources[x_src[sources, column] == out[row, column]]
            assert int(source[row, column]) == int(best[node_id[best].argmin()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_maxima_agree_with_plain_torch(instructions: str, width: int, dtype: torch.dtype) -> None:
    for name in ("square", "rectangular"):
        check_max(BLOCKS[name], width, dtype)


@pytest.mark.parametrize("name", ["without edges", "one node"])
def test_blocks_with_almost_nothing_agree_with_plain_torch(instructions: str, name: str) -> None:
    for width, dtype in product([1, 8, 65], DTYPES):
        check_spmm(BLOCKS[name], width, dtype)
        check_max(BLOCKS[name], width, dtype)


@pytest.mark.parametrize("width", [3, 16, 100])
def test_many_rows_agree_with_plain_torch(instructions: str, width: int) -> None:
    block = crowded()
    check_spmm(block, width, torch.float64)
    check_max(block, width, torch.float32)


def test_a_block_without_destinations_gives_no_rows() -> None:
    block = block_of([], num_dst=0, num_src=2)
    assert native.spmm(block.csr, rows(2, 9)).shape == (0, 9)
    assert [value.shape for value in native.segment_max(block.csr, rows(2, 9))] == [(0, 9), (0, 9)]
    assert torch.equal(native.spmm(block.transposed, rows(0, 9)), torch.zeros(2, 9))


def test_rows_without_columns_stay_without_columns() -> None:
    block = BLOCKS["square"]
    assert native.spmm(block.csr, rows(6, 0)).shape == (6, 0)
    assert native.segment_max(block.csr, rows(6, 0))[0].shape == (6, 0)


def test_a_destination_without_neighbours_gets_zeros() -> None:
    block = BLOCKS["square"]
    out, source = native.segment_max(block.csr, rows(6, 5) - 10)
    for empty in (2, 4):
        assert torch.equal(native.spmm(block.csr, rows(6, 5))[empty], torch.zeros(5))
        assert torch.equal(out[empty], torch.zeros(5))
        assert torch.equal(source[empty], torch.full((5,), -1, dtype=torch.int32))


def test_of_equal_maxima_the_first_gets_the_gradient_once(instructions: str) -> None:
    block = block_of([(2, 0), (1, 0), (2, 0), (3, 0)], num_dst=1, num_src=4)
    x_src = torch.tensor([[9.0], [5.0], [5.0], [1.0]]).repeat(1, 11)
    out, source = native.segment_max(block.csr, x_src)
    assert torch.equal(out, torch.full((1, 11), 5.0))
    assert torch.equal(source, torch.full((1, 11), 2, dtype=torch.int32))
    grad_src = native.segment_max_backward(block.transposed, torch.ones(1, 11), source)
    assert torch.equal(grad_src, torch.tensor([[0.0], [0.0], [1.0], [0.0]]).repeat(1, 11))


@pytest.mark.parametrize("width", [1, 7, 8, 16, 31, 65, 256])
def test_bfloat16_rows_are_summed_in_float32(instructions: str, width: int) -> None:
    for block in (BLOCKS["square"], BLOCKS["rectangular"], BLOCKS["without edges"]):
        x_src = rows(block.num_src, width).to(torch.bfloat16)
        for scales in scales_of(block, torch.float32):
            found = native.spmm(block.csr, x_src, **scales)
            assert found.dtype == torch.float32
            assert_close(found, reference.spmm(block.csr, x_src.float(), **scales))


def test_a_long_sum_of_bfloat16_rows_does_not_stall() -> None:
    block = block_of([(s, 0) for s in range(3000)], num_dst=1, num_src=3000)
    found = native.spmm(block.csr, torch.ones(3000, 17, dtype=torch.bfloat16))
    assert torch.equal(found, torch.full((1, 17), 3000.0))  # bfloat16 itself would stop at 256


@pytest.mark.parametrize("width", [1, 3, 7, 8, 16, 31, 65, 256])
def test_int8_rows_are_summed_in_float32(instructions: str, width: int) -> None:
    for block in (BLOCKS["square"], BLOCKS["rectangular"], BLOCKS["without edges"]):
        x_src = (rows(block.num_src, width) * 60).round().clamp(-127, 127).to(torch.int8)
        for scales in scales_of(block, torch.float32):
            found = native.spmm(block.csr, x_src, **scales)
            assert found.dtype == torch.float32
            torch.testing.assert_close(
                found, reference.spmm(block.csr, x_src, **scales), rtol=1e-5, atol=1e-3
            )
            assert torch.equal(
                reference.spmm(block.csr, x_src, **scales), reference.spmm(block.csr, x_src.float(), **scales)
            )


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [1, 7, 33])
def test_gathered_rows_are_widened(instructions: str, width: int, dtype: torch.dtype) -> None:
    table = (rows(9, width) * 60).round().to(dtype)
    for index in (torch.tensor([8, 0, 0, 3]), torch.empty(0, dtype=torch.int64)):
        for widen in (True, False):
            found = native.gather(table, index, widen=widen)
            assert found.dtype == (torch.float32 if widen else dtype)
            assert torch.equal(found, reference.gather(table, index, widen=widen))
            assert torch.equal(found, table[index].to(found.dtype))


@pytest.mark.parametrize("width", [1, 2, 7, 16, 47, 64])
def test_the_largest_column_is_the_first_of_equal_ones(instructions: str, width: int) -> None:
    x = rows(3000, width).round()  # with many equal numbers
    x[5], x[6, -1] = 0, 9
    index = torch.arange(3000).flip(0)[::3].contiguous()
    assert torch.equal(native.argmax_rows(x, index), x[index].argmax(1))
    assert native.argmax_rows(x, index[:0]).shape == (0,)
    assert int(native.argmax_rows(torch.full((1, width), float("nan")), torch.tensor([0]))) < width


def test_rows_that_do_not_lie_side_by_side_are_taken() -> None:
    block, wide = BLOCKS["square"], rows(20, 12)
    for x in (wide[:6, ::2], wide[:6, 3:9], wide[::2, :6][:6], rows(6, 6).T, torch.ones(1).expand(6, 6)):
        assert_close(native.spmm(block.csr, x), reference.spmm(block.csr, x))
        assert torch.equal(native.segment_max(block.csr, x)[0], reference.segment_max(block.csr, x)[0])
        source = native.segment_max(block.csr, rows(6, 6))[1][:, : x.shape[1]]
        assert_close(
            native.segment_max_backward(block.transposed, x, source),
            reference.segment_max_backward(block.transposed, x, source),
        )
        for activation, dropout in product(["none", "relu", "elu"], DROPOUTS):
            out = native.epilogue(x, bias=None, activation=activation, dropout=dropout)
            assert_close(out, reference.epilogue(x, bias=None, activation=activation, dropout=dropout))
            how = {"activation": activation, "dropout": dropout, "row_id": None, "with_bias": False}
            found, _ = native.epilogue_backward(x, out, **how)
            assert_close(found, reference.epilogue_backward(x, out, **how)[0])


@pytest.mark.parametrize("dropout", DROPOUTS, ids=["whole", "dropped"])
@pytest.mark.parametrize("activation", ["none", "relu", "elu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_epilogues_agree_with_plain_torch(
    instructions: str, dtype: torch.dtype, activation: str, dropout: Dropout
) -> None:
    for width in WIDTHS:
        check_epilogue(width, dtype, activation, dropout)


def test_an_epilogue_may_overwrite_its_input() -> None:
    x, bias = rows(9, 13), rows(13, seed=1)
    wanted = native.epilogue(x, bias=bias, activation="elu", dropout=DROPOUTS[1])
    returned = native.epilogue(x, bias=bias, activation="elu", dropout=DROPOUTS[1], out=x)
    assert returned is x
    assert torch.equal(x, wanted)


def test_an_epilogue_of_no_rows_has_no_gradient() -> None:
    how = {"activation": "relu", "dropout": DROPOUTS[1]}
    assert native.epilogue(rows(0, 5), bias=rows(5), **how).shape == (0, 5)
    grad, grad_bias = native.epilogue_backward(rows(0, 5), rows(0, 5), row_id=None, with_bias=True, **how)
    assert grad.shape == (0, 5)
    assert torch.equal(grad_bias, torch.zeros(5))


@pytest.mark.parametrize("compiled", [True, False])
def test_not_a_number_is_passed_on(
    instructions: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, x = BLOCKS["square"], rows(6, 9)
    x[1] = float("nan")  # source 1 has edges to 0, where it stands between others, and to 5
    if not compiled:
        monkeypatch.setattr(native.core, "kernels", None)
    for out in (native.spmm(block.csr, x), native.segment_max(block.csr, x)[0]):
        assert out[[0, 5]].isnan().all()
        assert not out[[1, 2, 3, 4]].isnan().any()
    assert torch.equal(native.segment_max(block.csr, x)[1][0], torch.full((9,), 1, dtype=torch.int32))
    for activation in ("none", "relu", "elu"):
        out = native.epilogue(x, bias=None, activation=activation, dropout=Dropout())
        assert out[1].isnan().all()
        assert not out[[0, 2, 3, 4, 5]].isnan().any()


def everything(block: Block) -> list[Tensor]:
    """The results of every row kernel on one block."""
    x = rows(block.num_src, 47)
    scales = next(scales_of(block, torch.float32))
    top, source = native.segment_max(block.csr, x)
    activated = native.epilogue(x, bias=x[0], activation="elu", dropout=DROPOUTS[1])
    grads = native.epilogue_backward(
        x, activated, activation="elu", dropout=DROPOUTS[1], row_id=None, with_bias=True
    )
    assert grads[1] is not None
    return [
        native.spmm(block.csr, x, **scales),
        native.spmm(block.csr, x.to(torch.bfloat16), **scales),
        native.spmm(block.csr, x.mul(60).clamp(-127, 127).to(torch.int8), **scales),
        backward(block, x, scales),
        top,
        source,
        native.segment_max_backward(block.transposed, x, source),
        activated,
        *(grad for grad in grads if grad is not None),
    ]


def test_the_number_of_threads_changes_no_bit(instructions: str, threads: Callable[[int], None]) -> None:
    block = crowded()
    threads(1)
    alone = everything(block)
    for count in (2, 3):
        threads(count)
        assert all(torch.equal(one, other) for one, other in zip(alone, everything(block), strict=True))


def test_both_instruction_sets_draw_the_same_mask() -> None:
    x = torch.ones(50, 300)
    masks = []
    for baseline in (True, False):
        native.core.kernels.use_baseline(baseline)
        masks.append(native.epilogue(x, bias=None, activation="none", dropout=DROPOUTS[1]))
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0] != 0, reference.dropout_mask(DROPOUTS[1], torch.arange(50), 300))


@settings(max_examples=60, deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=30),
    width=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
)
def test_any_block_agrees_with_plain_torch(
    edges: list[tuple[int, int]], width: int, dtype: torch.dtype
) -> None:
    block = block_of(edges, num_dst=4, num_src=7)
    check_spmm(block, width, dtype)
    check_max(block, width, dtype)


def training_step(kind: str) -> list[Tensor]:
    """The output and all gradients of one step with dropout."""
    graph = Graph.from_edges([[0, 1, 2, 3, 3, 5, 0], [1, 2, 0, 0, 3, 1, 4]], x=rows(7, 5))
    assert graph.x is not None
    config = ModelConfig(kind=kind, layers=3, hidden=8, heads=2, norm="layer", residual=True)
    model = Gnn(config, in_features=5, out_features=3)
    model.reset(torch.Generator().manual_seed(3))
    set_keys(model, seed=1, step=2)
    out = model(graph.block.with_static(graph.x), graph.x)
    torch.nn.functional.cross_entropy(out, torch.tensor([0, 1, 2, 0, 1, 2, 0])).backward()
    grads = [parameter.grad for parameter in model.parameters()]
    return [out.detach(), *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat", "gatv2"])
def test_a_training_step_is_the_same_without_the_compiled_core(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = training_step(kind)
    monkeypatch.setattr(native.core, "kernels", None)
    assert native.instruction_set() == "reference"
    plain = training_step(kind)
    for one, other in zip(compiled, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
