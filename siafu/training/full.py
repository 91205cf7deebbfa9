"""Synchronous full-graph training: every epoch is one step on the whole graph. The reference for the others.

Each rank has its part of the nodes and all of the weights. Gradients are added in the order of the ranks, so that all
ranks hold the same weights, bit for bit.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import psutil
import torch
from torch import Tensor, nn

from siafu import native
from siafu.comm.config import CommConfig
from siafu.comm.everyone import gather_tensors, gather_texts
from siafu.comm.memory import from_bytes
from siafu.comm.rounded import RoundedSum
from siafu.events import Events, Unheard
from siafu.graph import Block
from siafu.nn.dropout import mix, set_keys
from siafu.nn.embedded import Embedded
from siafu.nn.model import Gnn
from siafu.nn.streamed import Rows
from siafu.training.adam import Adam, Group
from siafu.training.checkpoint import Progression, load_checkpoint, save_checkpoint, under
from siafu.training.config import TrainConfig
from siafu.training.task import Task


class EpochListener(Protocol):
    """Told that ``epoch`` of ``total`` is trained, how it went, and where that is metered what it cost."""

    def __call__(
        self,
        epoch: int,
        total: int,
        *,
        loss: float,
        val_score: float | None,
        seconds: float,
        dollars: float | None = None,
        value: float | None = None,
    ) -> None:
        """Show it, or don't."""


@dataclass(frozen=True)
class Watch:
    """Who looks on while a model trains.

    Attributes:
        events: where events are written.
        checkpoint: the file of the checkpoint; None on ranks that write none.
        should_stop: asked after each epoch; a reason to stop there, or None.
        on_epoch: told of each epoch.
        say: told what a person should know, in a line.
    """

    events: Events | Unheard
    checkpoint: Path | None
    should_stop: Callable[[], str | None]
    on_epoch: EpochListener
    say: Callable[[str], None] = lambda _: None


