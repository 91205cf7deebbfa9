"""Full-graph training as a pipeline of graph and tensor tasks, after Dorylus.

Each rank cuts its nodes into intervals. An interval's rows go through the model on their own: tensor work is done
by workers, which hold no graph, while the rank aggregates for other intervals. With staleness 0 every epoch is exactly
one step on the whole graph, as in ``full``. With more, rows and gradients of other ranks, and the weights, may be of
an epoch that lies so many epochs back.
"""

import gc
import json
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siafu.comm.all_gather import all_gather_texts
from siafu.comm.config import CommConfig
from siafu.comm.quantization import ErrorFeedback
from siafu.comm.route import Route
from siafu.cost import Meter, charge, read_prices, value
from siafu.graph import Block
from siafu.methods.full.procedure import infer_whole
from siafu.methods.pipeline.autoscaler import Tuned
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.pipeline.intervals import cut_intervals
from siafu.methods.pipeline.parameters import Parameters, weights_of
from siafu.methods.pipeline.rows import KeptRows
from siafu.methods.pipeline.server import GRAPH_LANE, PATIENCE_S, GraphServer
from siafu.nn.model import Model
from siafu.nn.streamed import Rows
from siafu.training.byte_counter import ByteCounter
from siafu.training.checkpoint import under
from siafu.training.config import TrainConfig
from siafu.training.optimizer import DistributedOptimizer
from siafu.training.procedure import EpochPosition, EpochStats, Monitor, Procedure, State
from siafu.training.residuals import load_residuals, residuals_of
from siafu.training.task import Task
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import Segments
from siafu.workers.task_queue import Tasks
from siafu.workers.trace import trace
from siafu.workers.worker_pool import BILLED, MOST, Crew, Wanted

_MOST_INTERVALS, _LEAST_ROWS = 32, 4096  # where nobody says how many; smaller ones cost more than they hide
_PATIENCE_S = 30.0  # for the first worker; without one, training begins and waits there


@dataclass
class Spent:
    """Costs of a run so far: dollars, tasks that workers have done, and tasks that were started again."""

    dollars: float = 0.0
    tasks: int = 0
    tasks_relaunched: int = 0


