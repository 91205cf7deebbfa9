"""A graph server: runs the pipeline's tasks of one rank as soon as their inputs are available.

One thread does the graph work and owns all state. Other threads put events into its inbox: results of workers, rows of
other ranks, the end or loss of a rank. The thread handles them between pieces of work, and waits for one when idle.
"""

import heapq
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm
from siafu.comm.quantization import ErrorFeedback, decode
from siafu.methods.pipeline.interval_gates import IntervalGates
from siafu.methods.pipeline.intervals import Intervals, IntervalSend
from siafu.methods.pipeline.parameters import Parameters
from siafu.methods.pipeline.peer_messages import Message, MessageKind
from siafu.methods.pipeline.peer_watcher import PeerWatcher
from siafu.methods.pipeline.rows import KeptRows
from siafu.methods.pipeline.staleness_gate import StalenessGate
from siafu.workers.autoscaling import QueueStats
from siafu.workers.stages import reads_static
from siafu.workers.task import Direction, Key, Task
from siafu.workers.task_outcome import CompletedTask, FailedTask
from siafu.workers.task_queue import TaskQueue

STALL_S = 5.0  # without an event, after which workers are looked after
HANDOVER_S = 0.001  # for which graph work may delay the handover of tasks that are ready
MANY_INTERVALS = 100  # from so many on, events are collected for HANDOVER_S and handled together
_GraphFn = Callable[[int, int, int], None]  # called with a layer, an interval and an epoch
GRAPH_LANE = "graph"  # the trace lane of the rank's own thread


class TraceSpan(NamedTuple):
    """A span of the trace: one piece of work.

    Attributes:
        lane: the worker, or ``GRAPH_LANE``.
        name: of the work, with its layer or stage.
        epoch, interval: of the rows; when gradients are returned to a peer, ``interval`` is that peer.
        start_s: by ``time.monotonic``.
        seconds: its duration.
    """

    lane: str
    name: str
    epoch: int
    interval: int
    start_s: float
    seconds: float


class _GraphWork(NamedTuple):
    """A piece of graph work whose inputs are available, ordered by priority. No two agree in all fields but ``run``."""

    priority: tuple[int, ...]
    name: str
    layer: int
    interval: int
    epoch: int
    run: _GraphFn


