"""One rank of a run: it receives its part, builds its procedure and trains it; rank 0 writes the results.

Every engine calls a function of this file on each rank. Where the ranks are processes, rank 0 broadcasts the job first.
"""

import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter
from torch import nn

from siafu.comm import Comm
from siafu.comm.all_gather import all_gather_texts
from siafu.config import Config, parse_toml
from siafu.dynamic import DynamicGraph
from siafu.event_log import EventLog, NullEventLog
from siafu.files import make_folder
from siafu.graph import Graph
from siafu.inference.correct_and_smooth import choose_outputs
from siafu.inference.ensemble import build_ensemble
from siafu.machine import describe_machine, peak_rss_bytes
from siafu.methods import METHODS, RankContext, build_procedure
from siafu.partition.cut import Part
from siafu.partition.parts import open_partition
from siafu.race import Race
from siafu.recipes.plan import RacePlan
from siafu.recipes.race_folder import RaceFolder, pending_race
from siafu.results.trace import write_trace
from siafu.run_folder import RunFolder
from siafu.store import is_dynamic, open_dynamic
from siafu.store.tensors import save_tensors
from siafu.training.loop import ENDS, Loop
from siafu.training.procedure import Callbacks, Monitor, Procedure
from siafu.training.task import SPLITS

RankResult = tuple[dict[str, Any], nn.Module | None]  # the metrics, and the model if training has ended
ScoresBySplit = dict[str, dict[str, float | None]]
_CLASSIFICATION = ("class", "edge")  # kinds of task


@dataclass(frozen=True)
class RankJob:
    """The job of a rank; equal on all ranks.

    Attributes:
        config: the config of the run.
        run: the checksum of the config, which the checkpoint of the run carries.
        edges: the number of edges of the whole graph.
        resumed: whether the run was started before.
        checkpointed: whether rank 0 has a checkpoint to resume from.
        folder: the folder of the run, which some ranks cannot see; None where it is unknown.
        parts: the folder that rank 0 reads the parts of the graph from; None where ranks are given their part.
        same_ranks: whether the group that wrote the checkpoint had the same ranks.
        race: the race to run instead of a training; None where the config is chosen.
    """

    config: Config
    run: str
    edges: int
    resumed: bool = False
    checkpointed: bool = False
    folder: Path | None = None
    parts: Path | None = None
    same_ranks: bool = True
    race: RacePlan | None = None

    @classmethod
    def of_folder(cls, folder: RunFolder, parts: Path, *, resumed: bool) -> Self:
        """Make the job from the files of a run, before a rank writes to them."""
        dynamic = is_dynamic(parts)
        return cls(
            parse_toml(folder.read_config()),
            folder.config_checksum(),
            open_dynamic(parts).manifest.num_events if dynamic else open_partition(parts).num_edges,
            resumed=resumed,
            checkpointed=resumed and folder.checkpoint.is_file(),
            folder=folder.path.absolute(),
            parts=parts.absolute(),
            race=pending_race(folder),
        )

    def to_json(self) -> str:
        """Serialize the job."""
        return TypeAdapter(RankJob).dump_json(self).decode()

    @staticmethod
    def from_json(text: str) -> "RankJob":
        """Read a job that :meth:`to_json` wrote."""
        return TypeAdapter(RankJob).validate_json(text)


def train_in_group(
    comm: Comm,
    *,
    folder: Path,
    parts: Path,
    resumed: bool,
    should_stop: Callable[[], str | None] = lambda: None,
) -> dict[str, Any]:
    """Train as one rank of a group; rank 0 sees the run's folder and its parts. Returns the metrics. Collective."""
    if comm.rank:
        text = comm.broadcast_text(None, label="control")
        return train_received_part(
            comm, RankJob.from_json(text), callbacks=Callbacks(should_stop=should_stop)
        )[0]
    own = RunFolder(folder)
    job = RankJob.of_folder(own, parts, resumed=resumed or own.events.is_file())
    comm.broadcast_text(job.to_json(), label="control")
    return train_received_part(comm, job, folder=own, callbacks=Callbacks(should_stop=should_stop))[0]


def follow_rank_0(comm: Comm, callbacks: Callbacks, module: nn.Module | None = None) -> RankResult:
    """Train each job that rank 0 broadcasts, until it broadcasts the metrics of the run. Collective.

    The returned model is that of the run itself, not that of its baseline.
    """
    models: dict[str, nn.Module | None] = {}
    while True:
        text = comm.broadcast_text(None, label="control")
        if "metrics" in (message := json.loads(text)):
            return message["metrics"], models.get(message["folder"])
        job, own = RankJob.from_json(text), copy.deepcopy(module)
        models[str(job.folder)] = train_received_part(comm, job, callbacks=callbacks, module=own)[1]


