"""A step of Adam for one parameter, with two passes and a square root between them."""

import torch
from torch import Tensor

from siafu.native import adam_reference, core

_SMALL = 1 << 16  # elements; handing fewer to the core takes longer than torch takes


def adam_moments(
    grad: Tensor,
    parameter: Tensor | None,
    mean: Tensor,
    square: Tensor,
    *,
    decay: float,
    betas: tuple[float, float],
) -> None:
    """Move both moments towards a gradient, in place: ``m += (1 - b1) (g - m)``, ``v = b2 v + (1 - b2) g^2``.

    All arrays have one shape. With a ``parameter``, ``decay`` times it is added to the gradient.
    """
    if not _fits(grad, mean, square, *[] if parameter is None else [parameter]):
        adam_reference.adam_moments(grad, parameter, mean, square, decay=decay, betas=betas)
        return
    flat = None if parameter is None else _flat(parameter)
    rates = 1 - betas[0], betas[1], 1 - betas[1]
    core.kernels.adam_moments(_flat(grad), flat, _flat(mean), _flat(square), decay, *rates)


def adam_move(
    mean: Tensor, root: Tensor, parameter: Tensor, *, divisor: float, eps: float, rate: float
) -> None:
    """Move a parameter, in place: ``w += rate * m / (root / divisor + eps)``. ``root`` may be overwritten."""
    if not _fits(mean, root, parameter):
        adam_reference.adam_move(mean, root, parameter, divisor=divisor, eps=eps, rate=rate)
        return
    core.kernels.adam_move(_flat(mean), _flat(root), _flat(parameter), divisor, eps, rate)


def _fits(*arrays: Tensor) -> bool:
    """Return whether the compiled core reads such arrays as they are, and gains by it."""
    dtype = arrays[0].dtype
    return (
        core.kernels is not None
        and dtype in (torch.float32, torch.float64)
        and arrays[0].numel() >= _SMALL
        and all(each.dtype == dtype and each.is_contiguous() for each in arrays)
    )


def _flat(array: Tensor) -> Tensor:
    return array.detach().view(-1)
