"""Ensemble: several models of one architecture whose outputs are averaged."""

from collections.abc import Callable, Iterable, Sequence
from math import log

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from siafu.context import AnyBlock
from siafu.nn.streamed import Rows, Spill

_KINDS = ("class", "labels", "regression")
_ROWS_PER_RANGE = 1 << 16


class Ensemble(nn.Module):
    """Several trained models; the output is the average of :func:`averaged`, without gradients.

    Attributes:
        members: the models.
        form: () int64, the kind of task, as an index into a list; a buffer, and so part of the weights.

    Shapes:
        x_src: (S, F), rows ordered as in the block.
        returns: (D, C).
    """

    form: Tensor

    def __init__(self, members: Sequence[nn.Module], kind: str = "class") -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("form", torch.tensor(_KINDS.index(kind)))

    @property
    def kind(self) -> str:
        """The kind of task: class, labels or regression."""
        return _KINDS[int(self.form)]

    def forward(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """Compute the averaged output for the destinations."""
        return averaged((member(block, x_src) for member in self.members), self.kind)


@torch.no_grad()
def averaged(outputs: Iterable[Tensor], kind: str, *, table: Spill = torch.empty) -> Tensor:
    """Average the outputs of several models: each (D, C) -> (D, C).

    Of classes and of labels the probabilities are averaged, not the logits, so that one member with extreme logits does
    not decide alone; the result is the logits of these means. Numbers are averaged as they are. ``table`` makes arrays
    (rows, width); of the outputs, one at a time is read.
    """
    if kind == "regression":
        total, count = _reduced(outputs, lambda out: out, torch.add, table)
        return total.div_(count)
    if kind == "class":
        total, count = _reduced(outputs, lambda out: out.log_softmax(1), torch.logaddexp, table)
        return total.sub_(log(count))
    return _averaged_labels(outputs, table)


def _averaged_labels(outputs: Iterable[Tensor], table: Spill) -> Tensor:
    """Compute logits of mean probabilities, ``log sum(p) - log sum(1 - p)``."""
    positive: Tensor | None = None
    negative: Tensor | None = None
    for out in outputs:
        positive = _add(positive, out, logsigmoid, torch.logaddexp, table)
        negative = _add(negative, out, lambda rows: logsigmoid(-rows), torch.logaddexp, table)
    assert positive is not None
    assert negative is not None
    return positive.sub_(negative)


def _reduced(
    outputs: Iterable[Tensor],
    of: Callable[[Tensor], Tensor],
    add: Callable[[Tensor, Tensor], Tensor],
    table: Spill,
) -> tuple[Tensor, int]:
    """Add up ``of`` each output; returns the sum and the number of outputs."""
    total, count = None, 0
    for out in outputs:
        total, count = _add(total, out, of, add, table), count + 1
    assert total is not None
    return total, count


def _add(
    total: Tensor | None,
    out: Tensor,
    of: Callable[[Tensor], Tensor],
    add: Callable[[Tensor, Tensor], Tensor],
    table: Spill,
) -> Tensor:
    """Add ``of`` an output to a total, range by range; the first output makes the total."""
    first = total is None
    total = table(*out.shape) if total is None else total
    for into, rows in zip(total.split(_ROWS_PER_RANGE), out.split(_ROWS_PER_RANGE), strict=True):
        into.copy_(of(rows) if first else add(into, of(rows)))
    return total
