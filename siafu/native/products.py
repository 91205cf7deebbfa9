"""Sums of products of rows and weights, with their epilogue and gradients; the plain versions stand beside.

The order of each sum depends on shapes alone.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from siafu.native import core
from siafu.native.dense_rows import epilogue, epilogue_backward
from siafu.native.memory import empty_rows
from siafu.native.values import Epilogue, Term

_MOST_PARTS, _PART_ROWS = 16, 1024


def product(
    terms: Sequence[Term],
    *,
    add: Tensor | None = None,
    after: Epilogue | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``add + sum of x W`` and its epilogue: (R, O). ``add`` is (R, O) or (O,); ``out`` may be ``add``."""
    x, weight = terms[0]
    out = empty_rows(x.shape[0], weight.shape[1], x.dtype) if out is None else out
    if not has_kernel(*(each for term in terms for each in term)):
        return _plain_product(terms, add, after, out)
    add = None if add is None else add.contiguous()
    how = None if after is None else after.arguments
    core.kernels.product([term.contiguous for term in terms], add, out, how)
    return out


def _plain_product(terms: Sequence[Term], add: Tensor | None, after: Epilogue | None, out: Tensor) -> Tensor:
    for x, weight in terms:
        add = out.copy_(x @ weight if add is None else torch.addmm(add, x, weight))
    if after is None:
        return out
    bias, activation, dropout, row_id = after
    return epilogue(out, bias=bias, activation=activation, dropout=dropout, row_id=row_id, out=out)


def product_backward(
    terms: Sequence[Term],
    grad: Tensor,
    *,
    output: Tensor | None = None,
    after: Epilogue | None = None,
    wants_x: Sequence[bool | Tensor] = (),
) -> tuple[list[Tensor | None], list[Tensor], Tensor]:
    """Return the gradients of each term's rows (where wanted), of its weights, and of the bias.

    A tensor in ``wants_x`` is filled with the gradients of rows. ``grad`` is (R, O), with any row stride. ``output`` is
    the result of the product, which is read if there was an epilogue.
    """
    wants_x = wants_x or [False] * len(terms)
    if not has_kernel(grad, *(each for term in terms for each in term)):
        return _plain_backward(terms, grad, output, after, wants_x)
    grad_x = [_place_of(term, wanted) for term, wanted in zip(terms, wants_x, strict=True)]
    num_rows, width = grad.shape
    sizes = [*(term.weight.numel() for term in terms), width]
    parts = parts_of(num_rows)
    sums, sum_of = empty_rows(parts, sum(sizes), grad.dtype), grad.new_empty(sum(sizes))
    given, how = [term.contiguous for term in terms], None if after is None else after.arguments
    if grad.stride(1) != 1:
        grad = grad.contiguous()
    core.kernels.product_backward(given, grad, output, how, sums, sum_of, grad_x)
    *grad_weights, grad_bias = sum_of.split(sizes)
    of_weights = [flat.view_as(term.weight) for flat, term in zip(grad_weights, terms, strict=True)]
    return grad_x, of_weights, grad_bias


def parts_of(num_rows: int) -> int:
    """Return the number of ranges of rows whose sums are added in order."""
    return min(_MOST_PARTS, max(1, num_rows // _PART_ROWS))


def _plain_backward(
    terms: Sequence[Term],
    grad: Tensor,
    output: Tensor | None,
    after: Epilogue | None,
    wants_x: Sequence[bool | Tensor],
) -> tuple[list[Tensor | None], list[Tensor], Tensor]:
    if after is not None:
        assert output is not None
        _, activation, dropout, row_id = after
        grad, _ = epilogue_backward(
            grad, output, activation=activation, dropout=dropout, row_id=row_id, with_bias=False
        )
    grad_x = [_place_of(term, wanted) for term, wanted in zip(terms, wants_x, strict=True)]
    for term, into in zip(terms, grad_x, strict=True):
        if into is not None:
            into.copy_(grad @ term.weight.t())
    return grad_x, [term.x.t() @ grad for term in terms], grad.sum(0)


def _place_of(term: Term, wanted: bool | Tensor) -> Tensor | None:
    """Return the array that receives the gradients of a term's rows, or None."""
    if isinstance(wanted, Tensor):
        return wanted
    return empty_rows(term.x.shape[0], term.x.shape[1], term.x.dtype) if wanted else None


def has_kernel(*values: Tensor) -> bool:
    """Return whether the compiled core has a kernel for tensors of these dtypes."""
    return core.kernels is not None and all(value.dtype == torch.float32 for value in values)
