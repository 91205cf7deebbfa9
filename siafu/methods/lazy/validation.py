"""Validation scores of several candidate outputs, in one message."""

from collections.abc import Sequence

import torch
from torch import Tensor

from siafu.training.task import Task


def val_scores(task: Task, outs_val: Sequence[Tensor]) -> list[float]:
    """Score each output for this rank's validation rows, (V, C), by the task's metric; higher is better. Collective."""
    rows = task.rows["val"]
    if task.kind == "class" and task.metric in ("accuracy", "micro_f1"):
        right = [int((out.argmax(1) == task.y[rows]).sum()) for out in outs_val]
        total = task.comm.all_reduce(torch.tensor(right, dtype=torch.int32), label="scores")
        return (total.double() / task.count["val"]).tolist()
    return [_score(task, out, rows) for out in outs_val]


def _score(task: Task, out_val: Tensor, rows: Tensor) -> float:
    out = out_val.new_zeros(task.y.shape[0], task.num_outputs)
    out[rows] = out_val
    score = task.score(out, "val") or 0.0
    return score if task.higher_is_better else -score


def index_of_best(scores: Sequence[float]) -> int:
    """Return the index of the best score, the first among equals."""
    return max(range(len(scores)), key=lambda place: (scores[place], -place))