class PipelineProcedure(Procedure):
    """Trains ``model`` on one rank's part, whose tensor work workers do.

    Where nobody says how many these are, there are as many as ``cores``; ``folder`` gets a lease for more of them.
    """

    traced = True

    def __init__(
        self,
        model: Model,
        block: Block,
        x_src: Rows,
        task: Task,
        config: TrainConfig,
        *,
        pipeline: PipelineConfig,
        route: Route,
        seed: int,
        wire: CommConfig,
        cores: int = 1,
        folder: Path | None = None,
    ) -> None:
        self.model, self.task, self.comm, self.seed = model, task, task.comm, seed
        self.block, self.x_src, self.in_features = block.with_static(x_src), x_src, x_src.shape[1]
        self.optimizer = DistributedOptimizer(model, config, task.comm, wire=wire)
        self.sent = ByteCounter(task.comm)
        self.spent = Spent()
        self.epoch = 0  # epochs done
        self.pipeline, self._route, self._cores, self.folder = pipeline, route, cores, folder
        self._feedback, self._deadline_s = ErrorFeedback(wire.precision), wire.deadline
        self._rates = read_prices(Path(pipeline.prices) if pipeline.prices else None).rates(
            pipeline.instance,
            pipeline.function_price or ("cloud-run" if pipeline.workers == "http" else "lambda-x86"),
        )
        self._accounted = torch.zeros(3, dtype=torch.float64)
        self._tuned: Tuned | None = None
        self._leases = 0
        self._tell: Callable[[str], None] = lambda _: None
        self._notes: list[str] = []
        self._server: GraphServer | None = None
        self._crew: Crew | None = None
        self._segments: Segments | None = None

    def state(self) -> State:
        """Costs so far, and the residuals of this rank."""
        residuals = {f"pipeline.{name}": each for name, each in self._feedback.state().items()}
        return State(asdict(self.spent), residuals_of(self.block, self.optimizer) | residuals)

    def load_state(self, state: State) -> None:
        """Take costs and residuals back."""
        self.spent = Spent(**state.values)
        load_residuals(self.block, self.optimizer, state.tensors)
        self._feedback.load(under(state.tensors, "pipeline"))

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Dollars, value and tasks."""
        return {"value": value(seconds, self.spent.dollars), **asdict(self.spent)}

    def begin(self, monitor: Monitor, *, epoch: int) -> None:
        """Note where lines for a person go; workers start with the first epoch."""
        self._tell, self.epoch = monitor.callbacks.say, epoch

    def outputs(self) -> Tensor:
        """Compute the output of every own row, on this rank."""
        return infer_whole(self.model, self.block, self.x_src, self.task)

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        """Train all of ``epochs``: they overlap."""
        losses = self.train_epochs(epochs[-1])
        spent = self._account() / len(epochs)
        self._tune(spent)
        trained = []
        for loss, ((began_s, before), (ended_s, after)) in zip(losses, pairwise(self._marks), strict=True):
            seconds = ended_s - began_s
            dollars = self._servers(seconds) + spent
            self.spent.dollars += dollars
            cost = {"dollars": dollars, "value": value(seconds, dollars)}
            trained.append(EpochStats(loss, seconds, after - before, cost))
        return trained

    def train_epochs(self, last: int) -> list[float]:
        """Train up to and with an epoch, without a score; returns the losses. Collective."""
        first, server = self.epoch + 1, self._server or self._start()
        server.trace_until = self.pipeline.trace_epochs
        self._marks = [(time.perf_counter(), self.comm.meter.total())]
        self._first = first
        self.model.train()
        server.run(last)
        self.epoch = last
        return [server.parameters.losses.pop(epoch) for epoch in range(first, last + 1)]

    def after_epochs(self, epoch: int, monitor: Monitor) -> None:
        """Write the trace and the notes of workers; bill the time of scoring."""
        self._write_trace(monitor)
        self.spent.dollars += self._servers(time.perf_counter() - self._marks[-1][0])
        while self._notes:
            monitor.events.write("note", text=self._notes.pop(0))

    def _start(self) -> GraphServer:
        """Make the intervals, their rows and the workers. Collective."""
        setup = self.setup()
        channel = self.comm.channel("pipeline")
        intervals = cut_intervals(self.block, self._route, self.comm, count=self._num_intervals())
        assert isinstance(self.model, Model)
        segments = self._segments = Segments() if self.pipeline.workers == "processes" else None
        rows = KeptRows(self.model, setup, self.block, self.x_src, self.task, segments=segments)
        weights, versions = weights_of(dict(self.model.named_parameters())), self.pipeline.staleness + 3
        copies = [] if segments is None else [segments.copies(weights) for _ in range(versions)]
        tasks = Tasks(lambda done: server.deliver(done), hedging=self.pipeline.hedge)
        if self.pipeline.workers in BILLED and not self.pipeline.num_workers:
            self._tuned = Tuned(intervals.count, most=min(intervals.count, MOST))
        wanted = self._wanted()
        self._leases = wanted.count
        self._crew = crew = Crew(wanted, tasks, setup, segments=segments, say=self._say)
        if self.folder is not None:
            self._write_lease(crew)
        crew.wait(_PATIENCE_S)
        server = GraphServer(
            channel,
            intervals,
            rows,
            tasks,
            first=self.epoch + 1,
            staleness=self.pipeline.staleness,
            feedback=self._feedback,
            inline=crew.do_one if crew.inline else None,
            stalled=crew.rescue,
        )
        server.parameters = Parameters(
            self.model,
            channel,
            intervals=intervals.count,
            version=self.epoch,
            step=self._step,
            renewed=self._version(server),
            copies=copies,
        )
        server.patience_s = min(PATIENCE_S, self._deadline_s / 3)
        tasks.publish(self.epoch, server.parameters.weights())
        channel.on_post(server.arrived)
        self._server, self._began_s = server, time.monotonic()
        gc.freeze()  # all that lives now lives to the end: it need not be looked through again and again
        return server

    def _wanted(self) -> Wanted:
        count = max(1, ceil((self.pipeline.num_workers or self._cores) / self.comm.world_size))
        return Wanted(
            self.pipeline.workers,
            count if self._tuned is None else self._tuned.leases,
            run="run" if self.folder is None else self.folder.name[:100],
            host=self.pipeline.host,
            address=self.pipeline.address,
            function=self.pipeline.function,
            endpoint=self.pipeline.endpoint,
            key_file=self.pipeline.lease_key_file,
        )

    def _write_lease(self, crew: Crew) -> None:
        """Write a lease for workers that people start, and say where it lies. Collective."""
        crew.write_lease(self._lease)
        here = json.dumps([socket.gethostname(), str(self._lease)])
        for rank, text in enumerate(all_gather_texts(self.comm, here, label="control")):
            host, path = json.loads(text)
            if self.comm.rank == 0 and (rank == 0 or Path(path).parent != self._lease.parent):
                where = f"rank {rank} on {host}: " if self.comm.world_size > 1 else ""
                self._say(f"{where}more workers can join with: siafu worker {shlex.quote(path)}")

    @property
    def _lease(self) -> Path:
        assert self.folder is not None
        return self.folder / f"lease-{self.comm.rank}.json"

    def close(self, monitor: Monitor | None = None) -> None:
        """End the workers."""
        if self._crew is not None:
            self._crew.close()
        if self._segments is not None:
            self._segments.close()
        if self.folder is not None:
            self._lease.unlink(missing_ok=True)
        self._crew = self._server = None
        gc.unfreeze()

    def _version(self, server: GraphServer) -> Any:
        def renewed(version: int) -> None:
            self._marks.append((time.perf_counter(), self.comm.meter.total()))
            server.renewed(version)

        return renewed

    def _step(self, epoch: int, grads: list[Tensor]) -> None:
        """Move the weights, as ``full`` does."""
        self.optimizer.set_lr(epoch)
        for parameter, grad in zip(self.model.parameters(), grads, strict=True):
            parameter.grad = grad
        self.optimizer.step()
        self.optimizer.zero_grad()

    def setup(self) -> Setup:
        """The model's tensor work, as workers are told of it."""
        model, task = self.model, self.task
        assert isinstance(model, Model)
        order = model.order([self.block] * model.num_aggregates, self.x_src)
        weight = task.class_weight
        return Setup(
            trace(model, order),
            order.kept,
            task=task.kind,
            scale=task.weight["train"],
            class_weight=None if weight is None else tuple(weight.tolist()),
            seed=self.seed,
            dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        )

    def _num_intervals(self) -> int:
        return self.pipeline.intervals or max(1, min(_MOST_INTERVALS, self.block.num_dst // _LEAST_ROWS))

    def _account(self) -> float:
        """Count tasks, and what functions and bytes have cost since this was last asked, in dollars. Collective."""
        assert self._server is not None
        assert self._crew is not None
        counts, served = self._server.tasks.counts, self._crew.used(self._rates, self.pipeline.memory_mb)
        used = served + Meter(within_zone_bytes=self.comm.meter.total())
        here = [counts.committed, counts.relaunched, charge(used, self._rates).dollars]
        now = self.comm.all_reduce(torch.tensor(here, dtype=torch.float64), label="control")
        tasks, relaunched, dollars = (now - self._accounted).tolist()
        self._accounted = now
        self.spent.tasks += round(tasks)
        self.spent.tasks_relaunched += round(relaunched)
        return dollars

    def _tune(self, spent: float) -> None:
        """Have as many leases as are worth their money; rank 0 decides. Collective."""
        if self._tuned is None:
            return
        assert self._server is not None
        assert self._crew is not None
        seconds = (self._marks[-1][0] - self._marks[0][0]) / (len(self._marks) - 1)
        dollars = self._servers(seconds) + spent
        if not self._crew.gave_up:
            self._tuned.after(seconds, dollars, self._server.seen(self._leases))
        mine = self._tuned.leases if self.comm.rank == 0 else 0
        leases = int(self.comm.all_reduce(torch.tensor([mine]), label="control"))
        if self._tuned.news and self.comm.rank == 0:
            self._say(self._tuned.news)
        if leases != self._leases:
            self._leases = self._tuned.leases = leases
            self._crew.resize(leases)

    def _servers(self, seconds: float) -> float:
        """What all ranks cost in so long, in dollars; the parameter servers live in them."""
        return charge(Meter().with_servers(self.comm.world_size, seconds=seconds), self._rates).dollars

    def _say(self, text: str) -> None:
        """Tell whoever looks on, from any thread."""
        self._tell(text)
        self._notes.append(text)

    def _write_trace(self, monitor: Monitor) -> None:
        """Write the tasks of the first epochs, where the last step has trained some of them. Collective."""
        server = self._server
        assert server is not None
        if self._first > self.pipeline.trace_epochs:
            return
        here = [[*each._replace(start_s=each.start_s - self._began_s)] for each in server.trace]
        server.trace.clear()
        for rank, text in enumerate(all_gather_texts(self.comm, json.dumps(here), label="control")):
            for lane, name, epoch, interval, start, seconds in json.loads(text):
                monitor.events.write(
                    "graph" if lane == GRAPH_LANE else "task",
                    rank=rank,
                    lane=lane,
                    name=name,
                    epoch=epoch,
                    interval=interval,
                    start=start,
                    seconds=seconds,
                )
