"""Kernels on consecutive ranges of rows give the same bits as on all rows at once."""

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from siafu import native
from siafu.native import AttendBackward, AttendV2Backward, Attention, Csr, CsrPair, Dropout

ROWS, SOURCES, WIDTH, HEADS = 40, 55, 12, 2


@pytest.fixture(autouse=True, params=["core", "reference"])
def _with_or_without_the_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "reference":
        monkeypatch.setattr(native.core, "kernels", None)


@pytest.fixture
def csr() -> Csr:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(ROWS - 3, (300,), generator=draw).to(torch.int32)
    columns = torch.randint(SOURCES, (300,), generator=draw).to(torch.int32)
    return native.sort_rows(native.build_csr(rows, columns, num_rows=ROWS))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ranges(count: int) -> Iterator[slice]:
    cuts = [0, 1, count // 3, count // 3, count - 2, count]
    for begin, end in itertools.pairwise(cuts):
        yield slice(begin, end)


def test_sums(csr: Csr) -> None:
    x, pre, post, loop = random(SOURCES, WIDTH), random(SOURCES), random(ROWS), random(ROWS)
    wanted = native.spmm(csr, x, pre=pre, post=post, loop=loop)
    out = torch.full_like(wanted, torch.nan)
    for rows in ranges(ROWS):
        native.spmm(csr, x, pre=pre, post=post, loop=loop, out=out, rows=rows)
    assert torch.equal(out, wanted)
    for rows in ranges(ROWS):
        native.spmm(csr, x, add_to=out, rows=rows)
    assert torch.equal(out, native.spmm(csr, x, add_to=wanted))


def test_maxima_and_their_gradients(csr: Csr) -> None:
    x, grad = random(SOURCES, WIDTH), random(ROWS, WIDTH)
    wanted = native.segment_max(csr, x)
    into = torch.empty_like(wanted[0]), torch.empty_like(wanted[1])
    for rows in ranges(ROWS):
        native.segment_max(csr, x, into=into, rows=rows)
    assert torch.equal(into[0], wanted[0])
    assert torch.equal(into[1], wanted[1])
    turned = native.transpose(csr, num_cols=SOURCES)
    whole = native.segment_max_backward(turned, grad, wanted[1])
    out = torch.empty_like(whole)
    for rows in ranges(SOURCES):
        native.segment_max_backward(turned, grad, wanted[1], out=out, rows=rows)
    assert torch.equal(out, whole)


def test_attention_and_its_gradients(csr: Csr) -> None:
    z, how = random(SOURCES, WIDTH + 2 * HEADS), Attention(HEADS, dropout=Dropout.of(0.3, 7))
    edges = CsrPair(csr, native.transpose(csr, num_cols=SOURCES, origin=True))
    wanted = native.attend(csr, z, how)
    into = torch.empty_like(wanted[0]), torch.empty_like(wanted[1])
    for rows in ranges(ROWS):
        native.attend(csr, z, how, scores=z[:, WIDTH:].contiguous(), into=into, rows=rows)
    assert all(torch.equal(*both) for both in zip(into, wanted, strict=True))
    grad = random(ROWS, WIDTH)
    whole = native.attend_backward(csr, edges.transposed, z, wanted, grad, how)
    back = AttendBackward(edges, z, wanted, how)
    back.grad_dst, back.grad_src[ROWS:, WIDTH + HEADS :] = grad, 0
    for rows in ranges(ROWS):
        back.by_destination(rows)
    for rows in ranges(SOURCES):
        back.by_source(rows)
    for rows in ranges(ROWS):
        back.add_by_destination(rows)
    assert torch.equal(back.grad_src, whole)


def test_the_other_attention_and_its_gradients(csr: Csr) -> None:
    z, vector, how = random(SOURCES, 2 * WIDTH), random(HEADS, WIDTH // HEADS), Attention(HEADS)
    edges = CsrPair(csr, native.transpose(csr, num_cols=SOURCES, origin=True))
    wanted = native.attend_v2(csr, z, vector, how)
    into = torch.empty_like(wanted[0]), torch.empty_like(wanted[1])
    for rows in ranges(ROWS):
        native.attend_v2(csr, z, vector, how, into=into, rows=rows)
    assert all(torch.equal(*both) for both in zip(into, wanted, strict=True))
    grad = random(ROWS, WIDTH)
    whole, of_vector = native.attend_v2_backward(csr, edges.transposed, (z, vector), wanted, grad, how)
    back = AttendV2Backward(edges, z, wanted, how)
    back.grad_dst, back.grad_src[ROWS:, WIDTH:] = grad, 0
    shares = sum(back.by_destination(vector, rows) for rows in ranges(ROWS))
    for rows in ranges(SOURCES):
        back.by_source(vector, rows)
    assert torch.equal(back.grad_src, whole)
    torch.testing.assert_close(shares, of_vector)
