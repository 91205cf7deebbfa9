"""Lazy training among many clients that come and go, each with a few nodes: simulated in one process.

One sparse product a stage serves all clients, and one pass a round, where clients take one step. Every byte is
counted, by client and by link. Who is away in a stage neither sends rows nor trains; what it missed it asks for when
it is back. A coordinator without nodes adds up what clients give: with everybody there, and one step, weights are
those of one rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm.availability import Attendance
from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.rounds import member_links
from siafu.comm.simulated_rounds import SimulatedRounds
from siafu.comm.wire_sizes import UpdateWire
from siafu.graph import Graph
from siafu.methods.lazy.averaging import flat, put
from siafu.methods.lazy.delivery_history import Known
from siafu.methods.lazy.local_steps import (
    ClientGradients,
    flat_gradient,
    run_local_steps,
    sequential_gradients,
)
from siafu.methods.lazy.procedure import LazyProcedure
from siafu.methods.lazy.stacked import dense_form, stacked
from siafu.methods.lazy.stage_inputs import StageInputs, read_alone
from siafu.nn.staged import parameters_of
from siafu.partition.assign import assign
from siafu.training.checkpoint import under
from siafu.training.procedure import Evaluation, Monitor, Selection, Stage, State
from siafu.training.task import SPLITS, Task

_SCORES = 4  # numbers of 4 bytes that a score and a loss take

# What weights travel down as where updates travel up so: 4 bits are too few for what is computed with as it comes.
_DOWN: dict[Precision, Precision] = {"fp32": "fp32", "bf16": "bf16", "int8": "int8", "int4": "int8"}


class ClientsProcedure(LazyProcedure):
    """Trains on the whole graph, whose nodes belong to clients: ``owner`` is (N,) int64, each from 0."""

    def __init__(self, *args: Any, owner: Tensor, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.owner, self._everything = owner, self.task
        self.num_clients = int(owner.max()) + 1
        attendance = Attendance(
            self.num_clients,
            seed=self.seed,
            participation=self.lazy.participation,
            away=self.lazy.away,
            quorum=self.lazy.quorum,
        )
        needed = [self._holders(self.task, split) for split in ("train", "val") if self.task.count[split]]
        links = member_links(self.block.indptr, self.block.indices, owner)
        self.rounds = SimulatedRounds(attendance, links, self.comm.meter, needed=needed)
        self._present: list[Tensor] = []  # who was there, of each stage that was opened
        self._travelled: set[int] = set()  # stages whose rows are rounded
        self._known = Known(self.block, links, owner)
        self._updates = UpdateWire(self._wire.gradients)
        self._weights = UpdateWire(_DOWN[self._wire.gradients])
        self._epochs_done = 0
        self._counted = 0  # stages whose exchange was counted
        self._version = torch.full((self.num_clients,), -1)  # of the weights that each client holds

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Further, the traffic of clients and how long it takes at each level."""
        clients = self.rounds.told(self._holders(self._everything, "train"))
        return super().metrics(seconds) | clients | {"rounds": self._epochs_done}

    def train_round(self, epoch: int) -> float:
        """Train one round: some of the training clients that are there take steps; returns their loss."""
        self._open()
        self._epochs_done = epoch
        self.model.train()
        self.optimizer.set_lr(epoch - self._epochs_before)
        task = self.task
        drawn = self.rounds.draw(epoch, self._holders(task, "train"))
        rows = drawn[self.owner[task.rows["train"]]].nonzero()[:, 0]  # among the training rows
        self._hear(drawn, epoch - 1)
        together = self.lazy.local_epochs == 1 and self._wire.gradients == "fp32"
        with self._as_heard():
            given, loss = (self._gradient if together else self._moves)(epoch, rows)
        total = self.rounds.collect(given, drawn, label=self._label("gradients"), wire=self._updates)
        self._take(total)
        return loss

    def _gradient(self, epoch: int, rows: Tensor) -> tuple[Tensor, float]:
        """The mean of the drawn clients' gradients, in one pass over their nodes; and of their losses."""
        self._begin_step(epoch)
        loss = self._loss_of(rows)
        return flat_gradient(loss, self._learned()), float(loss.detach())

    def _moves(self, epoch: int, rows: Tensor) -> tuple[Tensor, float]:
        """The mean of what each client tells of its own steps, as it travels; and of their losses."""
        nodes = self.task.rows["train"]
        owner = self.owner[nodes[rows]]
        clients = [rows[owner == client] for client in owner.unique()]
        shares = [self.task.weight_of(nodes[mine]) for mine in clients]
        return run_local_steps(
            flat(self._learned()),
            clients,
            [share / (sum(shares) or 1.0) for share in shares],
            gradients=self._gradients(epoch),
            lr=self.lazy.local_lr,
            steps=self.lazy.local_epochs,
            wire=self._updates,
        )

    def _gradients(self, epoch: int) -> ClientGradients:
        """How gradients of clients are computed: of many at once, where the stage has a form for it."""

        def begin(local: int) -> None:
            self._begin_step((epoch << 32) + local if local else epoch)

        task, nodes = self.task, self.task.rows["train"]
        form = None
        if self._training is not None:
            form = dense_form(self.model, self.current, self._training)
        if form is None:
            return sequential_gradients(self._learned(), self._loss_of, begin)
        return stacked(
            form,
            self._learned(),
            loss=lambda out, rows: task.loss_of(out, nodes[rows]),
            weight=lambda rows: task.weight_of(nodes[rows]),
            begin=begin,
        )

    def _take(self, total: Tensor) -> None:
        """Have the coordinator take a step of Adam against the mean of what clients told, (N,)."""
        learned = self._learned()
        for parameter, grad in zip(learned, total.split([p.numel() for p in learned]), strict=True):
            parameter.grad = grad.view_as(parameter).clone()
        self.optimizer.step()

    def _loss_of(self, rows: Tensor) -> Tensor:
        """The mean loss of some of the training rows, by their places among them: (R,) -> ()."""
        nodes, stage = self.task.rows["train"][rows], self.current
        if self._training is not None:
            few = self._training.of(rows)
            out = self.model.output(stage, few.block, few.x_src)
        else:
            reading = self._open()
            out = self.model.output(stage, reading.block, reading.x_src)[nodes]
        return self.task.loss_of(out, nodes) / self.task.weight_of(nodes)

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """What the stage at hand says of every node; in the end what the model says with everybody there."""
        if self._reading is not None or not self.results or not self.lazy.away:
            return super().outputs()
        if self._output is None:
            self.model.eval()
            self._output = self.model(self.block.with_static(self._rows[0]), self._rows[0])
        return self._output

    def _open(self) -> StageInputs:
        if self._reading is None:
            there = self._there(self.current)
            self.task = of_those(self._everything, there[self.owner])
        return super()._open()

    def _there(self, stage: int) -> Tensor:
        """Who is there for a stage, (P,) bool."""
        while len(self._present) <= stage:
            self._present.append(self.rounds.meet(len(self._present)))
        return self._present[stage]

    @torch.no_grad()
    def _exchanged(self, stage: int) -> StageInputs:
        """What a stage reads, after who was away has caught up; counted the first time."""
        there, new = self._there(stage), stage >= self._counted
        self._catch_up(stage, new=new)
        reading = self._reading_of(stage, there, there, label=f"halo {stage + 1}", new=new)
        self._counted = max(self._counted, stage + 1)
        return reading

    def _reading_of(
        self, stage: int, senders: Tensor, readers: Tensor, *, label: str, new: bool
    ) -> StageInputs:
        """What some clients read of the rows of a stage that others send, both (P,) bool."""
        model, own = self.model, torch.arange(self.block.num_dst)
        if model.sends(stage) == "nothing":
            return read_alone(self.block, model.given(stage, self._rows), own)
        self._round(stage)
        asked = self._known.asked(senders, readers)
        came = self.rounds.exchange(self._rows[stage], asked, label=label)[1] if new else asked
        stands_in = self.lazy.missing == "last" and model.sends(stage) == "logits"
        block, x_src = self._known.block(stage, self._rows, came, stands_in=stands_in)
        reading = StageInputs(block.with_static(x_src), x_src)
        if not model.frozen(stage):
            return reading
        model.aggregate(stage, reading.block, x_src)
        return reading.of(own)

    def _catch_up(self, stage: int, *, new: bool) -> None:
        """Have those who are back ask for what they missed, and make the rows that the stage reads of them."""
        for missed in range(stage):
            back = self._there(stage) & self._away_since(missed, stage)
            if not bool(back.any()):
                continue
            if new:
                self._tell_again(missed, back)
            reading = self._reading_of(missed, self._there(stage), back, label="halo caught up", new=new)
            self.model.eval()
            rows = back[self.owner].nonzero()[:, 0]
            made = self.model.passed(missed, reading.block, reading.x_src)[rows]
            travelled = missed + 1 in self._travelled
            self._rows[missed + 1][rows] = (
                quantize_dequantize(made, self.lazy.precision) if travelled else made
            )

    def _away_since(self, first: int, stage: int) -> Tensor:
        """Who was away from stage ``first`` up to the one before ``stage``, (P,) bool."""
        away = torch.ones(self.num_clients, dtype=torch.bool)
        for each in range(first, stage):
            away &= ~self._there(each)
        return away

    def _round(self, stage: int) -> Tensor:
        """The rows of a stage as they travel, rounded once."""
        if stage not in self._travelled:
            self._rows[stage] = quantize_dequantize(self._rows[stage], self.lazy.precision)
            self._travelled.add(stage)
        return self._rows[stage]

    def evaluate(self, epoch: int) -> Evaluation:
        """Score a round; clients with validation nodes receive the weights and send how good they are."""
        judges = self._holders(self.task, "val")
        self._hear(judges, epoch)
        if self.task.count["val"]:
            self.rounds.collect(torch.zeros(_SCORES), judges, label="scores")
        with self._as_heard():
            return super().evaluate(epoch)

    def weights(self) -> dict[str, Tensor]:
        """Copy the weights as clients have received them."""
        with self._as_heard():
            return super().weights()

    def _hear(self, who: Tensor, version: int) -> None:
        """Have the coordinator tell its weights to those, (P,) bool, that do not hold them yet."""
        behind = who & (self._version != version)
        self.rounds.tell(flat(self._learned()), behind, label=self._label("weights"), wire=self._weights)
        self._version[behind] = version

    def _tell_again(self, stage: int, who: Tensor) -> None:
        """Have the coordinator tell those, (P,) bool, the weights of a stage that they missed."""
        weights = flat(self._learned_in(stage))
        self.rounds.tell(weights, who, label="weights caught up", wire=self._weights)

    @contextmanager
    def _as_heard(self) -> Iterator[None]:
        """Weights as clients hear them, while they are read; then the coordinator's own again."""
        learned = self._learned()
        own = flat(learned)
        put(learned, self._weights.arrived(own[None])[0])
        yield
        put(learned, own)

    def end_stage(self, stage: Stage, monitor: Monitor) -> Selection | None:
        """End a stage: all clients that are there receive its best weights."""
        self._hear(self._there(stage.number), stage.best_epoch or stage.last_epoch)
        put(self._learned(), self._weights.arrived(flat(self._learned())[None])[0])
        selected = super().end_stage(stage, monitor)
        self._version.fill_(-1)
        self.task = self._everything
        return selected

    def _complete(self) -> Selection:
        selected = super()._complete()
        if self.lazy.away:
            self._answer()
        return selected

    @torch.no_grad()
    def _answer(self) -> None:
        """Everybody is back, hears what it missed, and rows travel once more, so that all are answered alike."""
        model, rows = self.model, self._rows[:1]
        everybody = torch.ones(self.num_clients, dtype=torch.bool)
        self._output = None
        for stage in range(int(model.chosen) + 1):
            missed = self._away_since(stage, len(self.stages))
            self._tell_again(stage, missed)
            if model.sends(stage) != "nothing":
                rows[stage] = quantize_dequantize(rows[stage], self.lazy.precision)
                self.rounds.exchange(
                    rows[stage], self._known.asked(everybody, everybody), label="halo answers"
                )
            given = model.given(stage, rows)
            if stage < int(model.chosen):
                rows.append(model.eval().passed(stage, self.block.with_static(given), given))

    def _learned_in(self, stage: int) -> list[nn.Parameter]:
        return list(parameters_of(self.model.learned(stage)))

    def _holders(self, task: Task, split: str) -> Tensor:
        return holders(task, split, self.owner)

    def state(self) -> State:
        """Further, the traffic counted so far and the version of the weights that each client holds."""
        counted = {f"clients.{name}": value for name, value in self.rounds.state().items()}
        more = {"counted": torch.tensor(self._counted), "version": self._version}
        more |= {"epochs": torch.tensor(self._epochs_done)}
        values, tensors = super().state()
        return State(values, tensors | counted | {f"clients.{name}": value for name, value in more.items()})

    def load_state(self, state: State) -> None:
        """Take them back."""
        found = under(state.tensors, "clients")
        self._counted, self._version = int(found["counted"]), found["version"].clone()
        self._epochs_done = int(found["epochs"])
        self.rounds.load_state(found)
        super().load_state(state)


def owners(graph: Graph, clients: str | int, *, by: str, ranks: int) -> Tensor:
    """The client of each node, (N,) int64: its own, or one of so many, ``by`` a way to partition."""
    if ranks > 1:
        raise ValueError(
            f"lazy.clients simulates clients in one process, but ranks is {ranks}; leave --ranks out, or lazy.clients"
        )
    if clients == "node":
        return torch.arange(graph.num_nodes)
    return assign(graph, parts=int(clients), by=by).long()


def holders(task: Task, split: str, owner: Tensor) -> Tensor:
    """Who has nodes of a split, (P,) bool."""
    found = torch.zeros(int(owner.max()) + 1, dtype=torch.bool)
    found[owner[task.rows[split]]] = True
    return found


def of_those(task: Task, there: Tensor) -> Task:
    """A task whose nodes are those that are there, (N,) bool."""
    rows = {split: task.rows[split][there[task.rows[split]]] for split in SPLITS}
    count = {split: rows[split].numel() for split in SPLITS}
    return replace(
        task, rows=rows, count=count, weight={split: task.weight_of(rows[split]) for split in SPLITS}
    )
