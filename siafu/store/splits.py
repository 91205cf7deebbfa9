"""Train, validation and test splits, as codes 0 to 3 or as three masks; (N,), or (N, S) for S splits."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

TRAIN, VALIDATION, TEST, UNUSED = range(4)
MASKS = {"train_mask": TRAIN, "val_mask": VALIDATION, "test_mask": TEST}


def split_masks(codes: np.ndarray, what: str) -> dict[str, np.ndarray]:
    """Turn codes 0 train, 1 validation, 2 test, 3 none into three masks; ``what`` names them in errors."""
    bad = (codes < TRAIN) | (codes > UNUSED)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{what}: row {place[0]} is {codes[place]}; expected 0 train, 1 validation, 2 test or 3 none"
        )
    return {name: codes == code for name, code in MASKS.items()}


def check_disjoint(masks: Mapping[str, np.ndarray], what: str) -> None:
    """Refuse a node that is in two masks of the same split."""
    seen: np.ndarray | None = None
    for name, mask in masks.items():
        both = np.zeros(0, dtype=bool) if seen is None else seen & mask
        if both.any():
            row = int(np.argwhere(both)[0][0])
            raise ValueError(f"{what}: node {row} is in {name} and in another mask; splits must be disjoint")
        seen = mask if seen is None else seen | mask


def pick_fold(mask: np.ndarray, fold: int) -> Tensor:
    """Pick one split of a mask, (N,) or (N, S) -> (N,)."""
    column = mask if mask.ndim == 1 else mask[:, fold]
    return torch.from_numpy(np.ascontiguousarray(column) != 0)
