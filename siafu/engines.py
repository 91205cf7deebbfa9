"""The engines: each makes the ranks of a run and has every rank train its part (``siafu/rank.py``).

``LocalEngine`` uses threads of this process, ``ProcessEngine`` processes of this host, ``RayEngine`` workers of a Ray
cluster, ``TorchrunEngine`` the process group that torchrun started this process in.
"""

import copy
import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from siafu.comm import Comm
from siafu.config import Config
from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.inference import load_weights
from siafu.launch.recovery import CheckpointPosition
from siafu.partition.create import PartitionRequest, cut_in_memory, find_or_create
from siafu.partition.cut import Part, whole_part
from siafu.rank import RankJob, RankResult, train_in_group, train_rank, train_received_part
from siafu.recipes.plan import RacePlan
from siafu.run_folder import RunFolder
from siafu.store import is_dynamic, write_dynamic
from siafu.store_partitions import PARTS, partition_home
from siafu.training import inputs
from siafu.training.procedure import Callbacks

if TYPE_CHECKING:
    from siafu.launch.elastic import RankProcesses

_RANK_PROCESS = (sys.executable, "-m", "siafu.rank_process")
EVENT_STORE = "graph"  # the store, within the run's folder, of a dynamic graph that is in no other store


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One training of a run.

    Attributes:
        folder: the folder of the run.
        config: the resolved config.
        graph: the graph to train on, as the user gave it; its columns are encoded.
        module: the user's own module, or None.
        resumed: whether the run was started before.
        warnings: the warnings that the user was given.
        race: the race that chooses the config first; None where it is chosen.
    """

    folder: RunFolder
    config: Config
    graph: Graph | DynamicGraph
    module: nn.Module | None = None
    resumed: bool = False
    warnings: tuple[str, ...] = ()
    race: RacePlan | None = None

    def for_rank(self, parts: Path | None = None) -> RankJob:
        """Make the job of every rank; ``parts`` is the folder that rank 0 reads the parts from."""
        return RankJob(
            self.config,
            self.folder.config_checksum(),
            self.graph.num_events if isinstance(self.graph, DynamicGraph) else self.graph.num_edges,
            resumed=self.resumed,
            checkpointed=self.resumed and self.folder.checkpoint.is_file(),
            folder=self.folder.path.absolute(),
            parts=None if parts is None else parts.absolute(),
            race=self.race,
        )


class Engine(Protocol):
    """A way to make the ranks of a run."""

    def train(self, job: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Train to the end or until a stop is requested; returns the metrics, and the model if training has ended.

        Where the job has a race, run that instead, and return its result.
        """


