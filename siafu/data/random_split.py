"""Seeded splits of nodes for data sets that come without one."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.data.random_stream import RandomStream

Masks = dict[str, NDArray[np.bool_]]
Shares = tuple[float, float, float]
DEFAULT_SHARES: Shares = (60, 20, 20)
_SHARES = re.compile(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)")


def read_shares(text: str) -> Shares | None:
    """Read shares of training, validation and test nodes, such as ``80/10/10``; None where the text is no shares."""
    found = _SHARES.fullmatch(text)
    if found is None:
        return None
    train, val, test = (float(share) for share in found.groups())
    if train == 0 or not np.isclose(train + val + test, 100):
        raise ValueError(
            f"split: {text} sums to {train + val + test:g}; expected shares of 100, such as 60/20/20"
        )
    return train, val, test


def stratified_split(y: NDArray[Any], shares: Shares, *, seed: int) -> Masks:
    """Split the labelled nodes by shares of 100, each class alike; a class of three nodes or more is in each split.

    ``y`` is (N,) classes with -1 for none, or (N,) or (N, K) numbers with NaN for none, or (N, C) labels.
    """
    order = RandomStream(seed, "split").order(len(y))
    if y.dtype.kind == "f":
        labelled = ~np.isnan(y) if y.ndim == 1 else ~np.isnan(y).all(1)
    else:
        labelled = y >= 0 if y.ndim == 1 else np.ones(len(y), dtype=np.bool_)
    order = order[labelled[order]]
    strata = y[order] if y.ndim == 1 and y.dtype.kind != "f" else np.zeros(len(order), dtype=np.int64)
    parts: list[list[NDArray[np.int64]]] = [[], [], []]
    for label in np.unique(strata):
        members = order[strata == label]
        for part, chosen in zip(parts, np.split(members, _ends(len(members), shares)), strict=True):
            part.append(chosen)
    train, val, test = (np.concatenate(part) if part else np.empty(0, np.int64) for part in parts)
    return _masks(train, val, test, rows=len(y))


def _ends(count: int, shares: Shares) -> list[int]:
    """Return where training and validation nodes end among ``count``; each share has at least one of three."""
    train, test = round(count * shares[0] / 100), round(count * shares[2] / 100)
    if count >= 3:
        test = max(test, int(shares[2] > 0))
        val = max(count - train - test, int(shares[1] > 0))
        train = max(1, count - test - val)
        return [train, min(count - test, train + val)]
    return [max(1, min(train, count)), max(1, count - test)]


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
