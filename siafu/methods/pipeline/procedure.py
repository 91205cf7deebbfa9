"""Full-graph training as a pipeline of graph and tensor tasks, after Dorylus.

Each rank cuts its nodes into intervals. An interval's rows go through the model on their own: workers, which hold no
graph, do its tensor work while the rank aggregates for other intervals. With staleness 0 every epoch is exactly one
step on the whole graph, as in ``full``. With staleness S, the weights and the rows and gradients of other ranks may be
S epochs old.
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
from siafu.context import Context
from siafu.cost import Meter, charge, read_prices, value
from siafu.methods.full.procedure import infer_whole
from siafu.methods.pipeline.autoscaler import Autoscaler
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.pipeline.intervals import cut_intervals
from siafu.methods.pipeline.parameters import Parameters, weights_of
from siafu.methods.pipeline.rows import KeptRows
from siafu.methods.pipeline.server import GRAPH_LANE, STALL_S, GraphServer
from siafu.nn.model import Model
from siafu.nn.streamed import DenseRows
from siafu.training.byte_counter import ByteCounter
from siafu.training.checkpoint import under
from siafu.training.config import TrainConfig
from siafu.training.optimizer import DistributedOptimizer
from siafu.training.procedure import EpochPosition, EpochStats, Monitor, Procedure, State
from siafu.training.residuals import load_residuals, residuals_of
from siafu.training.task import Task
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import Segments
from siafu.workers.signing import BILLED_KINDS
from siafu.workers.task_queue import TaskQueue
from siafu.workers.trace import trace
from siafu.workers.worker_pool import MAX_LEASES, WorkerPool, WorkerSpec

_MAX_INTERVALS, _MIN_ROWS = 32, 4096  # by default; smaller intervals cost more than they hide
_FIRST_WORKER_S = 30.0  # how long the start waits for the first worker


@dataclass
class RunCosts:
    """The costs of a run so far: dollars, committed tasks, and tasks that were started again."""

    dollars: float = 0.0
    tasks: int = 0
    tasks_relaunched: int = 0


class PipelineProcedure(Procedure):
    """Trains ``model`` on one rank's part of the graph, with workers for the tensor work.

    ``cores`` is the default number of workers. A lease for more workers is written into ``folder``.
    """

    traced = True

    def __init__(
        self,
        model: Model,
        context: Context,
        x_src: DenseRows,
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
        self.context, self.x_src, self.in_features = context.with_static(x_src), x_src, x_src.shape[1]
        self.optimizer = DistributedOptimizer(model, config, task.comm, wire=wire)
        self.sent = ByteCounter(task.comm)
        self.costs = RunCosts()
        self.epoch = 0  # epochs done
        self.pipeline, self._route, self._cores, self.folder = pipeline, route, cores, folder
        self._feedback, self._deadline_s = ErrorFeedback(wire.precision), wire.deadline
        self._rates = read_prices(Path(pipeline.prices) if pipeline.prices else None).rates(
            pipeline.instance,
            pipeline.function_price or ("cloud-run" if pipeline.workers == "http" else "lambda-x86"),
        )
        self._counted = torch.zeros(3, dtype=torch.float64)
        self._autoscaler: Autoscaler | None = None
        self._leases = 0
        self._print: Callable[[str], None] = lambda _: None
        self._notes: list[str] = []
        self._server: GraphServer | None = None
        self._workers: WorkerPool | None = None
        self._segments: Segments | None = None

    def state(self) -> State:
        """Return the costs so far, and the error feedback residuals of this rank."""
        residuals = {f"pipeline.{name}": each for name, each in self._feedback.state().items()}
        return State(asdict(self.costs), residuals_of(self.context, self.optimizer) | residuals)

    def load_state(self, state: State) -> None:
        """Restore costs and residuals."""
        self.costs = RunCosts(**state.values)
        load_residuals(self.context, self.optimizer, state.tensors)
        self._feedback.load(under(state.tensors, "pipeline"))

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Return dollars, value and numbers of tasks."""
        return {"value": value(seconds, self.costs.dollars), **asdict(self.costs)}

    def begin(self, monitor: Monitor, *, epoch: int) -> None:
        """Keep the callback for messages; workers start with the first epoch."""
        self._print, self.epoch = monitor.callbacks.say, epoch

    def outputs(self) -> Tensor:
        """Compute the output of every own row, on this rank."""
        return infer_whole(self.model, self.context, self.x_src, self.task)

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        """Train all of ``epochs``, which overlap."""
        losses = self.train_epochs(epochs[-1])
        usage_dollars = self._count_costs() / len(epochs)
        self._autoscale(usage_dollars)
        trained = []
        for loss, ((began_s, before), (ended_s, after)) in zip(losses, pairwise(self._marks), strict=True):
            seconds = ended_s - began_s
            dollars = self._server_dollars(seconds) + usage_dollars
            self.costs.dollars += dollars
            cost = {"dollars": dollars, "value": value(seconds, dollars)}
            trained.append(EpochStats(loss, seconds, after - before, cost))
        return trained

    def train_epochs(self, last: int) -> list[float]:
        """Train up to and including epoch ``last``, without scoring; returns the losses. Collective."""
        first, server = self.epoch + 1, self._server or self._start()
        server.trace_until = self.pipeline.trace_epochs
        self._marks = [(time.perf_counter(), self.comm.meter.total())]
        self._first = first
        self.model.train()
        server.run(last)
        self.epoch = last
        return [server.parameters.losses.pop(epoch) for epoch in range(first, last + 1)]

    def after_epochs(self, epoch: int, monitor: Monitor) -> None:
        """Write the trace and the notes about workers, and bill the time of scoring."""
        self._write_trace(monitor)
        self.costs.dollars += self._server_dollars(time.perf_counter() - self._marks[-1][0])
        while self._notes:
            monitor.events.write("note", text=self._notes.pop(0))

    def _start(self) -> GraphServer:
        """Create the intervals, their rows and the workers. Collective."""
        setup = self.setup()
        channel = self.comm.channel("pipeline")
        intervals = cut_intervals(self.context, self._route, self.comm, count=self._num_intervals())
        assert isinstance(self.model, Model)
        segments = self._segments = Segments() if self.pipeline.workers == "processes" else None
        rows = KeptRows(self.model, setup, self.context, self.x_src, self.task, segments=segments)
        weights, versions = weights_of(dict(self.model.named_parameters())), self.pipeline.staleness + 3
        copies = [] if segments is None else [segments.copies(weights) for _ in range(versions)]
        tasks = TaskQueue(lambda outcome: server.on_task_end(outcome), hedging=self.pipeline.hedge)
        if self.pipeline.workers in BILLED_KINDS and not self.pipeline.num_workers:
            self._autoscaler = Autoscaler(intervals.count, max_leases=min(intervals.count, MAX_LEASES))
        spec = self._worker_spec()
        self._leases = spec.count
        self._workers = workers = WorkerPool(spec, tasks, setup, segments=segments, say=self._say)
        if self.folder is not None:
            self._write_lease(workers)
        workers.wait_for_worker(_FIRST_WORKER_S)
        server = GraphServer(
            channel,
            intervals,
            rows,
            tasks,
            first=self.epoch + 1,
            staleness=self.pipeline.staleness,
            feedback=self._feedback,
            inline=workers.run_one if workers.inline else None,
            on_stall=workers.ensure_progress,
        )
        server.parameters = Parameters(
            self.model,
            channel,
            intervals=intervals.count,
            version=self.epoch,
            step=self._step,
            on_new_version=self._on_new_version(server),
            copies=copies,
        )
        server.stall_s = min(STALL_S, self._deadline_s / 3)
        tasks.publish(self.epoch, server.parameters.weights())
        channel.on_post(server.on_message)
        self._server, self._began_s = server, time.monotonic()
        gc.freeze()  # these objects live to the end, so the garbage collector need not visit them
        return server

    def _worker_spec(self) -> WorkerSpec:
        count = max(1, ceil((self.pipeline.num_workers or self._cores) / self.comm.world_size))
        return WorkerSpec(
            self.pipeline.workers,
            count if self._autoscaler is None else self._autoscaler.leases,
            run="run" if self.folder is None else self.folder.name[:100],
            host=self.pipeline.host,
            address=self.pipeline.address,
            function=self.pipeline.function,
            endpoint=self.pipeline.endpoint,
            key_file=self.pipeline.lease_key_file,
        )

    def _write_lease(self, workers: WorkerPool) -> None:
        """Write a lease for workers that people start, and print its path. Collective."""
        workers.write_lease(self._lease_path)
        here = json.dumps([socket.gethostname(), str(self._lease_path)])
        for rank, text in enumerate(all_gather_texts(self.comm, here, label="control")):
            host, path = json.loads(text)
            if self.comm.rank == 0 and (rank == 0 or Path(path).parent != self._lease_path.parent):
                where = f"rank {rank} on {host}: " if self.comm.world_size > 1 else ""
                self._say(f"{where}more workers can join with: siafu worker {shlex.quote(path)}")

    @property
    def _lease_path(self) -> Path:
        assert self.folder is not None
        return self.folder / f"lease-{self.comm.rank}.json"

    def close(self, monitor: Monitor | None = None) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.close()
        if self._segments is not None:
            self._segments.close()
        if self.folder is not None:
            self._lease_path.unlink(missing_ok=True)
        self._workers = self._server = None
        gc.unfreeze()

    def _on_new_version(self, server: GraphServer) -> Any:
        def on_new_version(version: int) -> None:
            self._marks.append((time.perf_counter(), self.comm.meter.total()))
            server.add_version(version)

        return on_new_version

    def _step(self, epoch: int, grads: list[Tensor]) -> None:
        """Update the weights, as ``full`` does."""
        self.optimizer.set_lr(epoch)
        for parameter, grad in zip(self.model.parameters(), grads, strict=True):
            parameter.grad = grad
        self.optimizer.step()
        self.optimizer.zero_grad()

    def setup(self) -> Setup:
        """Describe the model's tensor work for workers."""
        model, task = self.model, self.task
        assert isinstance(model, Model)
        order = model.order([self.context] * model.num_aggregates, self.x_src)
        weight = task.class_weight
        return Setup(
            trace(model, order),
            order.kept,
            task=task.kind,
            scale=task.weight["train"],
            class_weight=None if weight is None else tuple(weight.tolist()),
            seed=self.seed,
            dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
            gamma=task.gamma,
        )

    def _num_intervals(self) -> int:
        return self.pipeline.intervals or max(1, min(_MAX_INTERVALS, self.context.num_dst // _MIN_ROWS))

    def _count_costs(self) -> float:
        """Count tasks; returns the dollars for functions and bytes since the last call. Collective."""
        assert self._server is not None
        assert self._workers is not None
        counts, workers = self._server.tasks.counts, self._workers.meter(self._rates, self.pipeline.memory_mb)
        used = workers + Meter(within_zone_bytes=self.comm.meter.total())
        here = [counts.committed, counts.relaunched, charge(used, self._rates).dollars]
        now = self.comm.all_reduce(torch.tensor(here, dtype=torch.float64), label="control")
        tasks, relaunched, dollars = (now - self._counted).tolist()
        self._counted = now
        self.costs.tasks += round(tasks)
        self.costs.tasks_relaunched += round(relaunched)
        return dollars

    def _autoscale(self, usage_dollars: float) -> None:
        """Choose the number of leases by their value; rank 0 decides. Collective."""
        if self._autoscaler is None:
            return
        assert self._server is not None
        assert self._workers is not None
        seconds = (self._marks[-1][0] - self._marks[0][0]) / (len(self._marks) - 1)
        dollars = self._server_dollars(seconds) + usage_dollars
        if not self._workers.gave_up:
            self._autoscaler.after(seconds, dollars, self._server.queue_stats(self._leases))
        mine = self._autoscaler.leases if self.comm.rank == 0 else 0
        leases = int(self.comm.all_reduce(torch.tensor([mine]), label="control"))
        if self._autoscaler.announcement and self.comm.rank == 0:
            self._say(self._autoscaler.announcement)
        if leases != self._leases:
            self._leases = self._autoscaler.leases = leases
            self._workers.resize(leases)

    def _server_dollars(self, seconds: float) -> float:
        """Return the dollars for all ranks over ``seconds``; the ranks are also the parameter servers."""
        return charge(Meter().with_servers(self.comm.world_size, seconds=seconds), self._rates).dollars

    def _say(self, text: str) -> None:
        """Print a message and note it for the events, from any thread."""
        self._print(text)
        self._notes.append(text)

    def _write_trace(self, monitor: Monitor) -> None:
        """Write the spans of the first epochs, if the last step trained some of them. Collective."""
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