@dataclass
class LocalEngine:
    """Ranks are threads of this process; a single rank is the calling thread."""

    _parts: Sequence[Part | DynamicGraph] = ()

    def train(self, job: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Train in this process; rank 0 trains the user's own module in place."""
        from siafu.launch.local import run_threads

        parts, rank_job, config = self._parts_of(job, callbacks), job.for_rank(), job.config
        modules = [job.module, *(copy.deepcopy(job.module) for _ in parts[1:])]

        def train_thread(comm: Comm) -> RankResult:
            first = comm.rank == 0
            return train_rank(
                comm,
                parts[comm.rank],
                rank_job,
                folder=job.folder if first else None,
                callbacks=callbacks if first else Callbacks(),
                module=modules[comm.rank],
            )

        deadline_s = config.comm.deadline
        return run_threads(train_thread, ranks=config.ranks, threads=config.threads, deadline_s=deadline_s)[0]

    def _parts_of(self, job: TrainingJob, callbacks: Callbacks) -> Sequence[Part | DynamicGraph]:
        """Cut the graph once for all seeds and the baseline; ranks share a dynamic graph as it is."""
        if not self._parts:
            if isinstance(job.graph, DynamicGraph):
                self._parts = [job.graph] * job.config.ranks
            elif job.config.ranks == 1:
                self._parts = [whole_part(inputs.prepare(job.graph, job.config.data))]
            else:
                self._parts = cut_in_memory(job.graph, partition_of(job.config), say=callbacks.say)
        return self._parts


@dataclass(frozen=True)
class ProcessEngine:
    """Ranks are processes of this host; if one is lost, all start again from the last checkpoint.

    Attributes:
        partitions: the folder of partitions.
        waiting: processes that were started before, for the first training; see :func:`start_early`.
    """

    partitions: Path
    waiting: "deque[RankProcesses]"

    def train(self, job: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Start the rank processes, follow their events, and read the metrics and weights that they leave."""
        from siafu.launch.recovery import run_with_restarts

        parts = _write_parts(job, self.partitions, callbacks)
        folder, config = job.folder, job.config
        folder.measured.unlink(missing_ok=True)
        arguments = [str(folder.path), str(parts), *["--resumed"] * job.resumed]
        first = self.waiting.popleft() if self.waiting else None
        if first is not None:
            first.send(arguments)
        follower = EventFollower(folder, callbacks, total=config.max_epochs)
        callbacks.on_training()
        run_with_restarts(
            [*_RANK_PROCESS, *arguments],
            ranks=config.ranks,
            threads=config.threads,
            progress=follower.safe,
            watch=lambda: follower.poll() is not None,
            say=callbacks.say,
            deadline_s=config.comm.deadline,
            first=first,
        )
        metrics = json.loads(folder.measured.read_text("utf-8"))
        folder.measured.unlink()
        if not metrics["finished"]:  # ranks get SIGTERM, whatever signal this process got
            metrics["stopped_by"] = callbacks.should_stop() or metrics["stopped_by"]
        return metrics, _trained_model(job, metrics)


@contextmanager
def start_early(config: Config) -> "Iterator[deque[RankProcesses]]":
    """Start the rank processes of a run's first training, if it has any: they import while this one reads the graph."""
    if config.engine != "processes":
        yield deque()
        return
    from siafu.launch.elastic import started_ranks

    processes = started_ranks(
        _RANK_PROCESS, ranks=config.ranks, threads=config.threads, deadline_s=config.comm.deadline
    )
    with processes as waiting:
        yield deque([waiting])


class EventFollower:
    """Reads the events that other processes write, and passes them on to callbacks.

    Those that are there already are passed over, unless it reads ``from_start``.
    """

    def __init__(
        self, folder: RunFolder, callbacks: Callbacks, *, total: int, from_start: bool = False
    ) -> None:
        self._path, self._callbacks, self._total = folder.events, callbacks, total
        self._offset = folder.events.stat().st_size if folder.events.is_file() and not from_start else 0
        self._safe = CheckpointPosition()

    def safe(self) -> CheckpointPosition:
        """Return the progress that the newest checkpoint holds, as far as events since the start tell."""
        self.poll()
        return self._safe

    def poll(self) -> str | None:
        """Pass new events on; returns a reason to stop, or None."""
        for event in self._new_events():
            match event["phase"]:
                case "checkpoint" | "resume":
                    self._safe = CheckpointPosition(event["epoch"], event.get("minibatch", 0))
                case "note" | "stage":
                    self._callbacks.say(event["text"])
                case "epoch":
                    figures: dict[str, Any] = {
                        key: event.get(key) for key in ("loss", "val_score", "seconds")
                    }
                    figures |= {name: event[name] for name in ("dollars", "value") if name in event}
                    self._callbacks.on_epoch(event["epoch"], self._total, **figures)
        return self._callbacks.should_stop()

    def _new_events(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines, _, _ = file.read().rpartition(b"\n")
        self._offset += len(lines) + 1 if lines else 0
        events = []
        for line in lines.splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue  # cut off by a kill
        return events


@dataclass(frozen=True)
class RayEngine:
    """Ranks are workers of Ray Train; the node of rank 0 must see the run's folder.

    Attributes:
        partitions: the folder of partitions.
    """

    partitions: Path

    def train(self, job: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Train on the cluster; if a worker is lost, Ray starts all again, from the last checkpoint."""
        from siafu.launch.ray import run_on_ray

        parts = _write_parts(job, self.partitions, callbacks)
        folder, config = job.folder, job.config
        train_worker = partial(
            train_in_group, folder=folder.path.absolute(), parts=parts.absolute(), resumed=job.resumed
        )
        metrics = run_on_ray(
            train_worker,
            ranks=config.ranks,
            threads=config.threads,
            deadline_s=config.comm.deadline,
            settings=folder.config_checksum(),
            encrypt=config.comm.encrypt,
        )[0]
        return metrics, _trained_model(job, metrics)


@dataclass(frozen=True)
class TorchrunEngine:
    """Ranks are the process group that torchrun started; this process is rank 0.

    The other ranks are in :func:`siafu.rank.follow_rank_0`.

    Attributes:
        comm: the group.
        partitions: the folder of partitions.
    """

    comm: Comm
    partitions: Path

    def train(self, job: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Broadcast the job and train as rank 0. Collective."""
        rank_job = job.for_rank(_write_parts(job, self.partitions, callbacks))
        self.comm.broadcast_text(rank_job.to_json(), label="control")
        return train_received_part(
            self.comm, rank_job, folder=job.folder, callbacks=callbacks, module=job.module
        )


def _trained_model(job: TrainingJob, metrics: dict[str, Any]) -> nn.Module | None:
    """Load the model that other processes trained; None where they were stopped, or ran a race."""
    done = metrics["finished"] and job.race is None
    return load_weights(job.folder, job.config, None) if done else None


def _write_parts(job: TrainingJob, partitions: Path, callbacks: Callbacks) -> Path:
    """Find or make the folder that ranks read their parts from; a dynamic graph is one store for all ranks."""
    graph, source = job.graph, job.config.source
    if isinstance(graph, Graph):
        wanted = partition_of(job.config)
        return find_or_create(partitions, graph, wanted, say=callbacks.say, progress=callbacks.progress).path
    if source and is_dynamic(source):
        return Path(source)
    path = job.folder.path / EVENT_STORE
    if not is_dynamic(path):
        write_dynamic(graph, path)
    return path


def partitions_folder(config: Config, folder: RunFolder) -> Path:
    """Return the folder of partitions: in the store that is trained on, or in the run's folder."""
    return partition_home(config.source, partition_of(config), otherwise=folder.path / PARTS)


def partition_of(config: Config) -> PartitionRequest:
    """Return the partition that a run needs."""
    data = config.data
    return PartitionRequest(
        config.ranks, config.partition.by, data.fold, data.reorder == "on", config.fingerprint
    )
