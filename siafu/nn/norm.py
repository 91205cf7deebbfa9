"""Batch norm, which unlike everything else in a model is not row by row: its moments are those of all nodes."""

from typing import Any

import torch
from torch import Tensor, nn

from siafu.context import NO_EXCHANGE, AnyBlock, HaloExchange, context_of


class BatchNorm(nn.BatchNorm1d):
    """Batch norm (https://arxiv.org/abs/1502.03167) over all nodes of the graph, those of other ranks included.

    ``h = (x - mean) / sqrt(var + eps) * weight + bias``: (D, F) -> (D, F).
    """

    def forward(self, x_dst: Tensor, block: AnyBlock | None = None) -> Tensor:
        """Normalise the rows of a block's destinations."""
        exchange = NO_EXCHANGE if block is None else context_of(block).exchange
        if not (exchange.has_halo and self.training):
            return super().forward(x_dst)
        count = float(exchange.all_reduce(torch.tensor([x_dst.shape[0]], dtype=torch.float64)))
        mean = _AllReduce.apply(x_dst.sum(0), exchange) / count
        centred = x_dst - mean
        var = _AllReduce.apply(centred.square().sum(0), exchange) / count
        self._remember(mean.detach(), var.detach() * count / max(count - 1, 1))
        return centred * (var + self.eps).rsqrt() * self.weight + self.bias

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)


class _AllReduce(torch.autograd.Function):
    """The sum over all parts; each part's share gets the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, exchange: HaloExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.all_reduce(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.all_reduce(grads[0].contiguous()), None
