"""Self-training: what a model is surest of becomes something to learn from."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from siafu.training.task import Task

_BINS = 256


def confident(q: Tensor, task: Task, *, share: float, among: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to fit on and their targets: (D, C) float64 -> (R,) int64, (R, C) float64. Collective.

    These are the training nodes with their labels, and the ``share`` of other nodes ``among``, (D,) bool, whose largest
    probability is largest, each with its probabilities. Validation nodes are left out, so that they can still judge
    what comes of it.
    The bound is the same on all ranks: a bin of a histogram that they add up.
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
    from_top = count.flip(0).cumsum(0).flip(0)  # how many nodes have this bin or a higher one
    fits = (from_top <= share * int(from_top[0])).nonzero()[:, 0]
    least = 0 if share >= 1 or not fits.numel() else int(fits[0])
    rows = rows[bins >= least]
    known = one_hot(task.y[task.rows["train"]], task.num_outputs).double()
    return torch.cat([task.rows["train"], rows]), torch.cat([known, q[rows]])
