"""The two passes of Adam in plain torch, as ``torch.optim.Adam`` computes them; see :mod:`siafu.native.adam`."""

from torch import Tensor


def adam_moments(
    grad: Tensor,
    parameter: Tensor | None,
    mean: Tensor,
    square: Tensor,
    *,
    decay: float,
    betas: tuple[float, float],
) -> None:
    """Move both moments towards a gradient, in place."""
    if parameter is not None:
        grad = grad.add(parameter, alpha=decay)
    mean.lerp_(grad, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])


def adam_move(
    mean: Tensor, root: Tensor, parameter: Tensor, *, divisor: float, eps: float, rate: float
) -> None:
    """Move a parameter, in place; ``root`` may be overwritten."""
    parameter.addcdiv_(mean, root.div_(divisor).add_(eps), value=rate)
