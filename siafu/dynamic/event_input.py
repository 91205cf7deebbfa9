"""Read a user's event arrays into tensors, and refuse invalid ones with the reason."""

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from siafu.user_input import INTEGERS, read_numbers


def read_ids(values: ArrayLike | Tensor, field: str, name: str) -> Tensor:
    """Read node ids, (M,) int64."""
    ids = read_numbers(values, field)
    if ids.ndim != 1 or ids.dtype not in INTEGERS:
        raise ValueError(
            f"{name}: {field} is {tuple(ids.shape)} {ids.dtype}; expected (M,) integers, an event each"
        )
    return ids.to(torch.int64)


def read_times(values: ArrayLike | Tensor, num_events: int, name: str) -> Tensor:
    """Read the times of events, (M,) int64 or float64."""
    times = read_numbers(values, "t")
    if times.shape != (num_events,):
        raise ValueError(f"{name}: t is {tuple(times.shape)}; expected ({num_events},), a time an event")
    if num_events == 0:
        raise ValueError(f"{name}: no event; expected at least one")
    return times.to(torch.float64 if times.is_floating_point() else torch.int64)


def read_classes(values: ArrayLike | Tensor, num_events: int, name: str) -> Tensor:
    """Read a class per event, (M,) int64, -1 for none."""
    classes = read_numbers(values, "edge_y")
    if classes.shape != (num_events,) or classes.dtype not in INTEGERS:
        found = f"{tuple(classes.shape)} {classes.dtype}"
        raise ValueError(f"{name}: edge_y is {found}; expected ({num_events},) integers, a class an event")
    if int(classes.min()) < -1:
        raise ValueError(
            f"{name}: edge_y holds {int(classes.min())}; expected a class from 0, or -1 for none"
        )
    return classes.to(torch.int64)


def read_features(values: ArrayLike | Tensor, name: str) -> Tensor:
    """Read features, (N, F) or (T, N, F) float32."""
    x = read_numbers(values, "x")
    if x.ndim not in (2, 3):
        raise ValueError(
            f"{name}: x is {tuple(x.shape)}; expected (N, F), or (T, N, F), a row a node and step"
        )
    return x.to(torch.float32).contiguous()


def read_targets(values: ArrayLike | Tensor, name: str) -> Tensor:
    """Read int64 classes or float32 targets, a row per node, or per step and node."""
    y = read_numbers(values, "y")
    if y.ndim not in (1, 2, 3):
        raise ValueError(f"{name}: y is {tuple(y.shape)}; expected a value a node, or a row of them a step")
    if y.is_floating_point():
        return y.to(torch.float32).contiguous()
    if y.numel() and int(y.min()) < -1:
        raise ValueError(f"{name}: y holds {int(y.min())}; expected a class from 0, or -1 for none")
    return y.to(torch.int64).contiguous()
