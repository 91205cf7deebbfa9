"""Lazy message passing: a model learned stage by stage, with one exchange of rows before each (RETEXO).

While a stage is learned nothing of the graph travels: what it reads was exchanged and aggregated before. Ranks send
each other updates of the weights of that stage alone. Its best weights on the validation nodes stay; then it passes on
its rows, computed without dropout. The model answers with the last stage that the validation nodes find good enough.
"""

import time
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from siafu.comm.config import CommConfig
from siafu.graph import Block
from siafu.methods.lazy.averaging import average, flat
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.lazy.stage_inputs import StageInputs, exchange, read_alone, settle, without
from siafu.methods.lazy.stage_specs import stages_of
from siafu.methods.lazy.traffic import MESSAGES, PARAMETERS, message_bytes, parameter_bytes
from siafu.nn.aggregates import widened
from siafu.nn.dropout import set_keys
from siafu.nn.gcn import Gcn
from siafu.nn.staged import Staged, parameters_of
from siafu.partition.cut import Part
from siafu.training.byte_counter import ByteCounter
from siafu.training.checkpoint import by_number, under
from siafu.training.config import TrainConfig
from siafu.training.optimizer import DistributedOptimizer
from siafu.training.procedure import EpochPosition, EpochStats, Monitor, Procedure, Selection, Stage, State
from siafu.training.residuals import load_residuals, residuals_of
from siafu.training.task import Task


