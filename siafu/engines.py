"""How the ranks of a run are had: threads of this process, processes of this host, a group this process is one of."""

import copy
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from siafu.checksums import checksum
from siafu.comm import Comm
from siafu.config import Config, parse_toml
from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.inference.trained_run import load_weights
from siafu.launch.recovery import CheckpointPosition
from siafu.methods import METHODS
from siafu.partition.create import PartitionRequest, cut_in_memory, find_or_create
from siafu.partition.cut import Part, whole_part
from siafu.partition.parts import open_partition
from siafu.rank import RankJob, train_rank
from siafu.run_folder import RunFolder
from siafu.store import is_dynamic, open_dynamic, write_dynamic
from siafu.store_partitions import PARTS, partition_home
from siafu.training import inputs
from siafu.training.procedure import Callbacks

RankResult = tuple[dict[str, Any], nn.Module | None]
LOG = "graph"  # of a run on a graph that changes and is in no store


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """One training of a run, as its composer hands it to the ranks.

    Attributes:
        folder: of the run.
        tree: its settings.
        graph: what it trains on, as the user gave it.
        module: a module of the user's own, or None.
        resumed: whether it was started before.
        warnings: what the user was warned of.
    """

    folder: RunFolder
    tree: Config
    graph: Graph | DynamicGraph
    module: nn.Module | None = None
    resumed: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def job(self) -> RankJob:
        """The job of every rank."""
        return RankJob(
            self.tree,
            self.folder.config_checksum(),
            _num_edges(self.graph),
            resumed=self.resumed,
            checkpointed=self.resumed and self.folder.checkpoint.is_file(),
            folder=self.folder.path,
        )


def _num_edges(graph: Graph | DynamicGraph) -> int:
    return graph.num_events if isinstance(graph, DynamicGraph) else graph.num_edges


