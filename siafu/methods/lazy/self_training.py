"""Self-training: a model's most confident predictions become training targets (pseudo-labels)."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from siafu.training.task import Task

_BINS = 256


def confident_targets(q: Tensor, task: Task, *, share: float, among: Tensor) -> tuple[Tensor, Tensor]:
    """Select rows to fit on and their targets: (D, C) float64 -> (R,) int64, (R, C) float64. Collective.

    The rows are the training nodes with their labels, and the most confident ``share`` of the other nodes ``among``,
    (D,) bool, with their predicted probabilities. Validation nodes are excluded, so that they can still score the
    result. The threshold is the same on all ranks: a bin of a histogram that the ranks add up.
    """
    q = q / q.sum(1, keepdim=True).clamp(min=1e-30)
    free = among.clone()
    for split in ("train", "val"):
        free[task.rows[split]] = False
    rows = free.nonzero()[:, 0]
    bins = (q[rows].amax(1) * _BINS).long().clamp(0, _BINS - 1)
    count = task.comm.all_reduce(
        torch.bincount(bins, minlength=_BINS).to(torch.int32), label="scores confident"
    ).long()
    from_top = count.flip(0).cumsum(0).flip(0)  # nodes in this bin or a higher one
    fits = (from_top <= share * int(from_top[0])).nonzero()[:, 0]
    least = 0 if share >= 1 or not fits.numel() else int(fits[0])
    rows = rows[bins >= least]
    known = one_hot(task.y[task.rows["train"]], task.num_outputs).double()
    return torch.cat([task.rows["train"], rows]), torch.cat([known, q[rows]])
