"""Lazy message passing (RETEXO): a model is trained stage by stage, with one exchange of rows before each stage.

The inputs of a stage are exchanged and aggregated before it trains; then ranks send each other only updates of its
weights. The stage keeps the weights with the best validation score and computes the rows of the next stage without
dropout. The model's output is that of the last stage that passes the gate (:meth:`LazyProcedure._passes_gate`).
"""

import time
from collections.abc import Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from siafu.comm.config import CommConfig
from siafu.context import Context
from siafu.methods.lazy.averaging import average_weights, flat_parameters
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.lazy.stage_inputs import (
    StageInputs,
    detach_halo,
    drop_edges_from,
    edgeless_inputs,
    gather_source_rows,
)
from siafu.methods.lazy.stage_specs import stage_specs
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
    """Trains the stages of ``model`` one after another on one rank's part; a round of a stage counts as an epoch."""

    checkpoint_at_once = False  # within a stage a checkpoint may send more than a round does
    model: Staged

    def __init__(
        self,
        model: Staged,
        part: Part,
        context: Context,
        x_own: Tensor,
        task: Task,
        config: TrainConfig,
        *,
        lazy: LazyConfig,
        seed: int,
        wire: CommConfig,
    ) -> None:
        self.model, self.task, self.comm, self.seed = model, task, task.comm, seed
        self.context, self.in_features = context.with_static(x_own), x_own.shape[1]
        self.optimizer = DistributedOptimizer(model, config, task.comm, wire=wire)
        self.sent = ByteCounter(task.comm)
        self.lazy, self.stages = lazy, stage_specs(model, lazy)
        self.num_stages = len(self.stages)
        self.current, self._epochs_before = 0, 0  # the stage that trains, and the epochs before it
        self.results: list[dict[str, Any]] = []  # one entry per stage that has ended
        if not lazy.features and self.stages[0].sends != "nothing":
            raise ValueError(
                "lazy.features is false, but the first stage of this recipe sends features; set lazy.recipe to "
                "logits or frugal"
            )
        self._route, self._wire = part.route, wire
        self._local_context: Context | None = None
        self._rows = [widened(x_own)]  # of own nodes: the inputs, then the output rows of each stage
        self._inputs: StageInputs | None = None  # of the current stage
        self._output: Tensor | None = None  # of the chosen stage

    def begin_stage(self, number: int, *, epoch: int) -> None:
        """Start or resume a stage."""
        self.current, self._epochs_before = number, epoch

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        """Train one round of the current stage."""
        self._current_inputs()
        start = time.perf_counter()  # the exchange of rows before a stage is not part of a round
        loss = self.train_round(epochs.start)
        return [EpochStats(loss, time.perf_counter() - start)]

    def train_round(self, epoch: int) -> float:
        """Train one round; returns its loss. Collective."""
        self._current_inputs()
        self.model.train()
        self.optimizer.set_lr(epoch - self._epochs_before)
        if self.lazy.local_epochs > 1:
            return self._step_locally(epoch)
        self._start_step(epoch)
        loss = self._loss_sum() / self.task.weight["train"]
        return self.optimizer.learn_from(loss, label=self._label("gradients"))

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """Compute the output of the current stage for every own row; between stages, of the chosen one. Collective."""
        self.model.eval()
        if self._inputs is not None:
            return self.model.output(self.current, self._inputs.context, self._inputs.x_src)
        if self._output is None:
            chosen = int(self.model.chosen) if self.results else 0
            inputs = self._inputs_of(chosen)
            self._output = self.model.output(chosen, inputs.context, inputs.x_src)
        return self._output

    @torch.no_grad()
    def outputs_of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Load the weights of a trained model, and compute the output of its chosen stage. Collective."""
        self.model.load_state_dict(weights)
        self.model.eval()
        del self._rows[1:]  # of other weights
        chosen = int(self.model.chosen)
        inputs = self._inputs_of(chosen)
        return self.model.output(chosen, inputs.context, inputs.x_src)

    def metrics(self, seconds: float) -> dict[str, Any]:
        """The chosen stage, from 1, and the scores and traffic of each stage."""
        sent = self.sent.by_label
        counts = {"message_bytes": message_bytes(sent), "parameter_bytes": parameter_bytes(sent)}
        return {**counts, "stage": int(self.model.chosen) + 1, "stages": self.stage_results()}

    def stage_results(self) -> list[dict[str, Any]]:
        """The scores of each stage that has ended, and its traffic as counted so far."""
        sent = self.sent.by_label
        return [
            stage
            | {"message_bytes": sent.get(f"{MESSAGES} {stage['stage']}", 0)}
            | {"parameter_bytes": sum(sent.get(f"{what} {stage['stage']}", 0) for what in PARAMETERS)}
            for stage in self.results
        ]

    def _label(self, what: str) -> str:
        return f"{what} {self.current + 1}"

    def _current_inputs(self) -> StageInputs:
        """Return the inputs of the current stage; the first call exchanges them and is collective."""
        if self._inputs is None:
            self._inputs = self._inputs_of(self.current)
            self.model.requires_grad_(False)
            for parameter in self._stage_parameters():
                parameter.requires_grad_(True)
            rows = self.task.rows["train"]
            self._train_inputs = self._inputs.subset(rows) if self.model.frozen(self.current) else None
        return self._inputs

    def _stage_parameters(self) -> list[torch.nn.Parameter]:
        return list(parameters_of(self.model.learned(self.current)))

    def _inputs_of(self, stage: int) -> StageInputs:
        """Return the inputs of a stage; after a resume, first compute the rows of earlier stages again. Collective."""
        while len(self._rows) <= stage:
            earlier = len(self._rows) - 1
            self._compute_next_rows(earlier, self._exchange_inputs(earlier))
        return self._exchange_inputs(stage)

    @torch.no_grad()
    def _exchange_inputs(self, stage: int) -> StageInputs:
        """Exchange the inputs of a stage: rows of own nodes and of the halo, or only their aggregate. Collective."""
        model, own = self.model, torch.arange(self.context.num_dst)
        if model.sends(stage) == "nothing":
            return edgeless_inputs(self.context, model.given(stage, self._rows), own)
        if self._local_context is None:
            degrees = any(isinstance(module, Gcn) for module in model.modules())
            self._local_context = detach_halo(self.comm, self._route, self.context, degrees=degrees)
        label = f"{MESSAGES} {stage + 1}"
        precision = self.lazy.precision
        x_src = gather_source_rows(
            self.comm, self._route, self._rows[stage], precision=precision, label=label
        )
        self._rows[stage] = x_src[: own.numel()]
        inputs = StageInputs(self._reachable_context(label, x_src).with_static(x_src), x_src)
        if not model.frozen(stage):
            return inputs
        model.aggregate(stage, inputs.context, x_src)
        return inputs.subset(own)

    def _reachable_context(self, label: str, x_src: Tensor) -> Context:
        """Return the context of a stage, without edges from halo rows of absent sites that have never been received."""
        assert self._local_context is not None
        unknown = self._route.missing_rows(label=label, width=x_src.shape[1])
        if unknown is None:
            return self._local_context
        own = torch.zeros(self.context.num_dst, dtype=torch.bool)
        return drop_edges_from(self._local_context, torch.cat([own, unknown]))

    @torch.no_grad()
    def _compute_next_rows(self, stage: int, inputs: StageInputs) -> None:
        """Compute the rows that the next stage reads."""
        self.model.eval()
        self._rows.append(self.model.passed(stage, inputs.context, inputs.x_src))

    def _start_step(self, step: int) -> None:
        set_keys(self.model, seed=self.seed, step=step)
        self.optimizer.zero_grad()

    def _loss_sum(self) -> Tensor:
        """Sum the losses of this rank's training nodes."""
        rows, stage = self.task.rows["train"], self.current
        if self._train_inputs is not None:
            few = self._train_inputs
            return self.task.loss_of(self.model.output(stage, few.context, few.x_src), rows)
        inputs = self._current_inputs()
        return self.task.loss_of(self.model.output(stage, inputs.context, inputs.x_src)[rows], rows)

    def _step_locally(self, epoch: int) -> float:
        """Take local steps on own nodes, then average the weights of all ranks. Collective."""
        learned, weight = self._stage_parameters(), self.task.weight_of(self.task.rows["train"])
        before, share, losses = flat_parameters(learned), weight / self.task.weight["train"], []
        for local in range(self.lazy.local_epochs if weight else 0):
            self._start_step((epoch << 32) + local)
            loss = self._loss_sum() / weight
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        average_weights(learned, before, self.optimizer.sums, share=share, label=self._label("weights"))
        mean = share * sum(losses) / max(len(losses), 1)
        here = torch.tensor([mean], dtype=torch.float64)
        return float(self.comm.all_reduce(here, label=self._label("weights")))

    def end_stage(self, stage: Stage, monitor: Monitor) -> Selection | None:
        """Load the best weights of a stage, apply the gate, and compute the rows of the next stage."""
        inputs = self._current_inputs()
        if stage.best:
            self.model.load_state_dict(stage.best | {"chosen": self.model.chosen})
        self._gate_stage(self.outputs(), stage)
        if stage.number + 1 < self.num_stages:
            self._compute_next_rows(stage.number, inputs)
        self._clear_stage()
        selected = self._select_stage() if stage.number + 1 == self.num_stages else None
        self._write_event(monitor, epoch=stage.last_epoch)
        return selected

    def _gate_stage(self, out: Tensor, ended: Stage) -> None:
        """Record the scores of a stage, and choose the stage if it passes the gate. Collective."""
        stage = self.stages[ended.number]
        scores, val_loss = self.task.evaluate(out)
        found: dict[str, Any] = {"stage": stage.number, "sends": stage.sends, "bits": stage.bits}
        found |= {"fits": stage.fits}
        found |= {"rounds": ended.epochs, "best_epoch": ended.best_epoch or ended.last_epoch}
        found |= {f"{split}_score": score for split, score in scores.items()} | {"val_loss": val_loss}
        if self._passes_gate(found):
            self.model.chosen.fill_(ended.number)
            self._output = out
        self.results.append(found)

    def _passes_gate(self, found: dict[str, Any]) -> bool:
        """Return whether a stage's validation score is at most a standard error below that of every earlier stage.

        Each score is the best of many rounds; without this tolerance, chance would decide.
        """
        before = [stage["val_score"] or 0.0 for stage in self.results]
        if not self.lazy.gate or not self.task.count["val"] or not before:
            return True
        score = found["val_score"] or 0.0
        if not self.task.higher_is_better:
            return score <= min(before)
        best = max(before)
        return score >= best - sqrt(max(0.0, best * (1 - best)) / self.task.count["val"])

    def _clear_stage(self) -> None:
        """Drop the inputs and optimiser state of the stage that ended."""
        self.optimizer.reset()
        self._inputs = self._train_inputs = None

    def _select_stage(self) -> Selection:
        """End the last stage; returns the epoch and score of the chosen stage."""
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
        """The results of stages, residuals and, with local steps, this rank's Adam moments."""
        mine = residuals_of(self.context, self.optimizer)
        if self.lazy.local_epochs > 1:  # then optimisers differ between ranks
            for slot, values in self.optimizer.adam.state.items():
                mine |= {f"adam.{slot}.{name}": value for name, value in values.items()}
        return State({"results": self.results}, mine)

    def load_state(self, state: State) -> None:
        """Take them back."""
        self.results = state.values["results"]
        load_residuals(self.context, self.optimizer, state.tensors)
        if self.lazy.local_epochs > 1:
            self.optimizer.adam.load_state(by_number(under(state.tensors, "adam")))