class LazyProcedure(Procedure):
    """Trains the stages of ``model`` in turn on one rank's part; a round of a stage is an epoch."""

    checkpoint_at_once = False  # within a stage a checkpoint may send more than a round does
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
        self.model, self.task, self.comm, self.seed = model, task, task.comm, seed
        self.block, self.in_features = block.with_static(x_own), x_own.shape[1]
        self.optimizer = DistributedOptimizer(model, config, task.comm, wire=wire)
        self.sent = ByteCounter(task.comm)
        self.lazy, self.stages = lazy, stages_of(model, lazy)
        self.num_stages = len(self.stages)
        self.current, self._epochs_before = 0, 0  # the stage that trains, and the epochs before it
        self.results: list[dict[str, Any]] = []  # of each stage that has ended
        if not lazy.features and self.stages[0].sends != "nothing":
            raise ValueError(
                "lazy.features is false, but the first stage of this recipe sends features; set lazy.recipe to "
                "logits or frugal"
            )
        self._route, self._wire = part.route, wire
        self._settled: Block | None = None
        self._rows = [widened(x_own)]  # of own nodes: the inputs, then what each stage passed on
        self._reading: StageInputs | None = None  # of the stage that is being learned
        self._output: Tensor | None = None  # of the chosen stage

    def begin_stage(self, number: int, *, epoch: int) -> None:
        """Start or resume a stage."""
        self.current, self._epochs_before = number, epoch

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        """Train one round of the current stage."""
        self._open()
        start = time.perf_counter()  # the exchange of rows before a stage is not part of a round
        loss = self.train_round(epochs.start)
        return [EpochStats(loss, time.perf_counter() - start)]

    def train_round(self, epoch: int) -> float:
        """Train one round; returns its loss. Collective."""
        self._open()
        self.model.train()
        self.optimizer.set_lr(epoch - self._epochs_before)
        if self.lazy.local_epochs > 1:
            return self._step_apart(epoch)
        self._begin_step(epoch)
        loss = self._sum_of_losses() / self.task.weight["train"]
        return self.optimizer.learn_from(loss, label=self._label("gradients"))

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """For every own row what the stage at hand says, or between stages the chosen one. Collective."""
        self.model.eval()
        if self._reading is not None:
            return self.model.output(self.current, self._reading.block, self._reading.x_src)
        if self._output is None:
            chosen = int(self.model.chosen) if self.results else 0
            reading = self._read(chosen)
            self._output = self.model.output(chosen, reading.block, reading.x_src)
        return self._output

    def metrics(self, seconds: float) -> dict[str, Any]:
        """The stage that answers, from 1, and the outcome and traffic of each stage."""
        sent = self.sent.by_label
        counts = {"message_bytes": message_bytes(sent), "parameter_bytes": parameter_bytes(sent)}
        return {**counts, "stage": int(self.model.chosen) + 1, "stages": self.stage_results()}

    def stage_results(self) -> list[dict[str, Any]]:
        """The outcome of each stage that has ended, and its traffic as far as it is counted."""
        sent = self.sent.by_label
        return [
            stage
            | {"message_bytes": sent.get(f"{MESSAGES} {stage['stage']}", 0)}
            | {"parameter_bytes": sum(sent.get(f"{what} {stage['stage']}", 0) for what in PARAMETERS)}
            for stage in self.results
        ]

    def _label(self, what: str) -> str:
        return f"{what} {self.current + 1}"

    def _open(self) -> StageInputs:
        """What the current stage reads; exchanged when it is first asked for. Collective then."""
        if self._reading is None:
            self._reading = self._read(self.current)
            self.model.requires_grad_(False)
            for parameter in self._learned():
                parameter.requires_grad_(True)
            rows = self.task.rows["train"]
            self._training = self._reading.of(rows) if self.model.frozen(self.current) else None
        return self._reading

    def _learned(self) -> list[torch.nn.Parameter]:
        return list(parameters_of(self.model.learned(self.current)))

    def _read(self, stage: int) -> StageInputs:
        """What a stage reads, after those before it have passed on theirs once more where that is lost. Collective."""
        while len(self._rows) <= stage:
            earlier = len(self._rows) - 1
            self._pass_on(earlier, self._exchanged(earlier))
        return self._exchanged(stage)

    @torch.no_grad()
    def _exchanged(self, stage: int) -> StageInputs:
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
        reading = StageInputs(self._readable(label, x_src).with_static(x_src), x_src)
        if not model.frozen(stage):
            return reading
        model.aggregate(stage, reading.block, x_src)
        return reading.of(own)

    def _readable(self, label: str, x_src: Tensor) -> Block:
        """What a stage reads over: without edges from halo rows of which nothing is known, where some are away."""
        assert self._settled is not None
        unknown = self._route.missing_rows(label=label, width=x_src.shape[1])
        if unknown is None:
            return self._settled
        own = torch.zeros(self.block.num_dst, dtype=torch.bool)
        return without(self._settled, torch.cat([own, unknown]))

    @torch.no_grad()
    def _pass_on(self, stage: int, reading: StageInputs) -> None:
        """Have a stage make the rows that the next one reads."""
        self.model.eval()
        self._rows.append(self.model.passed(stage, reading.block, reading.x_src))

    def _begin_step(self, step: int) -> None:
        set_keys(self.model, seed=self.seed, step=step)
        self.optimizer.zero_grad()

    def _sum_of_losses(self) -> Tensor:
        """Of this rank's training nodes."""
        rows, stage = self.task.rows["train"], self.current
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
            self.optimizer.step()
            losses.append(float(loss.detach()))
        average(learned, before, self.optimizer.sums, share=share, label=self._label("weights"))
        mean = share * sum(losses) / max(len(losses), 1)
        here = torch.tensor([mean], dtype=torch.float64)
        return float(self.comm.all_reduce(here, label=self._label("weights")))

    def end_stage(self, stage: Stage, monitor: Monitor) -> Selection | None:
        """Keep the best weights of a stage, decide whether it answers, and pass on its rows."""
        reading = self._open()
        if stage.best:
            self.model.load_state_dict(stage.best | {"chosen": self.model.chosen})
        self._decide(self.outputs(), stage)
        if stage.number + 1 < self.num_stages:
            self._pass_on(stage.number, reading)
        self._forget()
        selected = self._complete() if stage.number + 1 == self.num_stages else None
        self._write_event(monitor, epoch=stage.last_epoch)
        return selected

    def _decide(self, out: Tensor, ended: Stage) -> None:
        """Record how good a stage is, and choose it if it is good enough. Collective."""
        stage = self.stages[ended.number]
        scores, val_loss = self.task.evaluate(out)
        found: dict[str, Any] = {"stage": stage.number, "sends": stage.sends, "bits": stage.bits}
        found |= {"fits": stage.fits}
        found |= {"rounds": ended.epochs, "best_epoch": ended.best_epoch or ended.last_epoch}
        found |= {f"{split}_score": score for split, score in scores.items()} | {"val_loss": val_loss}
        if self._is_good(found):
            self.model.chosen.fill_(ended.number)
            self._output = out
        self.results.append(found)

    def _is_good(self, found: dict[str, Any]) -> bool:
        """Whether the validation nodes find a stage as good as all before it, as far as so few can tell.

        Scores are the best of many rounds, so a stage is passed over only where it lacks more than a standard error.
        """
        before = [stage["val_score"] or 0.0 for stage in self.results]
        if not self.lazy.gate or not self.task.count["val"] or not before:
            return True
        score = found["val_score"] or 0.0
        if not self.task.higher_is_better:
            return score <= min(before)
        best = max(before)
        return score >= best - sqrt(max(0.0, best * (1 - best)) / self.task.count["val"])

    def _forget(self) -> None:
        """Drop everything of the stage that ended."""
        self.optimizer.reset()
        self._reading = self._training = None

    def _complete(self) -> Selection:
        """End the last stage; returns the epoch and score of the chosen one."""
        chosen = self.results[int(self.model.chosen)]
        self.model.requires_grad_(True)
        return Selection(chosen["best_epoch"], chosen["val_score"])

    def _write_event(self, monitor: Monitor, *, epoch: int) -> None:
        """Write the event of the stage that just ended. Collective."""
        self.sent.update()
        found = self.stage_results()[-1]
        score = "" if found["val_score"] is None else f", validation {found['val_score']:.4f}"
        text = f"{self.stages[found['stage'] - 1].name} in {found['rounds']} rounds{score}"
        monitor.events.write("stage", epoch=epoch, text=text, **found)
        monitor.callbacks.say(text)

    def state(self) -> State:
        """The results of stages, residuals and, where ranks step apart, moments of this rank."""
        mine = residuals_of(self.block, self.optimizer)
        if self.lazy.local_epochs > 1:  # then each rank's optimiser has seen other gradients
            for slot, values in self.optimizer.adam.state.items():
                mine |= {f"adam.{slot}.{name}": value for name, value in values.items()}
        return State({"results": self.results}, mine)

    def load_state(self, state: State) -> None:
        """Take them back."""
        self.results = state.values["results"]
        load_residuals(self.block, self.optimizer, state.tensors)
        if self.lazy.local_epochs > 1:
            self.optimizer.adam.load_state(by_number(under(state.tensors, "adam")))
