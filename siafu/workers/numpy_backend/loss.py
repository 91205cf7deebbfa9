"""Losses of node tasks and their gradients; the same losses as :mod:`siafu.nn.loss`."""

import numpy as np

from siafu.workers.setup import Setup

SMALLEST_MISS = 1e-7  # as in siafu.nn.loss


def loss_and_grad(setup: Setup, out: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """The share of some labelled rows in the loss: (T, C), (T,) or (T, C) -> a number, (T, C)."""
    weight = None if setup.class_weight is None else np.asarray(setup.class_weight, out.dtype)
    match setup.task:
        case "class":
            loss, grad = _classes(out, y, weight, setup.gamma)
        case "labels":
            loss, grad = _labels(out, y.astype(out.dtype, copy=False), weight, setup.gamma)
        case "regression":
            loss, grad = _numbers(out, y.astype(out.dtype, copy=False))
        case _:
            raise ValueError(f"a task of {setup.task}; expected class, labels or regression")
    grad *= 1 / setup.scale
    return loss / setup.scale, grad


def _classes(
    out: np.ndarray, y: np.ndarray, weight: np.ndarray | None, gamma: float
) -> tuple[float, np.ndarray]:
    """Cross entropy, or focal loss; ``weight`` (C,)."""
    at_y = np.arange(len(y)), y
    out = out - out.max(1, keepdims=True)
    grad = np.exp(out)
    total = grad.sum(1, keepdims=True)
    losses = np.log(total[:, 0]) - out[at_y]
    grad /= total
    grad[at_y] -= 1
    if gamma:
        losses, factor = _focal(losses, gamma)
        grad *= factor[:, None]
    if weight is not None:
        losses *= weight[y]
        grad *= weight[y, None]
    return float(losses.sum(dtype=np.float64)), grad


def _labels(
    out: np.ndarray, y: np.ndarray, weight: np.ndarray | None, gamma: float
) -> tuple[float, np.ndarray]:
    """Binary cross entropy, or focal loss; ``weight`` (C,) of those that are 1."""
    if gamma:
        return _focal_labels(out, y, weight, gamma)
    of_ones = y if weight is None else y * weight
    small = np.exp(-np.abs(out))  # of a logit and of its negative alike
    softplus = np.log1p(small) + np.maximum(-out, 0)  # -log sigmoid(out)
    losses = (1 - y) * (out + softplus) + of_ones * softplus
    sigmoid = np.where(out >= 0, 1, small) / (1 + small)
    return float(losses.sum(dtype=np.float64)), (1 - y) * sigmoid - of_ones * (1 - sigmoid)


def _numbers(out: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Squared errors, where there is a target."""
    off = np.where(np.isnan(y), 0, out - y)
    return float(np.vdot(off, off)), 2 * off


def _focal_labels(
    out: np.ndarray, y: np.ndarray, weight: np.ndarray | None, gamma: float
) -> tuple[float, np.ndarray]:
    sign = np.where(y > 0, out.dtype.type(1), out.dtype.type(-1))
    at_label = sign * out
    small = np.exp(-np.abs(out))
    losses, factor = _focal(np.log1p(small) + np.maximum(-at_label, 0), gamma)
    grad = -sign * np.where(at_label >= 0, small, 1) / (1 + small) * factor
    if weight is not None:
        weights = np.where(y > 0, weight, out.dtype.type(1))
        losses, grad = losses * weights, grad * weights
    return float(losses.sum(dtype=np.float64)), grad


def _focal(losses: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Focal losses from cross entropies, and the factors by which their gradients differ."""
    missed = -np.expm1(-losses)
    scale = np.maximum(missed, losses.dtype.type(SMALLEST_MISS))
    slope = np.where(missed < SMALLEST_MISS, 0, gamma * scale ** (gamma - 1) * np.exp(-losses) * losses)
    return scale**gamma * losses, scale**gamma + slope.astype(losses.dtype, copy=False)
