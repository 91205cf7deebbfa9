"""Lazy training among many clients that come and go, each with a few nodes, simulated in one process.

One sparse product per stage serves all clients, and one pass per round if clients take one local step. Every byte is
counted, by client and by link. An absent client neither sends rows nor trains in a stage; on return it requests the
rows that it missed. A coordinator without nodes averages the clients' updates. If all clients are available and take
one local step, the weights are those of one rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm.availability import ClientAvailability
from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.rounds import member_links
from siafu.comm.simulated_rounds import SimulatedRounds
from siafu.comm.wire_sizes import UpdateEncoding
from siafu.graph import Graph
from siafu.methods.lazy.averaging import flat_parameters, set_flat_parameters
from siafu.methods.lazy.delivery_history import DeliveryHistory
from siafu.methods.lazy.local_steps import (
    ClientGradients,
    flat_gradient,
    run_local_steps,
    sequential_gradients,
)
from siafu.methods.lazy.procedure import LazyProcedure
from siafu.methods.lazy.stacked import dense_form, stacked
from siafu.methods.lazy.stage_inputs import StageInputs, edgeless_inputs
from siafu.nn.staged import parameters_of
from siafu.partition.assign import assign
from siafu.training.checkpoint import under
from siafu.training.procedure import Evaluation, Monitor, Selection, Stage, State
from siafu.training.task import SPLITS, Task

_SCORES = 4  # values of 4 bytes that a score and a loss take

# Downlink precision of weights for each uplink precision of updates: clients use the weights as received, and 4 bits
# are too few for that.
_DOWNLINK: dict[Precision, Precision] = {"fp32": "fp32", "bf16": "bf16", "int8": "int8", "int4": "int8"}


class ClientsProcedure(LazyProcedure):
    """Trains on the whole graph; ``owner``, (N,) int64, is the client of each node, numbered from 0."""

    def __init__(self, *args: Any, owner: Tensor, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.owner, self._full_task = owner, self.task
        self.num_clients = int(owner.max()) + 1
        availability = ClientAvailability(
            self.num_clients,
            seed=self.seed,
            participation=self.lazy.participation,
            away=self.lazy.away,
            quorum=self.lazy.quorum,
        )
        needed = [
            self._clients_with(self.task, split) for split in ("train", "val") if self.task.count[split]
        ]
        links = member_links(self.context.block.indptr, self.context.block.indices, owner)
        self.rounds = SimulatedRounds(availability, links, self.comm.meter, needed=needed)
        self._availability: list[Tensor] = []  # the available clients of each stage so far
        self._rounded_stages: set[int] = set()  # stages whose rows are rounded
        self._deliveries = DeliveryHistory(self.context, links, owner)
        self._updates = UpdateEncoding(self._wire.gradients)
        self._weights = UpdateEncoding(_DOWNLINK[self._wire.gradients])
        self._epochs_done = 0
        self._stages_counted = 0  # stages whose exchange was counted
        self._held_version = torch.full((self.num_clients,), -1)  # of the weights that each client holds

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Further, the traffic of clients and its duration for each network profile."""
        clients = self.rounds.traffic_metrics(self._clients_with(self._full_task, "train"))
        return super().metrics(seconds) | clients | {"rounds": self._epochs_done}

    def train_round(self, epoch: int) -> float:
        """Train one round: a sample of the available training clients takes local steps; returns their loss."""
        self._current_inputs()
        self._epochs_done = epoch
        self.model.train()
        self.optimizer.set_lr(epoch - self._epochs_before)
        task = self.task
        drawn = self.rounds.sample_participants(epoch, self._clients_with(task, "train"))
        rows = drawn[self.owner[task.rows["train"]]].nonzero()[:, 0]  # among the training rows
        self._send_weights(drawn, epoch - 1)
        together = self.lazy.local_epochs == 1 and self._wire.gradients == "fp32"
        with self._received_weights():
            given, loss = (self._joint_gradient if together else self._local_updates)(epoch, rows)
        total = self.rounds.collect(given, drawn, label=self._label("gradients"), wire=self._updates)
        self._apply_update(total)
        return loss

    def _joint_gradient(self, epoch: int, rows: Tensor) -> tuple[Tensor, float]:
        """Compute the mean gradient and loss of the sampled clients in one pass over their nodes."""
        self._start_step(epoch)
        loss = self._loss_of(rows)
        return flat_gradient(loss, self._stage_parameters()), float(loss.detach())

    def _local_updates(self, epoch: int, rows: Tensor) -> tuple[Tensor, float]:
        """Compute the mean of the clients' rounded updates from local steps, and of their losses."""
        nodes = self.task.rows["train"]
        owner = self.owner[nodes[rows]]
        clients = [rows[owner == client] for client in owner.unique()]
        shares = [self.task.weight_of(nodes[mine]) for mine in clients]
        return run_local_steps(
            flat_parameters(self._stage_parameters()),
            clients,
            [share / (sum(shares) or 1.0) for share in shares],
            gradients=self._gradient_function(epoch),
            lr=self.lazy.local_lr,
            steps=self.lazy.local_epochs,
            wire=self._updates,
        )

    def _gradient_function(self, epoch: int) -> ClientGradients:
        """Return the function of clients' gradients: batched over clients if the stage has a dense form."""

        def begin(local: int) -> None:
            self._start_step((epoch << 32) + local if local else epoch)

        task, nodes = self.task, self.task.rows["train"]
        form = None
        if self._train_inputs is not None:
            form = dense_form(self.model, self.current, self._train_inputs)
        if form is None:
            return sequential_gradients(self._stage_parameters(), self._loss_of, begin)
        return stacked(
            form,
            self._stage_parameters(),
            loss=lambda out, rows: task.loss_of(out, nodes[rows]),
            weight=lambda rows: task.weight_of(nodes[rows]),
            begin=begin,
        )

    def _apply_update(self, total: Tensor) -> None:
        """Take the coordinator's step of Adam, with the mean of the clients' updates, (N,), as gradient."""
        learned = self._stage_parameters()
        for parameter, grad in zip(learned, total.split([p.numel() for p in learned]), strict=True):
            parameter.grad = grad.view_as(parameter).clone()
        self.optimizer.step()

    def _loss_of(self, rows: Tensor) -> Tensor:
        """Compute the mean loss of some training rows, by index among the training rows: (R,) -> ()."""
        nodes, stage = self.task.rows["train"][rows], self.current
        if self._train_inputs is not None:
            few = self._train_inputs.subset(rows)
            out = self.model.output(stage, few.context, few.x_src)
        else:
            inputs = self._current_inputs()
            out = self.model.output(stage, inputs.context, inputs.x_src)[nodes]
        return self.task.loss_of(out, nodes) / self.task.weight_of(nodes)

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """Compute the output of the current stage for every node; in the end, of the model with all clients back."""
        if self._inputs is not None or not self.results or not self.lazy.away:
            return super().outputs()
        if self._output is None:
            self.model.eval()
            self._output = self.model(self.context.with_static(self._rows[0]), self._rows[0])
        return self._output

    def _current_inputs(self) -> StageInputs:
        if self._inputs is None:
            available = self._available(self.current)
            self.task = restrict_task(self._full_task, available[self.owner])
        return super()._current_inputs()

    def _available(self, stage: int) -> Tensor:
        """Return the clients that are available for a stage, (P,) bool."""
        while len(self._availability) <= stage:
            self._availability.append(self.rounds.available(len(self._availability)))
        return self._availability[stage]

    @torch.no_grad()
    def _exchange_inputs(self, stage: int) -> StageInputs:
        """Exchange the inputs of a stage, after returned clients have caught up; bytes are counted the first time."""
        available, new = self._available(stage), stage >= self._stages_counted
        self._catch_up(stage, new=new)
        inputs = self._inputs_among(stage, available, available, label=f"halo {stage + 1}", new=new)
        self._stages_counted = max(self._stages_counted, stage + 1)
        return inputs

    def _inputs_among(
        self, stage: int, senders: Tensor, readers: Tensor, *, label: str, new: bool
    ) -> StageInputs:
        """Exchange the rows of a stage from ``senders`` to ``readers``, both (P,) bool."""
        model, own = self.model, torch.arange(self.context.num_dst)
        if model.sends(stage) == "nothing":
            return edgeless_inputs(self.context, model.given(stage, self._rows), own)
        self._rounded_rows(stage)
        asked = self._deliveries.messages_between(senders, readers)
        came = self.rounds.exchange(self._rows[stage], asked, label=label)[1] if new else asked
        stands_in = self.lazy.missing == "last" and model.sends(stage) == "logits"
        context, x_src = self._deliveries.context(stage, self._rows, came, stands_in=stands_in)
        inputs = StageInputs(context.with_static(x_src), x_src)
        if not model.frozen(stage):
            return inputs
        model.aggregate(stage, inputs.context, x_src)
        return inputs.subset(own)

    def _catch_up(self, stage: int, *, new: bool) -> None:
        """Have returned clients request the rows that they missed, and compute their own rows for the stage."""
        for missed in range(stage):
            back = self._available(stage) & self._absent_since(missed, stage)
            if not bool(back.any()):
                continue
            if new:
                self._resend_weights(missed, back)
            inputs = self._inputs_among(missed, self._available(stage), back, label="halo caught up", new=new)
            self.model.eval()
            rows = back[self.owner].nonzero()[:, 0]
            made = self.model.passed(missed, inputs.context, inputs.x_src)[rows]
            travelled = missed + 1 in self._rounded_stages
            self._rows[missed + 1][rows] = (
                quantize_dequantize(made, self.lazy.precision) if travelled else made
            )

    def _absent_since(self, first: int, stage: int) -> Tensor:
        """Return the clients that were away in all stages from ``first`` to ``stage`` - 1, (P,) bool."""
        away = torch.ones(self.num_clients, dtype=torch.bool)
        for each in range(first, stage):
            away &= ~self._available(each)
        return away

    def _rounded_rows(self, stage: int) -> Tensor:
        """Return the rows of a stage as they are sent, rounded once."""
        if stage not in self._rounded_stages:
            self._rows[stage] = quantize_dequantize(self._rows[stage], self.lazy.precision)
            self._rounded_stages.add(stage)
        return self._rows[stage]

    def evaluate(self, epoch: int) -> Evaluation:
        """Score a round; clients with validation nodes receive the weights and send their scores."""
        validators = self._clients_with(self.task, "val")
        self._send_weights(validators, epoch)
        if self.task.count["val"]:
            self.rounds.collect(torch.zeros(_SCORES), validators, label="scores")
        with self._received_weights():
            return super().evaluate(epoch)

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights as clients have received them."""
        with self._received_weights():
            return super().weights()

    def _send_weights(self, clients: Tensor, version: int) -> None:
        """Send the coordinator's weights to those of ``clients``, (P,) bool, that do not hold this version yet."""
        behind = clients & (self._held_version != version)
        self.rounds.broadcast(
            flat_parameters(self._stage_parameters()),
            behind,
            label=self._label("weights"),
            wire=self._weights,
        )
        self._held_version[behind] = version

    def _resend_weights(self, stage: int, clients: Tensor) -> None:
        """Send the weights of a stage that ``clients``, (P,) bool, missed."""
        weights = flat_parameters(self._parameters_of_stage(stage))
        self.rounds.broadcast(weights, clients, label="weights caught up", wire=self._weights)

    @contextmanager
    def _received_weights(self) -> Iterator[None]:
        """Use the weights as clients receive them, rounded; afterwards restore the coordinator's own."""
        learned = self._stage_parameters()
        own = flat_parameters(learned)
        set_flat_parameters(learned, self._weights.quantize_rows(own[None])[0])
        yield
        set_flat_parameters(learned, own)

    def end_stage(self, stage: Stage, monitor: Monitor) -> Selection | None:
        """End a stage: all available clients receive its best weights."""
        self._send_weights(self._available(stage.number), stage.best_epoch or stage.last_epoch)
        set_flat_parameters(
            self._stage_parameters(),
            self._weights.quantize_rows(flat_parameters(self._stage_parameters())[None])[0],
        )
        selected = super().end_stage(stage, monitor)
        self._held_version.fill_(-1)
        self.task = self._full_task
        return selected

    def _select_stage(self) -> Selection:
        selected = super()._select_stage()
        if self.lazy.away:
            self._final_exchange()
        return selected

    @torch.no_grad()
    def _final_exchange(self) -> None:
        """Send all clients the weights that they missed, and exchange rows once more for the final outputs."""
        model, rows = self.model, self._rows[:1]
        all_clients = torch.ones(self.num_clients, dtype=torch.bool)
        self._output = None
        for stage in range(int(model.chosen) + 1):
            missed = self._absent_since(stage, len(self.stages))
            self._resend_weights(stage, missed)
            if model.sends(stage) != "nothing":
                rows[stage] = quantize_dequantize(rows[stage], self.lazy.precision)
                self.rounds.exchange(
                    rows[stage],
                    self._deliveries.messages_between(all_clients, all_clients),
                    label="halo answers",
                )
            given = model.given(stage, rows)
            if stage < int(model.chosen):
                rows.append(model.eval().passed(stage, self.context.with_static(given), given))

    def _parameters_of_stage(self, stage: int) -> list[nn.Parameter]:
        return list(parameters_of(self.model.learned(stage)))

    def _clients_with(self, task: Task, split: str) -> Tensor:
        return clients_with_rows(task, split, self.owner)

    def state(self) -> State:
        """Further, the traffic counted so far and the version of the weights that each client holds."""
        counted = {f"clients.{name}": value for name, value in self.rounds.state().items()}
        more = {"counted": torch.tensor(self._stages_counted), "version": self._held_version}
        more |= {"epochs": torch.tensor(self._epochs_done)}
        values, tensors = super().state()
        return State(values, tensors | counted | {f"clients.{name}": value for name, value in more.items()})

    def load_state(self, state: State) -> None:
        """Restore them."""
        found = under(state.tensors, "clients")
        self._stages_counted, self._held_version = int(found["counted"]), found["version"].clone()
        self._epochs_done = int(found["epochs"])
        self.rounds.load_state(found)
        super().load_state(state)


def assign_clients(graph: Graph, clients: str | int, *, by: str, ranks: int) -> Tensor:
    """Assign a client to each node, (N,) int64: one per node, or ``clients`` of them by a partition method."""
    if ranks > 1:
        raise ValueError(
            f"lazy.clients simulates clients in one process, but ranks is {ranks}; leave --ranks out, or lazy.clients"
        )
    if clients == "node":
        return torch.arange(graph.num_nodes)
    return assign(graph, parts=int(clients), by=by).long()


def clients_with_rows(task: Task, split: str, owner: Tensor) -> Tensor:
    """Return the clients that own nodes of a split, (P,) bool."""
    found = torch.zeros(int(owner.max()) + 1, dtype=torch.bool)
    found[owner[task.rows[split]]] = True
    return found


def restrict_task(task: Task, available: Tensor) -> Task:
    """Restrict a task to the nodes of available clients, (N,) bool."""
    rows = {split: task.rows[split][available[task.rows[split]]] for split in SPLITS}
    count = {split: rows[split].numel() for split in SPLITS}
    return replace(
        task, rows=rows, count=count, weight={split: task.weight_of(rows[split]) for split in SPLITS}
    )
