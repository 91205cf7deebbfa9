"""The operations that tensor stages are written in, and how torch carries them out.

A stage is row-by-row work between two aggregates. It is written once, over :class:`Ops`. :class:`TorchOps` computes it
with fused kernels and autograd; ``siafu.workers.trace`` records it as a program, which workers run in torch or NumPy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from siafu.context import AnyBlock
from siafu.native import Dropout as DropoutKey
from siafu.native import Epilogue
from siafu.nn.dropout import Dropout
from siafu.nn.norm import BatchNorm
from siafu.nn.product import finished, known_product, product, products
from siafu.nn.streamed import Rows, in_memory


class Finish(NamedTuple):
    """The end of a layer: ``dropout(activation(z + bias))``.

    Attributes:
        bias: (O,), or None.
        activation: ``none``, ``relu`` or ``elu``.
        drop: the dropout, or None.
    """

    bias: nn.Parameter | None = None
    activation: str = "none"
    drop: Dropout | None = None


class Ops(Protocol):
    """Operations on rows (R, F) and weights. Values are tensors, or stand for what a program computes."""

    def linear(
        self, terms: Sequence[tuple[Any, Any]], *, add: Any = None, finish: Finish | None = None
    ) -> Any:
        """``finish(add + sum of x W)``: terms of (R, I), (I, O); ``add`` (R, O) or (O,) -> (R, O)."""

    def project(self, x: Any, weight: Any, bias: Any) -> Any:
        """``x W + b``, the projection of a layer."""

    def finish(self, z: Any, finish: Finish, *, in_place: bool = True) -> Any:
        """``dropout(activation(z + bias))``; ``in_place`` may overwrite ``z``."""

    def drop(self, x: Any, drop: Dropout) -> Any:
        """Dropout."""

    def add(self, one: Any, other: Any) -> Any:
        """The sum of rows, or of rows and a bias."""

    def mix(self, one: Any, other: Any, share: float) -> Any:
        """``(1 - share) one + share other``."""

    def scale_by_one_plus(self, x: Any, eps: Any) -> Any:
        """``(1 + eps) x``, with a learned number ``eps``."""

    def concat(self, values: Sequence[Any]) -> Any:
        """Side by side along the last dimension."""

    def maximum(self, values: Sequence[Any]) -> Any:
        """The largest of each element."""

    def mean_of_heads(self, x: Any, heads: int) -> Any:
        """(R, H F) -> (R, F)."""

    def head_scores(self, weight: Any, vector: Any) -> Any:
        """Each head's columns of a weight times the head's vector: (I, H F), (H, F) -> (I, H)."""

    def norm(self, x: Any, norm: nn.Module) -> Any:
        """Layer norm, or batch norm over the nodes of all ranks."""


class TorchOps:
    """The operations in torch, for the rows of one stage.

    Attributes:
        row_id: (R,) int64, the user's row numbers, by which dropout falls; None: 0 to R - 1.
        block: the block of which batch norm takes its moments; None where nothing is normalised by batch.
        projected: (R, Z), known values of the projection, whose gradients alone are computed; or None.
    """

    def __init__(
        self, row_id: Tensor | None, block: AnyBlock | None = None, projected: Tensor | None = None
    ) -> None:
        self.row_id, self.block, self.projected = row_id, block, projected

    def linear(
        self, terms: Sequence[tuple[Rows, Tensor]], *, add: Tensor | None = None, finish: Finish | None = None
    ) -> Tensor:
        """``finish(add + sum of x W)``."""
        after = None if finish is None else self._after(finish)
        if add is None:
            return products(terms, after)
        z = add
        for x, weight in terms:
            z = product(x, weight, z)
        return z if after is None else finished(z, after)

    def project(self, x: Rows, weight: Tensor, bias: Tensor | None) -> Tensor:
        """``x W + b``."""
        if self.projected is not None and isinstance(x, Tensor):
            return known_product(self.projected, x, weight, bias)
        return product(x, weight, bias)

    def finish(self, z: Tensor, finish: Finish, *, in_place: bool = True) -> Tensor:
        """``dropout(activation(z + bias))``."""
        return finished(z, self._after(finish), in_place=in_place)

    def drop(self, x: Rows, drop: Dropout) -> Rows:
        """Dropout."""
        return drop(x, None if self.row_id is None else self.row_id[: x.shape[0]])

    def add(self, one: Rows, other: Rows) -> Tensor:
        """The sum."""
        return in_memory(one) + in_memory(other)

    def mix(self, one: Tensor, other: Tensor, share: float) -> Tensor:
        """``(1 - share) one + share other``."""
        return torch.lerp(one, other, share)

    def scale_by_one_plus(self, x: Rows, eps: Tensor) -> Tensor:
        """``(1 + eps) x``."""
        return in_memory(x) * (1 + eps)

    def concat(self, values: Sequence[Tensor]) -> Tensor:
        """Side by side."""
        return torch.cat(list(values), -1)

    def maximum(self, values: Sequence[Tensor]) -> Tensor:
        """The largest of each element."""
        return torch.stack(list(values)).amax(0)

    def mean_of_heads(self, x: Tensor, heads: int) -> Tensor:
        """The mean over heads."""
        return x.unflatten(1, (heads, -1)).mean(1)

    def head_scores(self, weight: Tensor, vector: Tensor) -> Tensor:
        """Each head's columns times its vector."""
        return (weight.view(weight.shape[0], *vector.shape) * vector).sum(2)

    def norm(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Layer norm or batch norm."""
        return norm(x, self.block) if isinstance(norm, BatchNorm) else norm(x)

    def _after(self, finish: Finish) -> Epilogue:
        dropout = DropoutKey() if finish.drop is None else finish.drop.now()
        return Epilogue(finish.bias, finish.activation, dropout, self.row_id)
