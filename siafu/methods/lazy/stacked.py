"""A stage as dense layers that many clients compute at once, each with weights of its own: one product for all.

Models compute with kernels that know one set of weights. Here the same is written with batched products of torch, for
stages that are a layer on rows that are aggregated already, a norm and a dense layer: those of GCN, GraphSAGE and MLPs
without skip connections, which are nearly all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from siafu.methods.lazy.local_steps import ClientGradients
from siafu.methods.lazy.stage_inputs import StageInputs
from siafu.nn.dense import Dense
from siafu.nn.dropout import Dropout
from siafu.nn.gcn import Gcn
from siafu.nn.gnn import Gnn
from siafu.nn.layer import Layer
from siafu.nn.logits import Logits
from siafu.nn.sage import Sage
from siafu.nn.staged import Layered, Staged


@dataclass(frozen=True, eq=False)
class Dense2:
    """``dropout(act(norm(sum of dropout(x_i) W_i + b))) W + b``, or ``sum of dropout(x_i) W_i + b`` alone.

    Attributes:
        terms: rows, (R, F), and what they are multiplied by.
        bias: (H,).
        drops: on the rows that enter, and on hidden rows.
        norm: of hidden rows, or None.
        head: the dense layer after it, or None.
        row_id: (R,) int64, the user's rows, or None.
    """

    terms: tuple[tuple[Tensor, nn.Parameter], ...]
    bias: nn.Parameter
    drops: tuple[Dropout, Dropout | None]
    norm: nn.LayerNorm | None
    head: Dense | None
    row_id: Tensor | None

    def out(self, rows: Tensor, weight: Callable[[nn.Parameter], Tensor]) -> Tensor:
        """The outputs of some rows, (B, L), with weights of each client: -> (B, L, C)."""
        z = weight(self.bias)[:, None]
        for x, parameter in self.terms:
            z = z + (x * self._mask(self.drops[0], x.shape[1], x.dtype))[rows] @ weight(parameter)
        if self.head is None:
            return z
        if self.norm is not None:
            z = functional.layer_norm(z, z.shape[-1:], eps=self.norm.eps)
            z = z * weight(self.norm.weight)[:, None] + weight(self.norm.bias)[:, None]
        assert self.drops[1] is not None
        h = z.relu() * self._mask(self.drops[1], z.shape[-1], z.dtype)[rows]
        return h @ weight(self.head.weight) + weight(self.head.bias)[:, None]

    def _mask(self, drop: Dropout, width: int, dtype: torch.dtype) -> Tensor:
        """The factors of dropout in this step, (R, F)."""
        mask = drop(torch.ones(self.terms[0][0].shape[0], width, dtype=dtype), self.row_id)
        assert isinstance(mask, Tensor)
        return mask


def dense_form(model: Staged, stage: int, reading: StageInputs) -> Dense2 | None:
    """A stage in that form, on rows that do not change and whose aggregates are kept; None where it has another."""
    if isinstance(model, Logits):
        mlp, x = model.dense(stage, reading.context, reading.x_src)
        return _of_layers(mlp, 0, ((x, _weight(mlp.layers[0])),), mlp.layers[1], reading)
    assert isinstance(model, Layered)
    terms = _terms(model, stage, reading)
    head = model.heads[stage] if stage < len(model.heads) else None
    return None if terms is None else _of_layers(model.inner, stage, terms, head, reading)


def stacked(
    form: Dense2,
    learned: Sequence[nn.Parameter],
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    weight: Callable[[Tensor], float],
    begin: Callable[[int], None],
) -> ClientGradients:
    """Gradients of many clients at once; ``loss`` is the sum for outputs, (R, C), of rows, (R,)."""
    sizes = [parameter.numel() for parameter in learned]

    def gradients(weights: Tensor, clients: Sequence[Tensor], local: int) -> tuple[Tensor, Tensor]:
        begin(local)
        given = weights.detach().requires_grad_()
        each = dict(zip(map(id, learned), given.split(sizes, 1), strict=True))
        rows = pad_sequence(list(clients), batch_first=True, padding_value=-1)  # (B, L)
        out = form.out(rows.clamp(min=0), lambda p: each[id(p)].view(-1, *p.shape))
        losses = [loss(out[place, : mine.numel()], mine) for place, mine in enumerate(clients)]
        means = torch.stack(losses) / weights.new_tensor([weight(mine) for mine in clients])
        (grad,) = torch.autograd.grad(means.sum(), given)
        return grad, means.detach()

    return gradients


def _of_layers(
    gnn: Gnn,
    place: int,
    terms: tuple[tuple[Tensor, nn.Parameter], ...],
    head: nn.Module | None,
    reading: StageInputs,
) -> Dense2 | None:
    layer, drops = gnn.layers[place], gnn.drops
    assert isinstance(layer, Layer)
    last, norm = place == len(gnn.norms), None
    if not last:
        norm = gnn.norms[place] if isinstance(gnn.norms[place], nn.LayerNorm) else None
    if gnn.config.residual or gnn.activation != "relu" or not isinstance(head, Dense | None):
        return None
    first, second = drops[place], None if last else drops[place + 1]
    assert isinstance(first, Dropout)
    assert isinstance(second, Dropout | None)
    assert isinstance(norm, nn.LayerNorm | None)
    ids = reading.context.node_id
    return Dense2(terms, layer.bias, (first, second), norm, head, None if ids is None else ids)


def _terms(
    model: Layered, stage: int, reading: StageInputs
) -> tuple[tuple[Tensor, nn.Parameter], ...] | None:
    """The rows that a layer multiplies by its weights, with these."""
    if stage == len(model.inner.layers):  # what reads all layers
        return None
    layer, x = model.inner.layers[stage], reading.x_src
    match layer:
        case Dense():
            return ((x, layer.weight),)
        case Gcn():
            return ((_rows(layer, reading), layer.weight),)
        case Sage():
            return ((_rows(layer, reading), layer.weight_neigh), (x, layer.weight_self))
    return None


def _rows(layer: Layer, reading: StageInputs) -> Tensor:
    """The aggregate that is kept."""
    kept = layer.aggregate(reading.context, reading.x_src)
    assert isinstance(kept, Tensor)
    return kept


def _weight(layer: nn.Module) -> nn.Parameter:
    assert isinstance(layer, Dense)
    return layer.weight
