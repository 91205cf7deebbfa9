"""Products of rows and weights, added up, with what follows them, and their gradients; the plain way stands beside.

Each sum is made in an order that depends on shapes alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import siafu.native as native
from siafu.native import reference

_MOST_PARTS, _PART_ROWS = 16, 1024


class Term(NamedTuple):
    """One of the products that are added up: ``x W``.

    Attributes:
        x: (R, I).
        weight: (I, O).
    """

    x: Tensor
    weight: Tensor

    @property
    def _plain(self) -> tuple[Tensor, Tensor]:
        return self.x.contiguous(), self.weight.contiguous()


class After(NamedTuple):
    """What follows a product: ``dropout(activation(z + bias))``; see :func:`siafu.native.epilogue`."""

    bias: Tensor | None
    activation: str
    dropout: reference.Dropout
    row_id: Tensor | None

    @property
    def _plain(self) -> tuple[Any, ...]:
        drop = self.dropout
        return (
            self.bias,
            self.row_id,
            native._ACTIVATIONS[self.activation],
            drop.key,
            drop.threshold,
            drop.scale,
        )


def product(
    terms: Sequence[Term],
    *,
    add: Tensor | None = None,
    after: After | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``add + sum of x W``, and what follows: (R, O). ``add`` is (R, O) or (O,); ``out`` may be ``add``."""
    x, weight = terms[0]
    out = native.empty_rows(x.shape[0], weight.shape[1], x.dtype) if out is None else out
    if not _ours(*(each for term in terms for each in term)):
        return _plain_product(terms, add, after, out)
    add = None if add is None else add.contiguous()
    how = None if after is None else after._plain
    native._core.product([term._plain for term in terms], add, out, how)
    return out


def _plain_product(terms: Sequence[Term], add: Tensor | None, after: After | None, out: Tensor) -> Tensor:
    for x, weight in terms:
        add = out.copy_(x @ weight if add is None else torch.addmm(add, x, weight))
    if after is None:
        return out
    bias, activation, dropout, row_id = after
    return native.epilogue(out, bias=bias, activation=activation, dropout=dropout, row_id=row_id, out=out)


def product_backward(
    terms: Sequence[Term],
    grad: Tensor,
    *,
    output: Tensor | None = None,
    after: After | None = None,
    wants_x: Sequence[bool | Tensor] = (),
) -> tuple[list[Tensor | None], list[Tensor], Tensor]:
    """The gradients of each term's rows, where they are wanted, of its weights, and of the bias.

    Where a tensor is given instead of a truth, it is filled with those of rows. ``grad`` is (R, O), whose rows may lie
    apart; ``output`` is what the product returned, which is read where something followed it.
    """
    wants_x = wants_x or [False] * len(terms)
    if not _ours(grad, *(each for term in terms for each in term)):
        return _plain_backward(terms, grad, output, after, wants_x)
    grad_x = [_place_of(term, wanted) for term, wanted in zip(terms, wants_x, strict=True)]
    num_rows, width = grad.shape
    sizes = [*(term.weight.numel() for term in terms), width]
    parts = min(_MOST_PARTS, max(1, num_rows // _PART_ROWS))
    sums, sum_of = native.empty_rows(parts, sum(sizes), grad.dtype), grad.new_empty(sum(sizes))
    given, how = [term._plain for term in terms], None if after is None else after._plain
    if grad.stride(1) != 1:
        grad = grad.contiguous()
    native._core.product_backward(given, grad, output, how, sums, sum_of, grad_x)
    *grad_weights, grad_bias = sum_of.split(sizes)
    of_weights = [flat.view_as(term.weight) for flat, term in zip(grad_weights, terms, strict=True)]
    return grad_x, of_weights, grad_bias


def _plain_backward(
    terms: Sequence[Term],
    grad: Tensor,
    output: Tensor | None,
    after: After | None,
    wants_x: Sequence[bool | Tensor],
) -> tuple[list[Tensor | None], list[Tensor], Tensor]:
    if after is not None:
        assert output is not None
        _, activation, dropout, row_id = after
        grad, _ = native.epilogue_backward(
            grad, output, activation=activation, dropout=dropout, row_id=row_id, with_bias=False
        )
    grad_x = [_place_of(term, wanted) for term, wanted in zip(terms, wants_x, strict=True)]
    for term, into in zip(terms, grad_x, strict=True):
        if into is not None:
            into.copy_(grad @ term.weight.t())
    return grad_x, [term.x.t() @ grad for term in terms], grad.sum(0)


def _place_of(term: Term, wanted: bool | Tensor) -> Tensor | None:
    """Where the gradients of a term's rows go."""
    if isinstance(wanted, Tensor):
        return wanted
    return native.empty_rows(term.x.shape[0], term.x.shape[1], term.x.dtype) if wanted else None


def _ours(*values: Tensor) -> bool:
    """Whether the compiled core has a kernel for them."""
    return native._core is not None and all(value.dtype == torch.float32 for value in values)
