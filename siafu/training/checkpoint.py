"""The exact state of a training run, in one file that is replaced as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from siafu.store.tensors import parse_tensors, save_tensors
from siafu.training.adam import Adam

_VERSION = 5


@dataclass
class LoopState:
    """The progress of training.

    Attributes:
        run: the checksum of the config of the run it belongs to.
        epoch: epochs done.
        minibatch, minibatch_loss, minibatch_seconds: minibatches done of the next epoch, where training was
            interrupted within one; the sum of their losses, and their duration.
        best_epoch: the epoch of the best validation score; 0 before there is one.
        best_score, best_loss: of that epoch on the validation nodes; the score may be undefined.
        best: the weights of that epoch.
        lowest_epoch, lowest_loss: of the lowest loss on the validation nodes so far.
        stage, stage_epoch: stages done, and the epochs done before the current one.
        ended: the reason why training is complete; empty before that.
        epoch_seconds: of every training step.
        score_seconds: of all scoring so far.
        seconds: of training and scoring so far, across restarts.
        peak_rss_bytes: the most memory held so far.
        bytes_by_label: sent by all ranks up to the checkpoint.
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
    stage: int = 0
    stage_epoch: int = 0
    ended: str = ""
    epoch_seconds: list[float] = field(default_factory=list)
    score_seconds: float = 0.0
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    bytes_by_label: dict[str, int] = field(default_factory=dict)

    def forget_best(self) -> None:
        """Begin a stage, which has no best weights yet."""
        self.best_epoch, self.best_score, self.best_loss, self.best = 0, None, None, {}
        self.lowest_epoch, self.lowest_loss = 0, None


class Checkpoint(NamedTuple):
    """A checkpoint that was read.

    Attributes:
        loop: the state of the loop.
        values: the state of the procedure that all ranks share.
        of_rank: the tensors of each rank's own state.
    """

    loop: LoopState
    values: dict[str, Any]
    of_rank: dict[int, dict[str, Tensor]]


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: Adam,
    loop: LoopState,
    *,
    values: Mapping[str, Any] = MappingProxyType({}),
    of_rank: Mapping[int, Mapping[str, Tensor]] = MappingProxyType({}),
) -> int:
    """Write weights, optimiser and the states of loop and procedure; returns the bytes written."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in loop.best.items()}
    for slot, slots in optimizer.state.items():
        tensors |= {f"optimizer.{slot}.{name}": value for name, value in slots.items()}
    for rank, own in of_rank.items():
        tensors |= {f"rank.{rank}.{name}": value for name, value in own.items()}
    state = {key: value for key, value in vars(loop).items() if key != "best"}
    return save_tensors(path, tensors, {"version": _VERSION, "procedure": dict(values), **state})


def load_checkpoint(data: bytes, model: nn.Module, optimizer: Adam, *, run: str, what: str) -> Checkpoint:
    """Restore weights and optimiser, and return the rest; ``data`` is the content of the file ``what``."""
    try:
        tensors, state = parse_tensors(data, what)
    except ValueError as error:
        raise ValueError(f"{error}; delete it to train from the first epoch") from None
    if state.pop("version", None) != _VERSION:
        raise ValueError(f"{what}: not a checkpoint of this version of siafu; train again")
    if state.get("run") != run:
        raise ValueError(f"{what}: the checkpoint of another run; put the right one back, or delete it")
    values = state.pop("procedure")
    loop = LoopState(**state, best=under(tensors, "best"))
    try:
        model.load_state_dict(under(tensors, "model"))
    except RuntimeError as error:
        raise ValueError(f"{what}: its weights do not fit the model ({error})") from None
    optimizer.load_state(by_number(under(tensors, "optimizer")))
    return Checkpoint(loop, values, by_number(under(tensors, "rank")))


def by_number(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Tensors called ``3.name`` as one group for each number."""
    groups: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, key = name.partition(".")
        groups.setdefault(int(number), {})[key] = value
    return groups


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Pick the tensors whose names begin with a prefix and a dot, and remove it."""
    return {
        name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")
    }
