"""Seeded splits of nodes for data sets that come without one."""

import numpy as np
from numpy.typing import NDArray

from siafu.data.random_stream import RandomStream

Masks = dict[str, NDArray[np.bool_]]


def per_class_split(y: NDArray[np.int64], *, seed: int, per_class: int, num_val: int, num_test: int) -> Masks:
    """Take ``per_class`` nodes of each class for training, then validation and test nodes from the others.

    A small graph gives fewer: at most half of each class, then at most a third of the rest for validation.
    """
    order = RandomStream(seed, "split").order(len(y))
    train = np.zeros(len(y), dtype=np.bool_)
    for label in np.unique(y[y >= 0]):
        members = order[y[order] == label]
        train[members[: min(per_class, -(-len(members) // 2))]] = True
    rest = order[~train[order] & (y[order] >= 0)]
    num_val = min(num_val, len(rest) // 3)
    return _masks(train.nonzero()[0], rest[:num_val], rest[num_val : num_val + num_test], rows=len(y))


def random_splits(y: NDArray[np.int64], *, seed: int, folds: int) -> Masks:
    """Make several splits of 60 / 20 / 20 per cent of the labelled nodes: masks of (N, folds)."""
    made = [_random_split(y, RandomStream(seed, f"split {fold}")) for fold in range(folds)]
    return {name: np.stack([masks[name] for masks in made], axis=1) for name in made[0]}


def _random_split(y: NDArray[np.int64], draws: RandomStream) -> Masks:
    order = draws.order(len(y))
    order = order[y[order] >= 0]
    train, val = len(order) * 3 // 5, len(order) * 4 // 5
    return _masks(order[:train], order[train:val], order[val:], rows=len(y))


def _masks(train: NDArray[np.int64], val: NDArray[np.int64], test: NDArray[np.int64], *, rows: int) -> Masks:
    masks = {name: np.zeros(rows, dtype=np.bool_) for name in ("train_mask", "val_mask", "test_mask")}
    for mask, chosen in zip(masks.values(), (train, val, test), strict=True):
        mask[chosen] = True
    return masks