class _Told(Exception):
    """Somebody wants training to stop within an epoch, whose state is kept."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FullTrainer:
    """Trains ``model`` on the rows ``x_src`` of one block: the whole graph, or this rank's part of it."""

    def __init__(
        self,
        model: nn.Module,
        block: Block,
        x_src: Rows,
        task: Task,
        config: TrainConfig,
        *,
        seed: int,
        wire: CommConfig | None = None,
    ) -> None:
        self.model, self.task, self.config, self.seed = model, task, config, seed
        self.block, self.x_src, self.comm = block.with_static(x_src), x_src, task.comm
        self.optimizer = Adam(_groups(model, config.weight_decay), lr=config.lr)
        self.done = Progression()
        self.sums = RoundedSum(self.comm, "fp32" if wire is None else wire.gradients)
        self._metered: dict[str, int] = {}  # what of the meter is counted in ``done``
        self._between: Callable[[], None] = lambda: None  # called where an epoch may be interrupted

    def resume(self, checkpoint: Path | None, *, own: bool = True) -> None:
        """Go on from a checkpoint of the same run, which rank 0 reads. Collective.

        Without ``own``, what each rank kept of its own is left: other ranks wrote it.
        """
        text = None if checkpoint is None else from_bytes(checkpoint.read_bytes())
        data = self.comm.broadcast(text, label="checkpoint").numpy().tobytes()
        name = self.comm.broadcast_text(None if checkpoint is None else str(checkpoint), label="checkpoint")
        self.done, kept = load_checkpoint(data, self.model, self.optimizer, run=self.done.run, what=name)
        self._load_own_state(kept.get(self.comm.rank, {}) if own else {})

    def train(self, watch: Watch) -> str:
        """Train until done or told to stop; returns why it ended. The model then holds the best weights if done.

        Collective.
        """
        with native.arrays_reused(), _deterministic(self.config.deterministic):
            return self._train(watch)

    def _train(self, watch: Watch) -> str:
        self._started = time.monotonic() - self.done.seconds
        self._saved = self._first_saved()
        self._between = lambda: self._pause_within(watch)
        reason = self._finished()
        while reason is None:
            try:
                self._epoch(watch)
                reason = self._pause(watch)
            except _Told as told:
                reason = told.reason
        watch.events.write("stop", epoch=self.done.epoch, reason=reason)
        if reason in ("done", "patience") and self.done.best:
            self.model.load_state_dict(self.done.best)
        return reason

    @property
    def _most_epochs(self) -> int:
        """How many epochs there can be."""
        return self.config.epochs

    def _scheduled(self, epoch: int) -> int:
        """Which epoch one is to the schedule of the learning rate."""
        return epoch

    def _label(self, what: str) -> str:
        """What an exchange of gradients or weights is counted under now."""
        return what

    def _first_saved(self) -> float:
        """When a checkpoint counts as written before there is one; at once, so that a run lost often still gets on."""
        return -inf

    def _pause(self, watch: Watch) -> str | None:
        """Keep the exact state where that is due; returns a reason to stop here, or None. Collective."""
        due = time.monotonic() - self._saved >= self.config.checkpoint_seconds
        told, save = self._agree(watch.should_stop(), due)
        reason = told or self._finished()
        self.done.seconds = time.monotonic() - self._started
        if reason is not None or save:
            self._save(watch)
            self._saved = time.monotonic()
        watch.events.flush()
        return reason

    def _pause_within(self, watch: Watch) -> None:
        """The same within an epoch. Collective."""
        self.done.minibatch_seconds = time.perf_counter() - self._epoch_start
        reason = self._pause(watch)
        if reason is not None:
            raise _Told(reason)

    def _agree(self, told: str | None, due: bool) -> tuple[str | None, bool]:
        """Why to stop, if any rank was told to, and whether rank 0 finds a checkpoint due. Collective."""
        here = torch.tensor([told is not None, due and self.comm.rank == 0], dtype=torch.int64)
        stop, save = self.comm.all_reduce(here, label="control").tolist()
        if not stop:
            return None, bool(save)
        reasons = gather_texts(self.comm, told or "", label="control")
        return next(filter(None, reasons)), bool(save)

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """The model's output for every row here, without dropout. Collective."""
        self.model.eval()
        return self._forward("evaluate halo")

    def _forward(self, label: str) -> Tensor:
        if self.block.others is not None:
            self.block.others.begin(label)
        out = self.model(self.block, self.x_src)
        expected = (self.block.num_dst, self.task.num_outputs)
        if not isinstance(out, Tensor) or tuple(out.shape) != expected:
            found = f"{tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise ValueError(
                f"the model returned {found}; expected {expected}: a row a node, a column an output"
            )
        return out

    def _epoch(self, watch: Watch) -> None:
        epoch, sent = self.done.epoch + 1, self.comm.meter.total()
        self._epoch_start = time.perf_counter() - self.done.minibatch_seconds
        loss = self.step(epoch)
        seconds, self.done.minibatch_seconds = time.perf_counter() - self._epoch_start, 0.0
        scored = epoch % self.config.evaluate_every == 0 or epoch == self.config.epochs
        self._ended(watch, epoch, loss, seconds, sent=sent, scored=scored)

    def _ended(
        self,
        watch: Watch,
        epoch: int,
        loss: float,
        seconds: float,
        *,
        sent: int,
        scored: bool,
        cost: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Score an epoch that was trained, where that is due, and write it down; ``sent`` bytes were sent before it."""
        self._check_finite(loss, f"the loss of epoch {epoch}")
        self.done.epoch = epoch
        self.done.epoch_seconds.append(seconds)
        scores = self._evaluate(epoch) if scored else {}
        rss = psutil.Process().memory_info().rss
        self.done.peak_rss_bytes = max(self.done.peak_rss_bytes, rss)
        lr, bytes_sent = self.config.lr_at(self._scheduled(epoch)), self.comm.meter.total() - sent
        watch.events.write(
            "epoch",
            epoch=epoch,
            loss=loss,
            lr=lr,
            seconds=seconds,
            rss_bytes=rss,
            bytes_sent=bytes_sent,
            **scores,
            **cost,
        )
        val_score = scores.get("val_score")
        watch.on_epoch(epoch, self._most_epochs, loss=loss, val_score=val_score, seconds=seconds, **cost)

    def _check_finite(self, value: float, what: str) -> None:
        if not isfinite(value):
            raise ValueError(
                f"{what} is {value}; lower --lr (now {self.config.lr}) or set train.clip, and look for extreme "
                "values in the features"
            )

    def step(self, epoch: int) -> float:
        """Train for one epoch, counted from 1; returns its loss. Collective."""
        self.model.train()
        set_keys(self.model, seed=self.seed, step=epoch)
        self._set_lr(epoch)
        self.optimizer.zero_grad()
        with _seeded(self.model, mix(mix(self.seed) ^ epoch) >> 1):
            loss = self.task.loss(self._forward("halo"))
        return self._learn_from(loss)

    def _learn_from(self, loss: Tensor) -> float:
        """Move the weights against the gradient of all ranks' shares of a loss; returns the loss. Collective."""
        loss.backward()
        total = self._add_gradients(loss.detach())
        self._move()
        return total

    def _set_lr(self, epoch: int) -> None:
        self.optimizer.lr = self.config.lr_at(self._scheduled(epoch))

    def _move(self) -> None:
        """Move the weights against their gradients."""
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimizer.step()

    def _add_gradients(self, loss: Tensor) -> float:
        """Make every gradient the sum of those of all ranks; returns the sum of their losses. Collective.

        What no rank has used in this step keeps no gradient, so that it is not moved.
        """
        learned = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        used = loss.new_tensor([parameter.grad is not None for parameter in learned])
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in learned]
        exact = torch.cat([used, loss.reshape(1)])
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        if self.sums.exact:  # then all of it goes in one
            flat, exact = self.sums.add(torch.cat([flat, exact]), label=self._label("gradients")).split(
                [flat.numel(), exact.numel()]
            )
        else:
            exact = self.comm.all_reduce(exact, label=self._label("gradients"))
            flat = self.sums.add(flat, label=self._label("gradients"))
        sums = flat.split([grad.numel() for grad in grads])
        used, total = exact.split([len(grads), 1])
        for parameter, total_grad, count in zip(learned, sums, used.tolist(), strict=True):
            parameter.grad = total_grad.view_as(parameter).to(parameter.dtype) if count else None
        return float(total)

    def _evaluate(self, epoch: int) -> dict[str, float | None]:
        scores, val_loss = self.task.evaluate(self.outputs())
        self._check_finite(val_loss, f"the model's output after epoch {epoch}")
        if self.task.count["val"]:
            self._keep_best(epoch, scores["val"], val_loss)
        return {f"{split}_score": score for split, score in scores.items()}

    def _keep_best(self, epoch: int, score: float | None, loss: float) -> None:
        """Keep the weights if they are the best so far: by the score, then by the loss; a tie is not better.

        A lower loss alone keeps no weights, but shows that training is not done: patience waits for either.
        """
        done, sign = self.done, 1 if self.task.higher_is_better else -1
        if done.lowest_loss is None or loss < done.lowest_loss:
            done.lowest_epoch, done.lowest_loss = epoch, loss
        if done.best and (sign * (score or 0), -loss) <= (
            sign * (done.best_score or 0),
            -(done.best_loss or 0),
        ):
            return
        done.best_epoch, done.best_score, done.best_loss = epoch, score, loss
        done.best = {name: value.clone() for name, value in self.model.state_dict().items()}

    def _finished(self) -> str | None:
        if self.done.epoch >= self.config.epochs:
            return "done"
        evaluated = self.done.epoch - self.done.epoch % self.config.evaluate_every
        waited = evaluated - max(self.done.best_epoch, self.done.lowest_epoch)
        if self.config.patience and self.done.best and waited >= self.config.patience:
            return "patience"
        return None

    def _save(self, watch: Watch) -> None:
        """Have rank 0 write the exact state. Collective."""
        watch.events.flush()  # first, so that no epoch of a checkpoint lacks its event
        start = time.perf_counter()
        kept = gather_tensors(self.comm, self._own_state(), label="checkpoint")
        self.count_bytes()
        if watch.checkpoint is None:
            return
        size = save_checkpoint(watch.checkpoint, self.model, self.optimizer, self.done, kept)
        seconds = time.perf_counter() - start
        within = {"minibatch": self.done.minibatch} if self.done.minibatch else {}
        watch.events.write("checkpoint", epoch=self.done.epoch, **within, seconds=seconds, bytes=size)

    def _own_state(self) -> dict[str, Tensor]:
        """What this rank alone must know to go on exactly: what rounding lost and is still to be sent."""
        others = self.block.others
        mine = {f"halo.{name}": lost for name, lost in ({} if others is None else others.state()).items()}
        return mine | {f"sums.{name}": lost for name, lost in self.sums.state().items()}

    def _load_own_state(self, mine: dict[str, Tensor]) -> None:
        if self.block.others is not None:
            self.block.others.load_state(under(mine, "halo"))
        self.sums.load_state(under(mine, "sums"))

    def count_bytes(self) -> dict[str, int]:
        """What all ranks have sent in this run by now, those that were stopped included, by label. Collective."""
        sent, total = self.comm.meter.sent, self.done.bytes_by_label
        here = {label: count - self._metered.get(label, 0) for label, count in sent.items()}
        self._metered = sent
        for text in gather_texts(self.comm, json.dumps(here), label="control"):
            for label, count in json.loads(text).items():
                total[label] = total.get(label, 0) + count
        return total


@contextmanager
def _seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """While it lasts, a user's module draws from torch's own generator as the seed says; siafu's own draw nothing."""
    if isinstance(model, Gnn | Embedded):
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def _deterministic(on: bool) -> Iterator[None]:
    """While it lasts, torch refuses operations whose result may vary; to ask for that imports its compiler."""
    if not on:
        yield
        return
    before, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn_only)


def _groups(model: nn.Module, weight_decay: float) -> list[Group]:
    """Parameters with their weight decay; the learned rows of nodes have none, since most nodes are seldom heard."""
    rows = {id(module.rows) for module in model.modules() if isinstance(module, Embedded)}
    decayed = [parameter for parameter in model.parameters() if id(parameter) not in rows]
    free = [parameter for parameter in model.parameters() if id(parameter) in rows]
    return [Group(decayed, weight_decay), Group(free)]