class Engine(Protocol):
    """Those who carry out the work."""

    def train(self, work: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Train to the end, or to where somebody stops it; the model is there if it was the end."""


@dataclass
class LocalEngine:
    """A rank a thread of this process; a single one is the calling thread."""

    _parts: Sequence[Part | DynamicGraph] = ()

    def train(self, work: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Train here; the user's own module is trained in place on rank 0."""
        from siafu.launch.local import run_threads

        parts, job, tree = self._parts_of(work, callbacks), work.job, work.tree
        modules = [work.module, *(copy.deepcopy(work.module) for _ in parts[1:])]

        def rank(comm: Comm) -> RankResult:
            first = comm.rank == 0
            return train_rank(
                comm,
                parts[comm.rank],
                job,
                folder=work.folder if first else None,
                callbacks=callbacks if first else Callbacks(),
                module=modules[comm.rank],
            )

        found = run_threads(rank, ranks=tree.ranks, threads=tree.threads, deadline_s=tree.comm.deadline)
        return found[0]

    def _parts_of(self, work: TrainingJob, callbacks: Callbacks) -> Sequence[Part | DynamicGraph]:
        """The parts, the same for all seeds and for the baseline; a graph that changes is shared as it is."""
        if not self._parts:
            if isinstance(work.graph, DynamicGraph):
                self._parts = [work.graph] * work.tree.ranks
            elif work.tree.ranks == 1:
                self._parts = [whole_part(inputs.prepare(work.graph, work.tree.data))]
            else:
                self._parts = cut_in_memory(work.graph, wanted(work.tree), say=callbacks.say)
        return self._parts


@dataclass(frozen=True)
class ProcessEngine:
    """A rank a process of this host; where one is lost, all start again from the last checkpoint.

    Attributes:
        home: the folder of partitions.
    """

    home: Path

    def train(self, work: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Train there."""
        from siafu.launch.recovery import run_with_restarts

        parts = _laid_out(work, self.home, callbacks)
        folder, tree = work.folder, work.tree
        folder.measured.unlink(missing_ok=True)
        command = [sys.executable, "-m", "siafu.rank_process", str(folder.path), str(parts)]
        if work.resumed:
            command.append("--resumed")
        followed = EventFollower(folder, callbacks, total=tree.max_epochs)
        callbacks.on_training()
        run_with_restarts(
            command,
            ranks=tree.ranks,
            threads=tree.threads,
            progress=followed.safe,
            watch=lambda: followed.look() is not None,
            say=callbacks.say,
            deadline_s=tree.comm.deadline,
        )
        found = json.loads(folder.measured.read_text("utf-8"))
        folder.measured.unlink()
        if not found["finished"]:  # ranks are told by SIGTERM, whatever this process was told by
            found["stopped_by"] = callbacks.should_stop() or found["stopped_by"]
        return found, load_weights(folder, tree, None) if found["finished"] else None


class EventFollower:
    """A run that other processes write: its events tell how far it is."""

    def __init__(self, folder: RunFolder, callbacks: Callbacks, *, total: int) -> None:
        self._path, self._callbacks, self._total = folder.events, callbacks, total
        self._read, self._safe = (
            folder.events.stat().st_size if folder.events.is_file() else 0,
            CheckpointPosition(),
        )

    def safe(self) -> CheckpointPosition:
        """What the last checkpoint holds, as far as it was told since the run is followed."""
        self.look()
        return self._safe

    def look(self) -> str | None:
        """Tell of new epochs; returns a reason to stop, if there is one."""
        for event in self._new():
            match event["phase"]:
                case "checkpoint" | "resume":
                    self._safe = CheckpointPosition(event["epoch"], event.get("minibatch", 0))
                case "note" | "stage":
                    self._callbacks.say(event["text"])
                case "epoch":
                    told: dict[str, Any] = {key: event.get(key) for key in ("loss", "val_score", "seconds")}
                    told |= {name: event[name] for name in ("dollars", "value") if name in event}
                    self._callbacks.on_epoch(event["epoch"], self._total, **told)
        return self._callbacks.should_stop()

    def _new(self) -> list[dict[str, Any]]:
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines, _, _ = file.read().rpartition(b"\n")
        self._read += len(lines) + 1 if lines else 0
        events = []
        for line in lines.splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue  # cut off by a kill
        return events


@dataclass(frozen=True)
class RayEngine:
    """A rank a worker of Ray Train; rank 0's node must see the run's folder.

    Attributes:
        home: the folder of partitions.
    """

    home: Path

    def train(self, work: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Train there; where a worker is lost, Ray starts all again, from the last checkpoint."""
        from siafu.launch.ray import run_on_ray

        parts = _laid_out(work, self.home, callbacks)
        folder, tree = work.folder, work.tree
        program = partial(
            take_part, folder=folder.path.absolute(), parts=parts.absolute(), resumed=work.resumed
        )
        found = run_on_ray(
            program,
            ranks=tree.ranks,
            threads=tree.threads,
            deadline_s=tree.comm.deadline,
            settings=folder.config_checksum(),
            encrypt=tree.comm.encrypt,
        )[0]
        return found, load_weights(folder, tree, None) if found["finished"] else None


@dataclass(frozen=True)
class TorchrunEngine:
    """A group that somebody else started, of which this process is rank 0; the others :func:`follow`.

    Attributes:
        comm: the group.
        home: the folder of partitions.
    """

    comm: Comm
    home: Path

    def train(self, work: TrainingJob, callbacks: Callbacks) -> RankResult:
        """Tell the others, and train with them."""
        parts = _laid_out(work, self.home, callbacks)
        order = _order(work.folder, parts, resumed=work.resumed)
        self.comm.broadcast_text(json.dumps(order), label="control")
        return _obey(self.comm, order, work.folder, callbacks, work.module)


def dismiss(comm: Comm, metrics: dict[str, Any]) -> None:
    """Tell those who follow that there is no more to do, and what came of it all."""
    comm.broadcast_text(json.dumps({"metrics": metrics}), label="control")


def follow(comm: Comm, callbacks: Callbacks, module: nn.Module | None = None) -> RankResult:
    """Do what rank 0 says until it says what came of it all; the model is that of the run itself. Collective."""
    models: dict[str, nn.Module | None] = {}
    while "metrics" not in (order := json.loads(comm.broadcast_text(None, label="control"))):
        models[order["folder"]] = _obey(comm, order, None, callbacks, copy.deepcopy(module))[1]
    return order["metrics"], models.get(order["metrics"]["run"])


def take_part(
    comm: Comm,
    *,
    folder: Path,
    parts: Path,
    resumed: bool,
    should_stop: Callable[[], str | None] = lambda: None,
) -> dict[str, Any]:
    """Train as one rank of a run whose folder and partition rank 0 sees; returns what was measured. Collective."""
    here = RunFolder(folder) if comm.rank == 0 else None
    text = None if here is None else json.dumps(_order(here, parts, resumed=resumed or here.events.is_file()))
    order = json.loads(comm.broadcast_text(text, label="control"))
    return _obey(comm, order, here, Callbacks(should_stop=should_stop), None)[0]


def _order(folder: RunFolder, parts: Path, *, resumed: bool) -> dict[str, Any]:
    """What all ranks must know, as rank 0 sees it before anything is written."""
    config = folder.read_config()
    return {
        "config": config,
        "run": checksum(config),
        "edges": open_dynamic(parts).manifest.num_events
        if is_dynamic(parts)
        else open_partition(parts).num_edges,
        "resumed": resumed,
        "checkpointed": resumed and folder.checkpoint.is_file(),
        "parts": str(parts.absolute()),
        "folder": str(folder.path.absolute()),
    }


def _obey(
    comm: Comm,
    order: dict[str, Any],
    folder: RunFolder | None,
    callbacks: Callbacks,
    module: nn.Module | None,
) -> RankResult:
    """Train as rank 0 says. Collective."""
    facts = {key: order[key] for key in ("run", "edges", "resumed", "checkpointed")}
    job = RankJob(parse_toml(order["config"]), **facts, folder=Path(order["folder"]))
    part = METHODS[job.config.method].receive_part(comm, Path(order["parts"]), job.config)
    return train_rank(comm, part, job, folder=folder, callbacks=callbacks, module=module)


def _laid_out(work: TrainingJob, home: Path, callbacks: Callbacks) -> Path:
    """The folder that ranks read their parts from; of a graph that changes, its log as a whole."""
    graph, source = work.graph, work.tree.source
    if isinstance(graph, Graph):
        made = find_or_create(home, graph, wanted(work.tree), say=callbacks.say, progress=callbacks.progress)
        return made.path
    if source and is_dynamic(source):
        return Path(source)
    path = work.folder.path / LOG
    if not is_dynamic(path):
        write_dynamic(graph, path)
    return path


def partitions_folder(tree: Config, folder: RunFolder) -> Path:
    """Where the partition lies or is to lie: in the store that was cut, else in the run's folder."""
    return partition_home(tree.source, wanted(tree), otherwise=folder.path / PARTS)


def wanted(tree: Config) -> PartitionRequest:
    """The partition that a run needs."""
    data = tree.data
    return PartitionRequest(tree.ranks, tree.partition.by, data.fold, data.reorder == "on", tree.fingerprint)
