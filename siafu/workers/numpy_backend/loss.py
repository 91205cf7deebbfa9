"""Losses of node tasks and their gradients; the same losses as :mod:`siafu.nn.loss`."""

import numpy as np

from siafu.workers.setup import Setup


def loss_and_grad(setup: Setup, out: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """The share of some labelled rows in the loss: (T, C), (T,) or (T, C) -> a number, (T, C)."""
    weight = None if setup.class_weight is None else np.asarray(setup.class_weight, out.dtype)
    match setup.task:
        case "class":
            loss, grad = _classes(out, y, weight)
        case "labels":
            loss, grad = _labels(out, y.astype(out.dtype, copy=False), weight)
        case "regression":
            loss, grad = _numbers(out, y.astype(out.dtype, copy=False))
        case _:
            raise ValueError(f"a task of {setup.task}; expected class, labels or regression")
    grad *= 1 / setup.scale
    return loss / setup.scale, grad


def _classes(out: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> tuple[float, np.ndarray]:
    """Cross entropy; ``weight`` (C,)."""
    at_y = np.arange(len(y)), y
    out = out - out.max(1, keepdims=True)
    grad = np.exp(out)
    total = grad.sum(1, keepdims=True)
    losses = np.log(total[:, 0]) - out[at_y]
    grad /= total
    grad[at_y] -= 1
    if weight is not None:
        losses *= weight[y]
        grad *= weight[y, None]
    return float(losses.sum(dtype=np.float64)), grad


def _labels(out: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> tuple[float, np.ndarray]:
    """Binary cross entropy; ``weight`` (C,) of those that are 1."""
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
