"""Lazy message passing: a model learned stage by stage, with one exchange of rows before each (RETEXO).

While a stage is learned nothing of the graph travels: what it reads was exchanged and aggregated before. Ranks send
each other updates of the weights of that stage alone. Its best weights on the validation nodes stay; then it passes on
its rows, computed without dropout. The model answers with the last stage that the validation nodes find good enough.
"""

import time
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

from siafu.comm.config import CommConfig
from siafu.comm.rounded import RoundedSum
from siafu.graph import Block
from siafu.methods.lazy.bytes_sent import MESSAGES, PARAMETERS
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.lazy.reading import Reading, exchange, read_alone, settle, without
from siafu.methods.lazy.stage import stages_of
from siafu.methods.lazy.updates import average, flat
from siafu.nn.aggregate import widened
from siafu.nn.dropout import set_keys
from siafu.nn.gcn import Gcn
from siafu.nn.staged import Staged, parameters_of
from siafu.partition.cut import Part
from siafu.training.checkpoint import by_number, under
from siafu.training.config import TrainConfig
from siafu.training.full import FullTrainer, Watch
from siafu.training.task import Task


class LazyTrainer(FullTrainer):
    """Trains the stages of ``model`` in turn on one rank's part; a round of a stage is an epoch."""

    model: Staged

    def __init__(
        self,
        model: Staged,
        part: Part,
        block: Block,
        x_own: Tensor,
        task: Task,
        config: TrainConfig,
        *,
        lazy: LazyConfig,
        seed: int,
        wire: CommConfig,
    ) -> None:
        super().__init__(model, block, x_own, task, config, seed=seed, wire=wire)
        self.lazy, self.stages = lazy, stages_of(model, lazy)
        if not lazy.features and self.stages[0].sends != "nothing":
            raise ValueError(
                "lazy.features is false, but the first stage of this recipe sends features; set lazy.recipe to "
                "logits or frugal"
            )
        self._route, self._wire = part.route, wire
        self._settled: Block | None = None
        self._rows = [widened(x_own)]  # of own nodes: the inputs, then what each stage passed on
        self._reading: Reading | None = None  # of the stage that is being learned
        self._output: Tensor | None = None  # of the chosen stage

    def step(self, epoch: int) -> float:
        """Train for one round of the current stage; returns its loss. Collective."""
        self._open()
        self.model.train()
        self._set_lr(epoch)
        if self.lazy.local_epochs > 1:
            return self._step_apart(epoch)
        self._begin_step(epoch)
        return self._learn_from(self._sum_of_losses() / self.task.weight["train"])

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """For every own row what the stage at hand says, or between stages the chosen one. Collective."""
        self.model.eval()
        if self._reading is not None:
            return self.model.output(self.done.stage, self._reading.block, self._reading.x_src)
        if self._output is None:
            chosen = int(self.model.chosen) if self.done.stages else 0
            reading = self._read(chosen)
            self._output = self.model.output(chosen, reading.block, reading.x_src)
        return self._output

    @property
    def stage(self) -> int:
        """Which stage answers, from 1."""
        return int(self.model.chosen) + 1

    def bytes_by_stage(self) -> list[dict[str, Any]]:
        """What became of each stage that is done, and what it sent as far as that is counted."""
        sent = self.done.bytes_by_label
        return [
            stage
            | {"message_bytes": sent.get(f"{MESSAGES} {stage['stage']}", 0)}
            | {"parameter_bytes": sum(sent.get(f"{what} {stage['stage']}", 0) for what in PARAMETERS)}
            for stage in self.done.stages
        ]

    def _epoch(self, watch: Watch) -> None:
        """A round, and where it was the last of its stage the end of that. Collective."""
        epoch, sent = self.done.epoch + 1, self.comm.meter.total()
        self._open()
        self._epoch_start = time.perf_counter()
        loss = self.step(epoch)
        seconds = time.perf_counter() - self._epoch_start
        number = self._scheduled(epoch)
        scored = number % self.config.evaluate_every == 0 or number == self.config.epochs
        self._ended(watch, epoch, loss, seconds, sent=sent, scored=scored)
        if self._stage_is_over():
            self._close(watch)

    def _finished(self) -> str | None:
        return "done" if self.done.stage == len(self.stages) else None

    def _stage_is_over(self) -> bool:
        done, config = self.done, self.config
        number = self._scheduled(done.epoch)
        scored = done.stage_epoch + number - number % config.evaluate_every
        waited = scored - max(done.best_epoch, done.lowest_epoch)
        weary = config.patience and done.best_epoch and waited >= config.patience
        return bool(number >= config.epochs or weary)

    @property
    def _most_epochs(self) -> int:
        return self.config.epochs * len(self.stages)

    def _scheduled(self, epoch: int) -> int:
        return epoch - self.done.stage_epoch

    def _label(self, what: str) -> str:
        return f"{what} {self.done.stage + 1}"

    def _first_saved(self) -> float:
        return time.monotonic()  # within a stage a checkpoint may send more than a round does

    def _open(self) -> Reading:
        """What the current stage reads; exchanged when it is first asked for. Collective then."""
        if self._reading is None:
            self._reading = self._read(self.done.stage)
            self.model.requires_grad_(False)
            for parameter in self._learned():
                parameter.requires_grad_(True)
            rows = self.task.rows["train"]
            self._training = self._reading.of(rows) if self.model.frozen(self.done.stage) else None
        return self._reading

    def _learned(self) -> list[torch.nn.Parameter]:
        return list(parameters_of(self.model.learned(self.done.stage)))

    def _read(self, stage: int) -> Reading:
        """What a stage reads, after those before it have passed on theirs once more where that is lost. Collective."""
        while len(self._rows) <= stage:
            earlier = len(self._rows) - 1
            self._pass_on(earlier, self._exchanged(earlier))
        return self._exchanged(stage)

    @torch.no_grad()
    def _exchanged(self, stage: int) -> Reading:
        """What a stage reads: rows of own nodes and of the halo, or their aggregate alone. Collective."""
        model, own = self.model, torch.arange(self.block.num_dst)
        if model.sends(stage) == "nothing":
            return read_alone(self.block, model.given(stage, self._rows), own)
        if self._settled is None:
            degrees = any(isinstance(module, Gcn) for module in model.modules())
            self._settled = settle(self.comm, self._route, self.block, degrees=degrees)
        label = f"{MESSAGES} {stage + 1}"
        precision = self.lazy.precision
        x_src = exchange(self.comm, self._route, self._rows[stage], precision=precision, label=label)
        self._rows[stage] = x_src[: own.numel()]
        reading = Reading(self._readable(label, x_src).with_static(x_src), x_src)
        if not model.frozen(stage):
            return reading
        model.aggregate(stage, reading.block, x_src)
        return reading.of(own)

    def _readable(self, label: str, x_src: Tensor) -> Block:
        """What a stage reads over: without edges from halo rows of which nothing is known, where some are away."""
        assert self._settled is not None
        unknown = self._route.unknown(label=label, width=x_src.shape[1])
        if unknown is None:
            return self._settled
        own = torch.zeros(self.block.num_dst, dtype=torch.bool)
        return without(self._settled, torch.cat([own, unknown]))

    @torch.no_grad()
    def _pass_on(self, stage: int, reading: Reading) -> None:
        """Have a stage make the rows that the next one reads."""
        self.model.eval()
        self._rows.append(self.model.passed(stage, reading.block, reading.x_src))

    def _begin_step(self, step: int) -> None:
        set_keys(self.model, seed=self.seed, step=step)
        self.optimizer.zero_grad()

    def _sum_of_losses(self) -> Tensor:
        """Of this rank's training nodes."""
        rows, stage = self.task.rows["train"], self.done.stage
        if self._training is not None:
            few = self._training
            return self.task.loss_of(self.model.output(stage, few.block, few.x_src), rows)
        reading = self._open()
        return self.task.loss_of(self.model.output(stage, reading.block, reading.x_src)[rows], rows)

    def _step_apart(self, epoch: int) -> float:
        """Steps of each rank on its own nodes, then the mean of all ranks' weights. Collective."""
        learned, weight = self._learned(), self.task.weight_of(self.task.rows["train"])
        before, share, losses = flat(learned), weight / self.task.weight["train"], []
        for local in range(self.lazy.local_epochs if weight else 0):
            self._begin_step((epoch << 32) + local)
            loss = self._sum_of_losses() / weight
            loss.backward()
            self._move()
            losses.append(float(loss.detach()))
        average(learned, before, self.sums, share=share, label=self._label("weights"))
        mean = share * sum(losses) / max(len(losses), 1)
        here = torch.tensor([mean], dtype=torch.float64)
        return float(self.comm.all_reduce(here, label=self._label("weights")))

    def _close(self, watch: Watch) -> None:
        """End a stage: its best weights stay, and it passes on its rows. Collective."""
        done, stage, reading = self.done, self.done.stage, self._open()
        if done.best:
            self.model.load_state_dict(done.best | {"chosen": self.model.chosen})
        self._decide(self.outputs())
        if stage + 1 < len(self.stages):
            self._pass_on(stage, reading)
        done.stage, done.stage_epoch = stage + 1, done.epoch
        self._forget()
        self._saved = -inf  # little is to be kept between stages
        if done.stage == len(self.stages):
            self._end()
        self._tell(watch)

    def _decide(self, out: Tensor) -> None:
        """Write down how good a stage is, and choose it if it is good enough. Collective."""
        done, stage = self.done, self.stages[self.done.stage]
        scores, val_loss = self.task.evaluate(out)
        found: dict[str, Any] = {"stage": stage.number, "sends": stage.sends, "bits": stage.bits}
        found |= {"fits": stage.fits}
        found |= {"rounds": done.epoch - done.stage_epoch, "best_epoch": done.best_epoch or done.epoch}
        found |= {f"{split}_score": score for split, score in scores.items()} | {"val_loss": val_loss}
        if self._is_good(found):
            self.model.chosen.fill_(done.stage)
            self._output = out
        done.stages.append(found)

    def _is_good(self, found: dict[str, Any]) -> bool:
        """Whether the validation nodes find a stage as good as all before it, as far as so few can tell.

        Scores are the best of many rounds, so a stage is passed over only where it lacks more than a standard error.
        """
        before = [stage["val_score"] or 0.0 for stage in self.done.stages]
        if not self.lazy.gate or not self.task.count["val"] or not before:
            return True
        score = found["val_score"] or 0.0
        if not self.task.higher_is_better:
            return score <= min(before)
        best = max(before)
        return score >= best - sqrt(max(0.0, best * (1 - best)) / self.task.count["val"])

    def _forget(self) -> None:
        """Drop what belongs to the stage that ended."""
        done = self.done
        done.best_epoch, done.best_score, done.best_loss, done.best = 0, None, None, {}
        done.lowest_epoch, done.lowest_loss = 0, None
        self.optimizer.zero_grad()
        self.optimizer.state.clear()
        self.sums = RoundedSum(self.comm, self._wire.gradients)
        self._reading = self._training = None

    def _end(self) -> None:
        """All stages are done."""
        chosen = self.done.stages[int(self.model.chosen)]
        self.done.best_epoch, self.done.best_score = chosen["best_epoch"], chosen["val_score"]
        self.model.requires_grad_(True)

    def _tell(self, watch: Watch) -> None:
        """Write the event of the stage that just ended. Collective."""
        self.count_bytes()
        found = self.bytes_by_stage()[-1]
        score = "" if found["val_score"] is None else f", validation {found['val_score']:.4f}"
        text = f"{self.stages[found['stage'] - 1].name} in {found['rounds']} rounds{score}"
        watch.events.write("stage", epoch=self.done.epoch, text=text, **found)
        watch.say(text)

    def _own_state(self) -> dict[str, Tensor]:
        mine = super()._own_state()
        if self.lazy.local_epochs > 1:  # then each rank's optimiser has seen other gradients
            for slot, values in self.optimizer.state.items():
                mine |= {f"adam.{slot}.{name}": value for name, value in values.items()}
        return mine

    def _load_own_state(self, mine: dict[str, Tensor]) -> None:
        super()._load_own_state(mine)
        if self.lazy.local_epochs > 1:
            self.optimizer.load_state(by_number(under(mine, "adam")))
