"""A discrete-event simulation of the pipeline: replays measured tasks on leases that are not rented.

One server runs graph tasks one at a time, leases run tensor tasks, and rows are sent between them at given rates. The
simulation gives the time of an epoch and the billed time of the leases. It runs no task.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class GraphTask(NamedTuple):
    """Graph work of one interval in one phase, in seconds on the server."""

    phase: int
    interval: int
    seconds: float


class TensorTask(NamedTuple):
    """Tensor work of one interval in one phase: seconds of computing, and the bytes sent to and from the lease."""

    phase: int
    interval: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Fleet:
    """The leases that run tensor tasks.

    Attributes:
        leases: their number; with 0 the server runs the tensor tasks itself, one at a time, between graph tasks.
        bytes_per_s: of one lease's connection.
        latency_s: of each task, beside the time for its bytes.
        speed: of a lease, relative to the machine on which the seconds were measured.
        server_bytes_per_s: of the server's connection, which all leases share, one task after the other.
    """

    leases: int
    bytes_per_s: float = math.inf
    latency_s: float = 0.0
    speed: float = 1.0
    server_bytes_per_s: float = math.inf


class ReplayTimes(NamedTuple):
    """The times of a replay.

    Attributes:
        seconds: until the last task ended.
        lease_seconds: billed seconds: of every lease from beginning to end, busy or idle.
        busy_lease_seconds: the part of these with a task.
        server_seconds: in which the server had a task.
    """

    seconds: float
    lease_seconds: float
    busy_lease_seconds: float
    server_seconds: float


def replay(
    graph: Iterable[GraphTask], tensor: Iterable[TensorTask], fleet: Fleet, *, staleness: int
) -> ReplayTimes:
    """Replay all phases, in the order of their numbers, as early as possible.

    A tensor task starts when the graph task of its interval and phase has ended and a lease is free. A graph task
    starts when the server is free and the tasks of the phase before have ended: all of them with ``staleness`` 0, else
    those of its interval. Of several tasks that can start, that of the earliest phase and interval does. Overlapping
    epochs are replayed as one long list of phases.
    """
    return _Replay(_jobs(graph, tensor), fleet, synchronous=staleness == 0).run()


class _Job(NamedTuple):
    """The work of one interval in one phase: graph work, then tensor work; either may be None."""

    graph: GraphTask | None
    tensor: TensorTask | None


def _jobs(graph: Iterable[GraphTask], tensor: Iterable[TensorTask]) -> list[dict[int, _Job]]:
    """Return the job of each interval, for each phase."""
    graphs = {(task.phase, task.interval): task for task in graph}
    tensors = {(task.phase, task.interval): task for task in tensor}
    keys = {*graphs, *tensors}
    phases, intervals = sorted({phase for phase, _ in keys}), sorted({interval for _, interval in keys})
    return [
        {
            interval: _Job(graphs.get((phase, interval)), tensors.get((phase, interval)))
            for interval in intervals
        }
        for phase in phases
    ]


_GRAPH, _TENSOR = 0, 1  # places in a job
_Key = tuple[int, int]  # phase, interval


class _Replay:
    """The state of one replay."""

    def __init__(self, jobs: Sequence[dict[int, _Job]], fleet: Fleet, *, synchronous: bool) -> None:
        self._jobs = jobs
        self._fleet = fleet
        self._synchronous = synchronous
        self._left = [len(phase) for phase in jobs]
        self._for_server: list[tuple[int, int, int]] = []  # phase, interval, kind
        self._for_leases: list[_Key] = []
        self._ends: list[tuple[float, int, int, int]] = []  # when, kind, phase, interval
        self._free = fleet.leases
        self._server_free = True
        self._wire_free_s = 0.0
        self._busy_s = self._server_s = 0.0

    def run(self) -> ReplayTimes:
        """Replay from the first phase to the end of the last task."""
        now = 0.0
        if self._jobs:
            self._offer_phase(0)
        while True:
            self._start_server(now)
            self._start_leases(now)
            if not self._ends:
                assert not any(self._left)
                return ReplayTimes(now, self._fleet.leases * now, self._busy_s, self._server_s)
            now, kind, phase, interval = heapq.heappop(self._ends)
            self._end(kind, phase, interval)
            while (
                self._ends and self._ends[0][0] == now
            ):  # tasks that end together free their places together
                self._end(*heapq.heappop(self._ends)[1:])

    def _offer_phase(self, phase: int) -> None:
        for interval in self._jobs[phase]:
            self._offer(phase, interval)

    def _offer(self, phase: int, interval: int) -> None:
        """Let an interval enter a phase."""
        if self._jobs[phase][interval].graph is None:
            self._after_graph(phase, interval)
        else:
            heapq.heappush(self._for_server, (phase, interval, _GRAPH))

    def _start_server(self, now: float) -> None:
        if self._server_free and self._for_server:
            phase, interval, kind = heapq.heappop(self._for_server)
            task = self._jobs[phase][interval][kind]
            assert task is not None
            self._server_free = False
            self._server_s += task.seconds
            heapq.heappush(self._ends, (now + task.seconds, kind, phase, interval))

    def _start_leases(self, now: float) -> None:
        while self._free and self._for_leases:
            phase, interval = heapq.heappop(self._for_leases)
            task = self._jobs[phase][interval].tensor
            assert task is not None
            seconds = self._send_s(now, task.bytes) + self._fleet.latency_s + task.seconds / self._fleet.speed
            self._free -= 1
            self._busy_s += seconds
            heapq.heappush(self._ends, (now + seconds, _TENSOR, phase, interval))

    def _send_s(self, now: float, count: int) -> float:
        """Return the seconds to send bytes after earlier ones, at the rate of the slower connection."""
        self._wire_free_s = max(self._wire_free_s, now) + count / self._fleet.server_bytes_per_s
        return max(count / self._fleet.bytes_per_s, self._wire_free_s - now)

    def _end(self, kind: int, phase: int, interval: int) -> None:
        if kind == _GRAPH or not self._fleet.leases:
            self._server_free = True
        else:
            self._free += 1
        if kind == _GRAPH:
            self._after_graph(phase, interval)
        else:
            self._after_phase(phase, interval)

    def _after_graph(self, phase: int, interval: int) -> None:
        if self._jobs[phase][interval].tensor is None:
            self._after_phase(phase, interval)
        elif self._fleet.leases:
            heapq.heappush(self._for_leases, (phase, interval))
        else:
            heapq.heappush(self._for_server, (phase, interval, _TENSOR))

    def _after_phase(self, phase: int, interval: int) -> None:
        """End an interval's phase, and let intervals enter the next one."""
        self._left[phase] -= 1
        after = phase + 1
        if after == len(self._jobs):
            return
        if not self._synchronous:
            self._offer(after, interval)
        elif not self._left[phase]:
            self._offer_phase(after)
