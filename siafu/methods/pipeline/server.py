"""A graph server: the pipeline's tasks of one rank, run as soon as what they read is there.

One thread does the graph work and keeps all books. Whatever comes from elsewhere, results of workers, rows of other
ranks, their end, is put into one queue; the thread takes from it, and where nothing can be done it waits there.
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
from siafu.methods.pipeline.interval_gates import Gates
from siafu.methods.pipeline.intervals import Intervals, Sent
from siafu.methods.pipeline.parameters import Parameters
from siafu.methods.pipeline.peer_messages import Kind, Message
from siafu.methods.pipeline.peer_watcher import Watcher
from siafu.methods.pipeline.rows import KeptRows
from siafu.methods.pipeline.staleness_gate import Gate
from siafu.workers.autoscaling import Seen
from siafu.workers.stages import reads_static
from siafu.workers.task import Direction, Key, Task
from siafu.workers.task_queue import Done, Tasks

PATIENCE_S = 5.0  # in which something is expected to happen
BATCH_S = 0.001  # for which graph work may go on before tasks that are ready are handed over
MANY = 100  # intervals; with so many, what comes within that time is waited for and handled at once
_Work = Callable[[int, int, int], None]  # of a layer, an interval and an epoch
GRAPH_LANE = "graph"  # the lane of the rank's own thread


class Traced(NamedTuple):
    """A piece of work that was done.

    Attributes:
        lane: who did it.
        name: what was done.
        epoch, interval: of what; for what is given back to another rank, that rank.
        start_s: by ``time.monotonic``.
        seconds: how long it took.
    """

    lane: str
    name: str
    epoch: int
    interval: int
    start_s: float
    seconds: float


class _Graph(NamedTuple):
    """A piece of graph work that may be done now. The lowest comes first; no two are of one name, layer, and so on."""

    priority: tuple[int, ...]
    name: str
    layer: int
    interval: int
    epoch: int
    run: _Work


class GraphServer:
    """The tasks of one rank, epoch after epoch.

    ``first`` is the first epoch there will be rows of. ``inline`` runs a tensor task in this thread, where nobody else
    does; None where workers do. ``stalled`` is called where nothing happens for a while. All work in epochs up to
    ``trace_until`` is noted in ``trace``.
    """

    def __init__(
        self,
        comm: Comm,
        intervals: Intervals,
        rows: KeptRows,
        tasks: Tasks,
        *,
        first: int,
        staleness: int,
        feedback: ErrorFeedback,
        inline: Callable[[], bool] | None,
        stalled: Callable[[], None] = lambda: None,
    ) -> None:
        self.comm, self.intervals, self.rows, self.tasks = comm, intervals, rows, tasks
        self.setup, self.staleness, self._inline, self._feedback = rows.setup, staleness, inline, feedback
        self.parameters: Parameters  # set by who made both
        self.trace: list[Traced] = []
        self.trace_until = 0
        self.patience_s, self._stalled = PATIENCE_S, stalled
        self.inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._last = first - 1
        self._epoch_of = [first - 1] * intervals.count  # the epoch each interval is in, or has ended
        self._version_of = [0] * intervals.count  # of the weights that it reads
        self._waiting: list[int] = []  # intervals that wait for weights
        self._ended = 0  # intervals that have ended the last epoch
        self._published = [first - 1]  # versions of the weights that tasks may read
        self._graph: list[_Graph] = []
        self._ready: list[tuple[Task, tuple[int, ...]]] = []  # tasks that workers were not told of yet
        self._handed_s = 0.0  # when they were last told
        self._commits = 0
        self._backlog: list[int] = []  # tasks that waited, now and then
        self._gates = Gates(
            intervals, rows.aggregates, ranks=comm.world_size, staleness=staleness, first=first
        )
        self._arrived = {
            (layer, peer): torch.zeros(
                comm_rows, rows.aggregates[layer].sent, dtype=rows.aggregates[layer].z_src.dtype
            )
            for layer in rows.aggregates
            for peer, comm_rows in _sent_rows(intervals).items()
        }
        exchanging = [layer for layer, aggregate in rows.aggregates.items() if aggregate.sent]
        self._gave_back = {(layer, peer): first - 1 for layer in exchanging for peer in intervals.halo_of}
        self._order, self._layers = _critical(intervals), self.setup.num_aggregates

    def seen(self, workers: int) -> Seen:
        """What the queue of tasks looked like since this was last asked, with so many workers."""
        backlog, self._backlog = self._backlog or [0], []
        idle = max(0.0, workers - self.intervals.count) if max(backlog) == 0 else 0.0
        return Seen(workers, backlog[0], backlog[-1], idle)

    def deliver(self, done: Any) -> None:
        """A worker has done a task, or says why nobody can. From any thread."""
        self.inbox.put(("done", done))

    def arrived(self, peer: int, tag: int, values: Tensor) -> None:
        """Another rank has posted something. From any thread."""
        self.inbox.put(("post", peer, Message.of(tag), values))

    def run(self, last: int) -> None:
        """Train up to and with an epoch. Collective."""
        peers = [peer for peer in range(self.comm.world_size) if peer != self.comm.rank]
        self._last, self._ended = last, 0
        watcher = Watcher(self.comm, peers, self.inbox)
        for interval in range(self.intervals.count):
            self._begin(interval, self._epoch_of[interval] + 1)
        for layer, peer in self._gave_back:
            self._wait_to_give_back(layer, peer)
        while not self._all_done():
            self._turn()
        for peer in peers:
            self.comm.send(peer, torch.zeros(1), label="pipeline end")
        while not watcher.ended:
            self._handle(self.inbox.get())

    def _turn(self) -> None:
        """Take note of what came, then do one thing, or wait for something to come."""
        while not self.inbox.empty():
            self._handle(self.inbox.get())
        start = time.monotonic()
        if self._ready and (not self._graph or start - self._handed_s >= BATCH_S):
            self._hand_over(start)
        if self._graph:
            work = heapq.heappop(self._graph)
            work.run(work.layer, work.interval, work.epoch)
            if work.epoch <= self.trace_until:
                self._note(GRAPH_LANE, f"{work.name} {work.layer}", work.epoch, work.interval, start)
        elif self._all_done() or (self._inline is not None and self._inline()):
            return
        else:
            self._wait()

    def _hand_over(self, now_s: float) -> None:
        """Let workers have the tasks that are ready: many at once, because each time wakes a thread."""
        ready, self._ready, self._handed_s = self._ready, [], now_s
        self.tasks.put_all(ready)

    def _wait(self) -> None:
        """Wait for something to come. Where nothing does, have somebody look after workers, and tell the others."""
        try:
            self._handle(self.inbox.get(timeout=self.patience_s))
            if self.intervals.count >= MANY:
                time.sleep(BATCH_S)  # waking up for each of thousands of tasks takes longer than handling it
        except Empty:
            self._stalled()
            for peer in range(self.comm.world_size):
                if peer != self.comm.rank:
                    self.comm.post(peer, Message(Kind.WAITING, 0).tag, torch.zeros(1), label="control")

    def _handle(self, item: tuple[Any, ...]) -> None:
        match item:
            case ("done", Done() as done):
                self._commit(done)
            case ("done", failed):
                raise RuntimeError(str(failed))
            case ("post", peer, message, values):
                self._receive(peer, message, values)
            case ("lost", error):
                raise error
            case ("end",):
                pass

    def _all_done(self) -> bool:
        return (
            self._ended == self.intervals.count
            and self.parameters.version >= self._last
            and all(epoch >= self._last for epoch in self._gave_back.values())
        )

    def _begin(self, interval: int, epoch: int) -> None:
        """Start an interval's epoch, once the weights are new enough; which they are is kept for its way back."""
        if self.parameters.version < epoch - 1 - self.staleness:
            self._waiting.append(interval)
            return
        self._epoch_of[interval], self._version_of[interval] = epoch, self.parameters.version
        self._put(interval, self.setup.kept, epoch)

    def renewed(self, version: int) -> None:
        """There is a new version of the weights."""
        self.tasks.publish(version, self.parameters.weights())
        self._published.append(version)
        oldest = min([*self._version_of, version - self.staleness])
        while self._published[0] < oldest:
            self.tasks.retire(self._published.pop(0))
        waiting, self._waiting = self._waiting, []
        for interval in waiting:
            self._begin(interval, self._epoch_of[interval] + 1)

    def _put(self, interval: int, stage: int, epoch: int, *, back: bool = False) -> None:
        """Have a worker do a stage."""
        direction = Direction.LEARN if stage == self._layers else Direction.FORWARD
        key = Key(epoch, stage, Direction.BACKWARD if back else direction, interval)
        arrays = self.rows.inputs(key, self.intervals.rows[interval])
        way = 2 * self._layers - stage if back else stage
        task = Task(key, self._version_of[interval], arrays)
        self._ready.append((task, (epoch, way, self._order[interval])))

    def _commit(self, done: Done) -> None:
        key, result, rows = done.task.key, done.result, self.intervals.rows[done.task.key.interval]
        epoch, stage, direction, interval = key
        if epoch <= self.trace_until:
            self._note(done.worker, _named(key), epoch, interval, done.began_s, done.ended_s)
        self._commits += 1
        if self._commits % self.intervals.count == 0:
            self._backlog.append(self.tasks.backlog)
        loss = float(result.arrays["loss"][0]) if direction == Direction.LEARN else 0.0
        self.rows.commit(key, rows, result)
        result.spent()
        if direction == Direction.FORWARD:
            self._scatter(stage, interval, epoch)
            return
        self.parameters.add(epoch, interval, result.grads, loss=loss)
        if reads_static(self.setup, stage):
            self._end(interval, epoch)
        else:
            self._scatter_back(stage - 1, interval, epoch)

    def _scatter(self, layer: int, interval: int, epoch: int) -> None:
        """An interval has new rows: send them to who reads them, and aggregate where all is there."""
        for sent in self.intervals.sends[interval]:
            self._send(Message(Kind.ROWS, epoch, layer, interval), sent, self.rows.aggregates[layer].z_src)
        self._let("gather", layer, self._through(self._gates.rows[layer], interval, epoch), self._gather)

    @staticmethod
    def _through(gate: Gate, interval: int, epoch: int) -> list[tuple[int, int]]:
        """An interval brings something to a gate and waits there itself; returns those who may go on."""
        passed = gate.advance(interval, epoch)
        return [*passed, (interval, epoch)] if gate.wait(interval, epoch) else passed

    def _let(self, name: str, layer: int, passed: list[tuple[int, int]], run: _Work) -> None:
        """Have graph work done for those who may go on."""
        for interval, epoch in passed:
            self._push(name, layer, interval, epoch, run)

    def _gather(self, layer: int, interval: int, epoch: int) -> None:
        self._use(layer, interval, epoch).forward(self.intervals.rows[interval])
        self._put(interval, layer + 1, epoch)

    def _scatter_back(self, layer: int, interval: int, epoch: int) -> None:
        """An interval has new gradients of an aggregate."""
        rows = self.intervals.rows[interval]
        grads = self._use(layer, interval, epoch).grad_filled(rows, again=self.staleness > 0)
        if grads:
            names = self.rows.edge_weights[layer]
            named = {name: grad.numpy() for name, grad in zip(names, grads, strict=True)}
            self.parameters.add(epoch, interval, named)
        passed = self._through(self._gates.grads[layer], interval, epoch)
        self._let("gather back", layer, passed, self._gather_back)
        for peer, _ in self._gates.to_peers[layer].advance(interval, epoch):
            self._let_give_back(layer, peer)

    def _gather_back(self, layer: int, interval: int, epoch: int) -> None:
        aggregate = self._use(layer, interval, epoch)
        aggregate.backward(self.intervals.rows[interval])
        if not aggregate.collects:
            self._meet_arrivals(layer, interval, epoch)
            return
        passed = self._through(self._gates.collected[layer], interval, epoch)
        self._let("collect", layer, passed, self._collect)

    def _collect(self, layer: int, interval: int, epoch: int) -> None:
        self._use(layer, interval, epoch).collect(self.intervals.rows[interval])
        self._meet_arrivals(layer, interval, epoch)

    def _meet_arrivals(self, layer: int, interval: int, epoch: int) -> None:
        """The gradients from own rows are there; those from other ranks are waited for."""
        if self._gates.arrivals[layer].wait(interval, epoch):
            self._go_back(layer, interval, epoch)

    def _go_back(self, layer: int, interval: int, epoch: int) -> None:
        sends, aggregate = self.intervals.sends[interval], self.rows.aggregates[layer]
        if sends and aggregate.sent:
            rows = self.intervals.rows[interval]
            added = torch.zeros(rows.stop - rows.start, aggregate.sent, dtype=aggregate.grad_src.dtype)
            for sent in sends:  # in the order of ranks
                added[sent.index - rows.start] += self._arrived[layer, sent.peer][sent.place]
            aggregate.grad_src[rows, : aggregate.sent] += added
        self._put(interval, layer, epoch, back=True)

    def _wait_to_give_back(self, layer: int, peer: int) -> None:
        epoch = self._gave_back[layer, peer] + 1
        if epoch <= self._last and self._gates.to_peers[layer].wait(self._gates.peers.index(peer), epoch):
            self._let_give_back(layer, self._gates.peers.index(peer))

    def _let_give_back(self, layer: int, place: int) -> None:
        peer = self._gates.peers[place]
        epoch = self._gave_back[layer, peer] + 1
        self._push("give back", layer, peer, epoch, self._give_back)

    def _give_back(self, layer: int, peer: int, epoch: int) -> None:
        """Tell a peer the gradients of its rows."""
        rows = self.intervals.halo_of[peer]
        aggregate = self._use(layer, 0, epoch)
        aggregate.backward(rows)
        message = Message(Kind.GRADS, epoch, layer)
        values = aggregate.grad_src[rows, : aggregate.sent].contiguous()
        wire = self._feedback.encode(f"{layer}.back.{peer}", values)
        self.comm.post(peer, message.tag, wire, label="halo")
        self._gave_back[layer, peer] = epoch
        if aggregate.collects:
            source = self.intervals.count + self._gates.peers.index(peer)
            self._let("collect", layer, self._gates.collected[layer].advance(source, epoch), self._collect)
        self._wait_to_give_back(layer, peer)

    def _send(self, message: Message, sent: Sent, rows: Tensor) -> None:
        aggregate = self.rows.aggregates[message.layer]
        if not aggregate.sent:
            return
        values = native.gather(rows, sent.index)[:, : aggregate.sent].contiguous()
        wire = self._feedback.encode(f"{message.layer}.{message.interval}.{sent.peer}", values)
        self.comm.post(sent.peer, message.tag, wire, label="halo")

    def _receive(self, peer: int, message: Message, values: Tensor) -> None:
        kind, epoch, layer, interval = message
        if kind == Kind.WAITING:
            return
        if kind == Kind.SHARE:
            self.parameters.shared(peer, epoch, values)
            return
        if kind == Kind.SUM:
            self.parameters.summed(peer, epoch, values)
            return
        aggregate = self.rows.aggregates[layer]
        came = decode(values, self._feedback.precision, aggregate.sent, aggregate.z_src.dtype)
        if kind == Kind.ROWS:
            source, rows = self.intervals.halo[peer, interval]
            aggregate.z_src[rows, : aggregate.sent] = came
            aggregate.filled(rows)
            self._let("gather", layer, self._gates.rows[layer].advance(source, epoch), self._gather)
            return
        self._arrived[layer, peer].copy_(came)
        for each, its_epoch in self._gates.arrivals[layer].advance(peer, epoch):
            self._go_back(layer, each, its_epoch)

    def _end(self, interval: int, epoch: int) -> None:
        self.parameters.complete(epoch, interval)
        if epoch < self._last:
            self._begin(interval, epoch + 1)
        else:
            self._ended += 1

    def _use(self, layer: int, interval: int, epoch: int) -> Any:
        return self.rows.use(layer, epoch, partial(self.tasks.weights, self._version_of[interval]))

    def _push(self, name: str, layer: int, interval: int, epoch: int, run: _Work) -> None:
        way = layer if name == "gather" else 2 * self._layers - layer
        first = 0 if name == "give back" else 1
        order = self._order[interval] if first else interval
        heapq.heappush(self._graph, _Graph((epoch, way, first, order), name, layer, interval, epoch, run))

    def _note(
        self, lane: str, name: str, epoch: int, interval: int, start: float, end: float | None = None
    ) -> None:
        ended = time.monotonic() if end is None else end
        self.trace.append(Traced(lane, name, epoch, interval, start, ended - start))


def _sent_rows(intervals: Intervals) -> dict[int, int]:
    """How many rows each peer reads of this rank."""
    rows: dict[int, int] = {}
    for sends in intervals.sends:
        for sent in sends:
            rows[sent.peer] = rows.get(sent.peer, 0) + sent.index.numel()
    return rows


def _critical(intervals: Intervals) -> list[int]:
    """The place of each interval in the order in which they are best done: those that others wait for come first."""
    sent = [-sum(each.index.numel() for each in sends) for sends in intervals.sends]
    order = sorted(range(intervals.count), key=lambda interval: (sent[interval], interval))
    place = [0] * intervals.count
    for number, interval in enumerate(order):
        place[interval] = number
    return place


def _named(key: Key) -> str:
    way = {Direction.FORWARD: "", Direction.BACKWARD: " back", Direction.LEARN: " learn"}
    return f"stage {key.stage}{way[key.direction]}"