def end_jobs(comm: Comm, metrics: dict[str, Any]) -> None:
    """Broadcast the metrics of the run to the ranks in :func:`follow_rank_0`, which then return."""
    folder = str(Path(metrics["run"]).absolute())
    comm.broadcast_text(json.dumps({"metrics": metrics, "folder": folder}), label="control")


def train_received_part(
    comm: Comm,
    job: RankJob,
    *,
    folder: RunFolder | None = None,
    callbacks: Callbacks,
    module: nn.Module | None = None,
) -> RankResult:
    """Receive this rank's part from rank 0 and train on it; see :func:`train_rank`. Collective."""
    assert job.parts is not None
    part = METHODS[job.config.method].receive_part(comm, job.parts, job.config)
    return train_rank(comm, part, job, folder=folder, callbacks=callbacks, module=module)


def train_rank(
    comm: Comm,
    part: Part | DynamicGraph,
    job: RankJob,
    *,
    folder: RunFolder | None,
    callbacks: Callbacks,
    module: nn.Module | None = None,
) -> RankResult:
    """Train to the end or until a stop is requested; returns the metrics, and the model if training has ended.

    ``folder`` is the folder of the run on rank 0, and None on other ranks. Collective.
    """
    with scratch_folder(job, folder) as scratch:
        if job.race is not None:
            return _run_race(comm, part, job, folder, callbacks, scratch), None
        rank = RankContext(comm, part, job.config, module, scratch)
        procedure = _build_procedure(rank, job.config, folder)
        loop = Loop(procedure, job.config.train, run=job.run)
        if job.checkpointed:
            loop.resume(None if folder is None else folder.checkpoint, same_ranks=job.same_ranks)
        with _event_log(folder) as events:
            _write_start(events, loop, part, job)
            if folder is not None:
                make_folder(folder.checkpoint.parent)
            callbacks.on_training()
            reason = loop.fit(Monitor(events, None if folder is None else folder.checkpoint, callbacks))
            metrics = _write_results(loop, rank, job.config, events, folder, finished=reason in ENDS)
    metrics |= {"finished": reason in ENDS, "stopped_by": reason}
    return metrics, procedure.model if metrics["finished"] else None


def _build_procedure(rank: RankContext, config: Config, folder: RunFolder | None) -> Procedure:
    """Build what trains the model, or what scores an ensemble whose members are trained. Collective."""
    if config.train.ensemble > 1:
        return build_ensemble(rank, config, folder)
    return build_procedure(rank)


def _run_race(
    comm: Comm,
    part: Part | DynamicGraph,
    job: RankJob,
    folder: RunFolder | None,
    callbacks: Callbacks,
    scratch: Path,
) -> dict[str, Any]:
    """Run the race of a job; returns its result. Collective."""
    assert job.race is not None
    race = Race(
        comm,
        job.race,
        lambda config: RankContext(comm, part, config, None, scratch),
        None if folder is None else RaceFolder(folder),
        callbacks,
        lambda events, loop, config: _write_start(
            events, loop, part, replace(job, config=config, resumed=False)
        ),
    )
    callbacks.on_training()
    return race.run()


@contextmanager
def scratch_folder(job: RankJob, folder: RunFolder | None) -> Iterator[Path]:
    """Give the run's folder if this rank sees it, else a temporary folder that only this user can enter."""
    if folder is not None:
        yield folder.path
    elif job.folder is not None and _is_of_run(job.folder, job.run):
        yield job.folder
    else:
        with tempfile.TemporaryDirectory(prefix="siafu-run-") as private:
            yield Path(private)


def _is_of_run(path: Path, run: str) -> bool:
    """Check that a folder holds this run and belongs to this user: another host may have one of the same name."""
    try:
        return path.stat().st_uid == os.geteuid() and RunFolder(path).config_checksum() == run
    except (OSError, ValueError):
        return False


@contextmanager
def _event_log(folder: RunFolder | None) -> Iterator[EventLog | NullEventLog]:
    """Open the event log on rank 0; other ranks write none."""
    try:
        with closing(NullEventLog() if folder is None else EventLog(folder.events)) as events:
            yield events
    except OSError as error:
        if folder is not None:
            error.filename = error.filename or str(folder.events)  # a failed write does not name its file
        raise