class GraphServer:
    """Runs the tasks of one rank, epoch after epoch.

    ``first`` is the first epoch to be trained. ``inline`` computes a tensor task in this thread; None if workers
    compute them. ``on_stall`` is called when no event came for a while. Work in epochs up to ``trace_until`` is added
    to ``trace``.
    """

    def __init__(
        self,
        comm: Comm,
        intervals: Intervals,
        rows: KeptRows,
        tasks: TaskQueue,
        *,
        first: int,
        staleness: int,
        feedback: ErrorFeedback,
        inline: Callable[[], bool] | None,
        on_stall: Callable[[], None] = lambda: None,
    ) -> None:
        self.comm, self.intervals, self.rows, self.tasks = comm, intervals, rows, tasks
        self.setup, self.staleness, self._inline, self._feedback = rows.setup, staleness, inline, feedback
        self.parameters: Parameters  # set by the caller, since each needs the other
        self.trace: list[TraceSpan] = []
        self.trace_until = 0
        self.stall_s, self._on_stall = STALL_S, on_stall
        self.inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._last = first - 1
        self._epoch_of = [first - 1] * intervals.count  # the epoch that each interval is in, or ended last
        self._version_of = [0] * intervals.count  # the version of the weights that each interval reads
        self._waiting_intervals: list[int] = []  # for weights
        self._num_ended = 0  # intervals that have ended the last epoch
        self._versions = [first - 1]  # versions of the weights that tasks may read
        self._graph_work: list[_GraphWork] = []
        self._ready: list[tuple[Task, tuple[int, ...]]] = []  # tasks that are not in the queue yet
        self._handed_over_s = 0.0  # when tasks were last put into the queue
        self._num_commits = 0
        self._backlog: list[int] = []  # samples of the number of waiting tasks
        self._gates = IntervalGates(
            intervals, rows.aggregates, ranks=comm.world_size, staleness=staleness, first=first
        )
        self._received_grads = {
            (layer, peer): torch.zeros(
                num_rows, rows.aggregates[layer].sent, dtype=rows.aggregates[layer].z_src.dtype
            )
            for layer in rows.aggregates
            for peer, num_rows in _sent_rows(intervals).items()
        }
        exchanging = [layer for layer, aggregate in rows.aggregates.items() if aggregate.sent]
        self._returned_epoch = {
            (layer, peer): first - 1 for layer in exchanging for peer in intervals.halo_of
        }
        self._order, self._layers = _urgency_order(intervals), self.setup.num_aggregates

    def queue_stats(self, workers: int) -> QueueStats:
        """Return the state of the task queue since the last call, with ``workers`` workers."""
        backlog, self._backlog = self._backlog or [0], []
        idle = max(0.0, workers - self.intervals.count) if max(backlog) == 0 else 0.0
        return QueueStats(workers, backlog[0], backlog[-1], idle)

    def on_task_end(self, outcome: CompletedTask | FailedTask) -> None:
        """Take the outcome of a task, from any thread."""
        self.inbox.put(("done", outcome))

    def on_message(self, peer: int, tag: int, values: Tensor) -> None:
        """Take a message of another rank, from any thread."""
        self.inbox.put(("post", peer, Message.from_tag(tag), values))

    def run(self, last: int) -> None:
        """Train up to and including epoch ``last``. Collective."""
        peers = [peer for peer in range(self.comm.world_size) if peer != self.comm.rank]
        self._last, self._num_ended = last, 0
        watcher = PeerWatcher(self.comm, peers, self.inbox)
        for interval in range(self.intervals.count):
            self._begin_epoch(interval, self._epoch_of[interval] + 1)
        for layer, peer in self._returned_epoch:
            self._await_return(layer, peer)
        while not self._is_done():
            self._run_once()
        for peer in peers:
            self.comm.send(peer, torch.zeros(1), label="pipeline end")
        while not watcher.ended:
            self._handle_event(self.inbox.get())

    def _run_once(self) -> None:
        """Handle all events, then do one piece of work; wait for an event if there is none to do."""
        while not self.inbox.empty():
            self._handle_event(self.inbox.get())
        start = time.monotonic()
        if self._ready and (not self._graph_work or start - self._handed_over_s >= HANDOVER_S):
            self._hand_over(start)
        if self._graph_work:
            work = heapq.heappop(self._graph_work)
            work.run(work.layer, work.interval, work.epoch)
            if work.epoch <= self.trace_until:
                self._add_span(GRAPH_LANE, f"{work.name} {work.layer}", work.epoch, work.interval, start)
        elif self._is_done() or (self._inline is not None and self._inline()):
            return
        else:
            self._wait()

    def _hand_over(self, now_s: float) -> None:
        """Put the tasks that are ready into the queue: many at once, because each time wakes a thread."""
        ready, self._ready, self._handed_over_s = self._ready, [], now_s
        self.tasks.put_all(ready)

    def _wait(self) -> None:
        """Wait for an event. If none comes, look after the workers and send the other ranks a heartbeat."""
        try:
            self._handle_event(self.inbox.get(timeout=self.stall_s))
            if self.intervals.count >= MANY_INTERVALS:
                time.sleep(HANDOVER_S)  # waking up for each of thousands of tasks costs more than handling it
        except Empty:
            self._on_stall()
            for peer in range(self.comm.world_size):
                if peer != self.comm.rank:
                    self.comm.post(peer, Message(MessageKind.WAITING, 0).tag, torch.zeros(1), label="control")

    def _handle_event(self, item: tuple[Any, ...]) -> None:
        match item:
            case ("done", CompletedTask() as done):
                self._commit(done)
            case ("done", failed):
                raise RuntimeError(str(failed))
            case ("post", peer, message, values):
                self._on_message(peer, message, values)
            case ("lost", error):
                raise error
            case ("end",):
                pass

    def _is_done(self) -> bool:
        return (
            self._num_ended == self.intervals.count
            and self.parameters.version >= self._last
            and all(epoch >= self._last for epoch in self._returned_epoch.values())
        )

    def _begin_epoch(self, interval: int, epoch: int) -> None:
        """Begin an interval's epoch once the weights are new enough; their version is stashed for the backward pass."""
        if self.parameters.version < epoch - 1 - self.staleness:
            self._waiting_intervals.append(interval)
            return
        self._epoch_of[interval], self._version_of[interval] = epoch, self.parameters.version
        self._put(interval, self.setup.kept, epoch)

    def add_version(self, version: int) -> None:
        """Publish a new version of the weights, and begin the intervals that waited for it."""
        self.tasks.publish(version, self.parameters.weights())
        self._versions.append(version)
        oldest = min([*self._version_of, version - self.staleness])
        while self._versions[0] < oldest:
            self.tasks.retire(self._versions.pop(0))
        waiting, self._waiting_intervals = self._waiting_intervals, []
        for interval in waiting:
            self._begin_epoch(interval, self._epoch_of[interval] + 1)

    def _put(self, interval: int, stage: int, epoch: int, *, back: bool = False) -> None:
        """Make a task of a stage ready for workers."""
        direction = Direction.LEARN if stage == self._layers else Direction.FORWARD
        key = Key(epoch, stage, Direction.BACKWARD if back else direction, interval)
        arrays = self.rows.inputs(key, self.intervals.rows[interval])
        way = 2 * self._layers - stage if back else stage
        task = Task(key, self._version_of[interval], arrays)
        self._ready.append((task, (epoch, way, self._order[interval])))

    def _commit(self, done: CompletedTask) -> None:
        key, result, rows = done.task.key, done.result, self.intervals.rows[done.task.key.interval]
        epoch, stage, direction, interval = key
        if epoch <= self.trace_until:
            self._add_span(done.worker, _task_name(key), epoch, interval, done.began_s, done.ended_s)
        self._num_commits += 1
        if self._num_commits % self.intervals.count == 0:
            self._backlog.append(self.tasks.backlog)
        loss = float(result.arrays["loss"][0]) if direction == Direction.LEARN else 0.0
        self.rows.commit(key, rows, result)
        result.release()
        if direction == Direction.FORWARD:
            self._scatter(stage, interval, epoch)
            return
        self.parameters.add(epoch, interval, result.grads, loss=loss)
        if reads_static(self.setup, stage):
            self._end_epoch(interval, epoch)
        else:
            self._scatter_back(stage - 1, interval, epoch)

    def _scatter(self, layer: int, interval: int, epoch: int) -> None:
        """Send an interval's new rows to the ranks that read them, and aggregate the intervals that have all rows."""
        for send in self.intervals.sends[interval]:
            self._send(
                Message(MessageKind.ROWS, epoch, layer, interval), send, self.rows.aggregates[layer].z_src
            )
        self._schedule(
            "gather", layer, self._advance_and_wait(self._gates.rows[layer], interval, epoch), self._gather
        )

    @staticmethod
    def _advance_and_wait(gate: StalenessGate, interval: int, epoch: int) -> list[tuple[int, int]]:
        """Advance an interval at a gate, then have it wait there too; returns the intervals that may go on."""
        passed = gate.advance(interval, epoch)
        return [*passed, (interval, epoch)] if gate.wait(interval, epoch) else passed

    def _schedule(self, name: str, layer: int, passed: list[tuple[int, int]], run: _GraphFn) -> None:
        """Schedule graph work for intervals that passed a gate."""
        for interval, epoch in passed:
            self._push_graph_work(name, layer, interval, epoch, run)

    def _gather(self, layer: int, interval: int, epoch: int) -> None:
        self._aggregate(layer, interval, epoch).forward(self.intervals.rows[interval])
        self._put(interval, layer + 1, epoch)

    def _scatter_back(self, layer: int, interval: int, epoch: int) -> None:
        """Propagate an interval's new gradients of an aggregate to the rows that it reads."""
        rows = self.intervals.rows[interval]
        grads = self._aggregate(layer, interval, epoch).grad_filled(rows, again=self.staleness > 0)
        if grads:
            names = self.rows.edge_weights[layer]
            named = {name: grad.numpy() for name, grad in zip(names, grads, strict=True)}
            self.parameters.add(epoch, interval, named)
        passed = self._advance_and_wait(self._gates.grads[layer], interval, epoch)
        self._schedule("gather back", layer, passed, self._gather_back)
        for peer, _ in self._gates.to_peers[layer].advance(interval, epoch):
            self._schedule_return(layer, peer)

    def _gather_back(self, layer: int, interval: int, epoch: int) -> None:
        aggregate = self._aggregate(layer, interval, epoch)
        aggregate.backward(self.intervals.rows[interval])
        if not aggregate.collects:
            self._await_peer_grads(layer, interval, epoch)
            return
        passed = self._advance_and_wait(self._gates.collected[layer], interval, epoch)
        self._schedule("collect", layer, passed, self._collect)

    def _collect(self, layer: int, interval: int, epoch: int) -> None:
        self._aggregate(layer, interval, epoch).collect(self.intervals.rows[interval])
        self._await_peer_grads(layer, interval, epoch)

    def _await_peer_grads(self, layer: int, interval: int, epoch: int) -> None:
        """Wait for the gradients from other ranks; those from own rows are complete."""
        if self._gates.arrivals[layer].wait(interval, epoch):
            self._put_backward(layer, interval, epoch)

    def _put_backward(self, layer: int, interval: int, epoch: int) -> None:
        sends, aggregate = self.intervals.sends[interval], self.rows.aggregates[layer]
        if sends and aggregate.sent:
            rows = self.intervals.rows[interval]
            added = torch.zeros(rows.stop - rows.start, aggregate.sent, dtype=aggregate.grad_src.dtype)
            for send in sends:  # in the order of ranks
                added[send.index - rows.start] += self._received_grads[layer, send.peer][send.place]
            aggregate.grad_src[rows, : aggregate.sent] += added
        self._put(interval, layer, epoch, back=True)

    def _await_return(self, layer: int, peer: int) -> None:
        epoch = self._returned_epoch[layer, peer] + 1
        if epoch <= self._last and self._gates.to_peers[layer].wait(self._gates.peers.index(peer), epoch):
            self._schedule_return(layer, self._gates.peers.index(peer))

    def _schedule_return(self, layer: int, place: int) -> None:
        peer = self._gates.peers[place]
        epoch = self._returned_epoch[layer, peer] + 1
        self._push_graph_work("give back", layer, peer, epoch, self._return_grads)

    def _return_grads(self, layer: int, peer: int, epoch: int) -> None:
        """Send a peer the gradients of its rows."""
        rows = self.intervals.halo_of[peer]
        aggregate = self._aggregate(layer, 0, epoch)
        aggregate.backward(rows)
        message = Message(MessageKind.GRADS, epoch, layer)
        values = aggregate.grad_src[rows, : aggregate.sent].contiguous()
        wire = self._feedback.encode(f"{layer}.back.{peer}", values)
        self.comm.post(peer, message.tag, wire, label="halo")
        self._returned_epoch[layer, peer] = epoch
        if aggregate.collects:
            source = self.intervals.count + self._gates.peers.index(peer)
            self._schedule(
                "collect", layer, self._gates.collected[layer].advance(source, epoch), self._collect
            )
        self._await_return(layer, peer)

    def _send(self, message: Message, send: IntervalSend, rows: Tensor) -> None:
        aggregate = self.rows.aggregates[message.layer]
        if not aggregate.sent:
            return
        values = native.gather(rows, send.index)[:, : aggregate.sent].contiguous()
        wire = self._feedback.encode(f"{message.layer}.{message.interval}.{send.peer}", values)
        self.comm.post(send.peer, message.tag, wire, label="halo")

    def _on_message(self, peer: int, message: Message, values: Tensor) -> None:
        kind, epoch, layer, interval = message
        if kind == MessageKind.WAITING:
            return
        if kind == MessageKind.SHARE:
            self.parameters.receive_share(peer, epoch, values)
            return
        if kind == MessageKind.SUM:
            self.parameters.receive_sum(peer, epoch, values)
            return
        aggregate = self.rows.aggregates[layer]
        decoded = decode(values, self._feedback.precision, aggregate.sent, aggregate.z_src.dtype)
        if kind == MessageKind.ROWS:
            source, rows = self.intervals.halo[peer, interval]
            aggregate.z_src[rows, : aggregate.sent] = decoded
            aggregate.filled(rows)
            self._schedule("gather", layer, self._gates.rows[layer].advance(source, epoch), self._gather)
            return
        self._received_grads[layer, peer].copy_(decoded)
        for each, its_epoch in self._gates.arrivals[layer].advance(peer, epoch):
            self._put_backward(layer, each, its_epoch)

    def _end_epoch(self, interval: int, epoch: int) -> None:
        self.parameters.complete(epoch, interval)
        if epoch < self._last:
            self._begin_epoch(interval, epoch + 1)
        else:
            self._num_ended += 1

    def _aggregate(self, layer: int, interval: int, epoch: int) -> Any:
        return self.rows.use(layer, epoch, partial(self.tasks.weights, self._version_of[interval]))

    def _push_graph_work(self, name: str, layer: int, interval: int, epoch: int, run: _GraphFn) -> None:
        way = layer if name == "gather" else 2 * self._layers - layer
        first = 0 if name == "give back" else 1
        order = self._order[interval] if first else interval
        heapq.heappush(
            self._graph_work, _GraphWork((epoch, way, first, order), name, layer, interval, epoch, run)
        )

    def _add_span(
        self, lane: str, name: str, epoch: int, interval: int, start: float, end: float | None = None
    ) -> None:
        ended = time.monotonic() if end is None else end
        self.trace.append(TraceSpan(lane, name, epoch, interval, start, ended - start))


def _sent_rows(intervals: Intervals) -> dict[int, int]:
    """Count the rows of this rank that each peer reads."""
    rows: dict[int, int] = {}
    for sends in intervals.sends:
        for send in sends:
            rows[send.peer] = rows.get(send.peer, 0) + send.index.numel()
    return rows


def _urgency_order(intervals: Intervals) -> list[int]:
    """Return each interval's place in the order of urgency: intervals that send the most rows come first."""
    sent = [-sum(each.index.numel() for each in sends) for sends in intervals.sends]
    order = sorted(range(intervals.count), key=lambda interval: (sent[interval], interval))
    place = [0] * intervals.count
    for number, interval in enumerate(order):
        place[interval] = number
    return place


def _task_name(key: Key) -> str:
    way = {Direction.FORWARD: "", Direction.BACKWARD: " back", Direction.LEARN: " learn"}
    return f"stage {key.stage}{way[key.direction]}"
