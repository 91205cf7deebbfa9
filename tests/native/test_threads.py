"""No kernel returns other bits on another number of threads; each has enough work here to be shared among threads."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from siafu import native
from siafu.native import (
    Attention,
    Csr,
    Dropout,
    Epilogue,
    Factors,
    LstmInputs,
    SparseRows,
    Term,
)

pytestmark = pytest.mark.skipif(not native.compiled(), reason="the core was not compiled")

NODES, EDGES, WIDTH = 5000, 80_000, 33
DROP = Dropout.of(0.4, key=77)
KERNELS: dict[str, Callable[[], list[Tensor | None]]] = {}


def kernel(compute: Callable[[], list[Tensor | None]]) -> Callable[[], list[Tensor | None]]:
    KERNELS[compute.__name__] = compute
    return compute


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=seeded(seed))


def ends_of_edges(edges: int = EDGES, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Destinations and sources; a tenth of the edges leads to one node."""
    dst, src = torch.randint(0, NODES, (2, edges), dtype=torch.int32, generator=seeded(seed))
    dst[: edges // 10] = 7
    return dst, src


def graph(*, origin: bool = False, seed: int = 0) -> Csr:
    return native.sort_rows(native.build_csr(*ends_of_edges(seed=seed), num_rows=NODES, origin=origin))


@kernel
def structure() -> list[Tensor | None]:
    csr = native.build_csr(*ends_of_edges(), num_rows=NODES, origin=True)
    in_order = native.sort_rows(csr)
    few = native.build_csr(*ends_of_edges(2 * NODES, seed=1), num_rows=NODES)
    some, name = torch.randperm(NODES, generator=seeded(2)), torch.arange(NODES, dtype=torch.int32).flip(0)
    added = native.apply_delta(
        graph(), add=native.sort_rows(few), drop=native.build_csr(*two_empty(), num_rows=NODES)
    )
    return [
        *(
            each
            for found in (csr, in_order, native.transpose(csr, num_cols=NODES, origin=True))
            for each in found
        ),
        *native.take_rows(in_order, some, name=name, origin=True),
        *added,
        native.count_distinct(in_order),
        native.mark_columns(in_order, some, num_cols=NODES),
        native.missing_loops(in_order, rows(EDGES)),
        native.split_rows(in_order, NODES // 2),
    ]


def two_empty() -> tuple[Tensor, Tensor]:
    return torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=torch.int32)


@kernel
def checks() -> list[Tensor | None]:
    values = torch.zeros(1 << 20, dtype=torch.int64)
    values[700_001] = -1
    unsorted = Csr(torch.arange(0, (1 << 19) + 1, 4), (torch.arange(1 << 19) % 4).int())
    unsorted.indices[400_001] = 9
    found = (
        native.first_out_of_range(values, 5),
        native.first_out_of_range(values.int(), 5),
        native.first_decrease(values),
        native.first_unsorted_row(unsorted),
    )
    return [torch.tensor([-1 if each is None else each for each in found])]


@kernel
def sums() -> list[Tensor | None]:
    csr, scale = graph(), rows(NODES, seed=3)
    found = [
        native.spmm(
            csr, rows(NODES, width, dtype=dtype), weight=rows(EDGES, dtype=dtype), post=scale.to(dtype)
        )
        for dtype in (torch.float32, torch.float64)
        for width in (4, WIDTH)
    ]
    narrow = [native.spmm(csr, rows(NODES, WIDTH).bfloat16()), native.spmm(csr, rows(NODES, WIDTH).char())]
    return [*found, *narrow]


@kernel
def maxima() -> list[Tensor | None]:
    csr, x = graph(), rows(NODES, WIDTH).round()
    turned = native.transpose(csr, num_cols=NODES)
    out, source = native.segment_max(csr, x, node_id=torch.arange(NODES).flip(0))
    return [out, source, native.segment_max_backward(turned, rows(NODES, WIDTH, seed=1), source)]


@kernel
def dense_rows() -> list[Tensor | None]:
    x, index = rows(20_000, WIDTH), torch.randint(0, 20_000, (30_000,), generator=seeded(1))
    found: list[Tensor | None] = [native.gather(x, index), native.argmax_rows(x, index)]
    found += [native.gather(narrow, index, widen=True) for narrow in (x.bfloat16(), x.char())]
    for of in (x, x.double()):
        how = {"activation": "elu", "dropout": DROP, "row_id": None}
        out = native.epilogue(of, bias=of[0].clone(), **how)
        found += [out, *native.epilogue_backward(of, out, **how, with_bias=True)]
    return found


@kernel
def products() -> list[Tensor | None]:
    terms = [Term(rows(20_000, size, seed=size), rows(size, 50, seed=size + 1)) for size in (30, 17)]
    after, grad = Epilogue(rows(50), "relu", DROP, None), rows(20_000, 50, seed=4)
    out = native.product(terms, after=after)
    of_x, of_weights, of_bias = native.product_backward(
        terms, grad, output=out, after=after, wants_x=[True, True]
    )
    wide = native.product([Term(rows(40, 3000), rows(3000, 100))])
    return [out, wide, *of_x, *of_weights, of_bias]


@kernel
def sparse_rows() -> list[Tensor | None]:
    x = SparseRows.from_dense(rows(NODES, 50).clamp(min=1) - 1)
    dropped, summed = x.dropped(DROP, None), native.sparse_sum(graph(), x)
    grads = native.sparse_product_backward(dropped, rows(NODES, WIDTH, seed=2))
    taken = x.take(torch.randint(0, NODES, (9000,), generator=seeded(1)))
    return [
        native.sparse_product(dropped, rows(50, WIDTH, seed=1)),
        *grads,
        summed.indices,
        summed.values,
        taken.values,
        dropped.to_dense(),
    ]


@kernel
def attention() -> list[Tensor | None]:
    csr, found = graph(), list[Tensor | None]()
    turned, grad = native.transpose(csr, num_cols=NODES, origin=True), rows(NODES, 4 * 9, seed=1)
    for heads in (4, 1):
        how, z = Attention(heads, 0.2, DROP), rows(NODES, 36 + 2 * heads)
        saved = native.attend(csr, z, how)
        found += [*saved, native.attend_backward(csr, turned, z, saved, grad, how)]
    return found


@kernel
def attention_v2() -> list[Tensor | None]:
    csr, how = graph(), Attention(4, 0.2, DROP)
    turned = native.transpose(csr, num_cols=NODES, origin=True)
    z, vector = rows(NODES, 2 * 36), rows(4, 9, seed=2)
    saved = native.attend_v2(csr, z, vector, how)
    return [*saved, *native.attend_v2_backward(csr, turned, (z, vector), saved, rows(NODES, 36, seed=1), how)]


@kernel
def recurrent() -> list[Tensor | None]:
    inputs = [Term(rows(3, NODES, 6), rows(6, 32, seed=1))]
    given = LstmInputs(
        inputs, rows(8, 32, seed=2), rows(32), None, (rows(NODES, 8), rows(NODES, 8, seed=3)), 3
    )
    out, after, gates = native.lstm(given, keep=True)
    assert after is not None
    grads = native.lstm_backward(given, out, after, gates=gates, wants=[True])
    return [out, *after, *grads]


@kernel
def samples() -> list[Tensor | None]:
    csr, node_id = graph(), torch.arange(NODES).flip(0)
    seeds = torch.randperm(NODES, generator=seeded(3)).int().repeat(8)
    key, sizes = torch.arange(8), torch.full((8,), NODES)
    drawn = native.sample_edges(csr, seeds, sizes=sizes, key=key, fanout=5, node_id=node_id, edges=True)
    met = native.sample_and_relabel(csr, list(seeds.split(NODES)), key=key, fanout=5, edges=True)
    local = native.local_rows(
        list(seeds[:9].split(3)), drawn.source, [100_000, 9, len(drawn.source) - 100_009]
    )
    by_id, spread = native.sort_rows_by_id(csr, node_id), torch.zeros(EDGES, dtype=torch.int32)
    native.scatter_rows(csr.indptr, csr.indices, torch.arange(NODES), csr.indptr, spread)
    return [*drawn, met.indptr, *met.src_row, *met.new_nodes, *local[0], *local[1], *by_id, spread]


@kernel
def pairs() -> list[Tensor | None]:
    csr, found = graph(), list[Tensor | None]()
    for weight in (rows(32), None):
        factors, grad = Factors(rows(NODES, 32), rows(NODES, 32, seed=1), weight), rows(EDGES, seed=2)
        back = native.pair_rows_backward(factors, csr, grad, with_weight=weight is not None)
        found += [native.pair_rows(factors, csr), *back]
    return found


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    torch.set_num_threads(1)
    alone = KERNELS[name]()
    for threads in (2, 3, 4):
        torch.set_num_threads(threads)
        together = KERNELS[name]()
        assert len(together) == len(alone)
        for one, other in zip(alone, together, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)