def _write_start(
    events: EventLog | NullEventLog, loop: Loop, part: Part | DynamicGraph, job: RankJob
) -> None:
    state = loop.state
    if not state.epoch:
        graph = {"name": _graph_of(part).name, "nodes": part.num_nodes, "edges": job.edges}
        graph |= {"features": loop.procedure.in_features, "outputs": loop.procedure.task.num_outputs}
        events.write("start", config=job.config.model_dump(), graph=graph, machine=describe_machine())
    if job.resumed:
        within = {"minibatch": state.minibatch} if state.minibatch else {}
        events.write("resume", epoch=state.epoch, **within)


def _write_results(
    loop: Loop,
    rank: RankContext,
    config: Config,
    events: EventLog | NullEventLog,
    folder: RunFolder | None,
    *,
    finished: bool,
) -> dict[str, Any]:
    """Score the model and write what rank 0 keeps of it; returns the metrics. Collective."""
    procedure = loop.procedure
    events.flush()
    if folder is not None and procedure.traced:
        write_trace(folder.events, folder.trace)
    began_s = time.perf_counter()
    out = procedure.outputs()
    scores = {split: procedure.task.scores(out, split) for split in SPLITS}
    figures: dict[str, Any] = {}
    selecting = out
    if finished and config.correct_and_smooth.enabled:
        out, selecting, scores, figures = choose_outputs(rank, config, procedure.task, out, scores)
    final = procedure.task.final_results(out, selecting)
    loop.add_scoring(time.perf_counter() - began_s)
    if finished:
        _write_scores(loop, rank.part, events, out, scores)
        if final.curves:
            events.write("curves", **final.curves)
        if folder is not None:
            _save_weights(loop, rank.part, folder)
    return _metrics(loop, config, scores) | figures | final.metrics


def _graph_of(part: Part | DynamicGraph) -> Graph | DynamicGraph:
    """Return the graph of a rank's own nodes, or the dynamic graph that all ranks share."""
    return part if isinstance(part, DynamicGraph) else part.own


def _write_scores(
    loop: Loop, part: Part | DynamicGraph, events: EventLog | NullEventLog, out: Any, scores: ScoresBySplit
) -> None:
    task = loop.procedure.task
    fields: dict[str, Any] = {f"{split}_scores": values for split, values in scores.items()}
    if task.kind in _CLASSIFICATION and task.count["test"]:
        fields["confusion"] = task.confusion(out, "test").tolist()
        fields["class_names"] = list(_graph_of(part).class_names or map(str, range(task.num_outputs)))
    best_epoch = loop.procedure.metrics(loop.state.seconds).get("best_epoch", loop.state.best_epoch)
    events.write("result", best_epoch=best_epoch, **fields)
    for phase, figures in task.further_results(out).items():
        events.write(phase, **figures)


def _save_weights(loop: Loop, part: Part | DynamicGraph, folder: RunFolder) -> None:
    width = loop.procedure.in_features
    shape = {"in_features": width, "out_features": loop.procedure.task.num_outputs}
    shape["num_nodes"] = 0 if width else part.num_nodes
    save_tensors(folder.weights, loop.procedure.model.state_dict(), shape)


def _metrics(loop: Loop, config: Config, scores: ScoresBySplit) -> dict[str, Any]:
    """Collect the object that ``--json`` prints, except the run's folder. Collective."""
    procedure, state = loop.procedure, loop.state
    metrics: dict[str, Any] = {"metric": procedure.task.metric}
    for split, values in scores.items():
        metrics |= {f"{split}_{name}": value for name, value in values.items()}
        metrics[f"{split}_score"] = values[procedure.task.metric]
    peak = str(max(state.peak_rss_bytes, peak_rss_bytes()))
    peaks = all_gather_texts(loop.comm, peak, label="control")
    sent = procedure.sent.update()
    return metrics | {
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "seconds": state.seconds,
        "score_seconds": state.score_seconds,
        "epoch_seconds": statistics.median(state.epoch_seconds or [0.0]),
        "bytes_sent": sum(sent.values()),
        "bytes_by_label": sent,
        "peak_rss_bytes": max(map(int, peaks)),
        "task": procedure.task.kind,
        "method": config.method,
        "model": config.model.kind,
        "engine": config.engine,
        "ranks": config.ranks,
        "seed": config.seed,
        **procedure.task.metrics(),
        **procedure.metrics(state.seconds),
    }
