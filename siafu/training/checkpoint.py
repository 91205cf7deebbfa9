"""The exact state of a training run, in one file that is replaced as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from siafu.store.tensors import parse_tensors, save_tensors
from siafu.training.adam import Adam

_VERSION = 3


@dataclass
class Progression:
    """How far training has come.

    Attributes:
        run: the checksum of the settings of the run it belongs to.
        epoch: epochs done.
        minibatch, minibatch_loss, minibatch_seconds: minibatches done of the epoch after it, where training was
            interrupted within one; the sum of their losses, and what they took.
        best_epoch: the epoch of the best validation score; 0 before there is one.
        best_score, best_loss: of that epoch on the validation nodes; the score may be undefined.
        best: the weights of that epoch.
        lowest_epoch, lowest_loss: of the lowest loss on the validation nodes so far.
        epoch_seconds: of every training step.
        seconds: of training so far, all that was interrupted included.
        peak_rss_bytes: the most memory held so far.
        bytes_by_label: what all ranks have sent up to the checkpoint.
        dollars: what training has cost, where that is metered.
        tasks, tasks_relaunched: that workers have done, and how often one was done again.
        stage, stage_epoch: stages done, where a model is learned in such; the epochs done before the one after them.
        stages: what became of each stage that is done.
    """

    run: str = ""
    epoch: int = 0
    minibatch: int = 0
    minibatch_loss: float = 0.0
    minibatch_seconds: float = 0.0
    best_epoch: int = 0
    best_score: float | None = None
    best_loss: float | None = None
    best: dict[str, Tensor] = field(default_factory=dict)
    lowest_epoch: int = 0
    lowest_loss: float | None = None
    epoch_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    bytes_by_label: dict[str, int] = field(default_factory=dict)
    dollars: float = 0.0
    tasks: int = 0
    tasks_relaunched: int = 0
    stage: int = 0
    stage_epoch: int = 0
    stages: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: Adam,
    done: Progression,
    kept: Mapping[int, Mapping[str, Tensor]] | None = None,
) -> int:
    """Write weights, optimiser, progression and what each rank keeps of its own; returns the bytes written."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in done.best.items()}
    for slot, values in optimizer.state.items():
        tensors |= {f"optimizer.{slot}.{name}": value for name, value in values.items()}
    for rank, own in (kept or {}).items():
        tensors |= {f"rank.{rank}.{name}": value for name, value in own.items()}
    state = {key: value for key, value in vars(done).items() if key != "best"}
    return save_tensors(path, tensors, {"version": _VERSION, **state})


def load_checkpoint(
    data: bytes, model: nn.Module, optimizer: Adam, *, run: str, what: str
) -> tuple[Progression, dict[int, dict[str, Tensor]]]:
    """Put weights and optimiser back as they were; returns how far training had come, and what each rank kept.

    ``data`` is what the file holds, ``what`` its name.
    """
    try:
        tensors, state = parse_tensors(data, what)
    except ValueError as error:
        raise ValueError(f"{error}; delete it to train from the first epoch") from None
    if state.pop("version", None) != _VERSION:
        raise ValueError(f"{what}: not a checkpoint of this version of siafu; train again")
    if state.get("run") != run:
        raise ValueError(f"{what}: the checkpoint of another run; put the right one back, or delete it")
    done = Progression(**state, best=under(tensors, "best"))
    try:
        model.load_state_dict(under(tensors, "model"))
    except RuntimeError as error:
        raise ValueError(f"{what}: its weights do not fit the model ({error})") from None
    optimizer.load_state(by_number(under(tensors, "optimizer")))
    return done, by_number(under(tensors, "rank"))


def by_number(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Tensors called ``3.name`` as one group for each number."""
    groups: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, key = name.partition(".")
        groups.setdefault(int(number), {})[key] = value
    return groups


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin with a prefix and a dot, without it."""
    return {
        name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")
    }
