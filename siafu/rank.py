"""One rank's share of a run: it trains on its part, and rank 0 writes the results."""

import os
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from siafu.comm import Comm
from siafu.comm.all_gather import all_gather_texts
from siafu.config import Config
from siafu.dynamic import DynamicGraph
from siafu.event_log import EventLog, NullEventLog
from siafu.files import make_folder
from siafu.graph import Graph
from siafu.machine import describe_machine, peak_rss_bytes
from siafu.methods import RankContext, build_procedure
from siafu.partition.cut import Part
from siafu.results.trace import write_trace
from siafu.run_folder import RunFolder
from siafu.store.tensors import save_tensors
from siafu.training.loop import ENDS, Loop
from siafu.training.procedure import Callbacks, Monitor
from siafu.training.task import SPLITS

AllScores = dict[str, dict[str, float | None]]
_LABELLED = ("class", "edge")  # kinds of task that tell classes apart


@dataclass(frozen=True)
class RankJob:
    """The job of a rank, known to all ranks alike.

    Attributes:
        config: the config of the run.
        run: its checksum, which the run's checkpoint carries.
        edges: of the whole graph.
        resumed: whether the run was started before.
        checkpointed: whether rank 0 has a checkpoint to go on from.
        folder: of the run, which not every rank may see; None where nobody says.
        same_ranks: whether the checkpoint was written by these ranks, and not by some of them or by others.
    """

    config: Config
    run: str
    edges: int
    resumed: bool = False
    checkpointed: bool = False
    folder: Path | None = None
    same_ranks: bool = True


def train_rank(
    comm: Comm,
    part: Part | DynamicGraph,
    job: RankJob,
    *,
    folder: RunFolder | None,
    callbacks: Callbacks,
    module: nn.Module | None = None,
) -> tuple[dict[str, Any], nn.Module | None]:
    """Train to the end, or until somebody stops it; returns the metrics, and the model if it was the end.

    ``folder`` is that of the run on rank 0, None on others. Collective.
    """
    with scratch_folder(job, folder) as scratch:
        procedure = build_procedure(RankContext(comm, part, job.config, module, scratch))
        loop = Loop(procedure, job.config.train, run=job.run)
        if job.checkpointed:
            loop.resume(None if folder is None else folder.checkpoint, same_ranks=job.same_ranks)
        try:
            with closing(NullEventLog() if folder is None else EventLog(folder.events)) as events:
                found = _train(loop, part, job, events, folder, callbacks)
        except OSError as error:
            if folder is not None:
                error.filename = error.filename or str(folder.events)  # a failed write does not say where
            raise
    return found, procedure.model if found["finished"] else None


@contextmanager
def scratch_folder(job: RankJob, folder: RunFolder | None) -> Iterator[Path]:
    """The run's folder where this rank sees it, else a new one that its user alone may enter and that does not stay."""
    if folder is not None:
        yield folder.path
    elif job.folder is not None and _is_of_run(job.folder, job.run):
        yield job.folder
    else:
        with tempfile.TemporaryDirectory(prefix="siafu-run-") as private:
            yield Path(private)


def _is_of_run(path: Path, run: str) -> bool:
    """Whether a folder holds that run and is our user's own: another host may have one of the same name."""
    try:
        return path.stat().st_uid == os.geteuid() and RunFolder(path).config_checksum() == run
    except (OSError, ValueError):
        return False


def _train(
    loop: Loop,
    part: Part | DynamicGraph,
    job: RankJob,
    events: EventLog | NullEventLog,
    folder: RunFolder | None,
    callbacks: Callbacks,
) -> dict[str, Any]:
    procedure = loop.procedure
    _write_start(events, loop, part, job)
    checkpoint = None
    if folder is not None:
        checkpoint = folder.checkpoint
        make_folder(checkpoint.parent)
    callbacks.on_training()
    reason = loop.fit(Monitor(events, checkpoint, callbacks))
    events.flush()
    if folder is not None and procedure.traced:
        write_trace(folder.events, folder.trace)
    out = procedure.outputs()
    scores = {split: procedure.task.scores(out, split) for split in SPLITS}
    if reason in ENDS:
        _write_result(loop, part, events, out, scores)
        if folder is not None:
            _save_weights(loop, part, folder)
    return _metrics_of(loop, job.config, scores) | {"finished": reason in ENDS, "stopped_by": reason}


def _write_start(
    events: EventLog | NullEventLog, loop: Loop, part: Part | DynamicGraph, job: RankJob
) -> None:
    state = loop.state
    if not state.epoch:
        about = {"name": _graph_of(part).name, "nodes": part.num_nodes, "edges": job.edges}
        about |= {"features": loop.procedure.in_features, "outputs": loop.procedure.task.num_outputs}
        events.write("start", config=job.config.model_dump(), graph=about, machine=describe_machine())
    if job.resumed:
        within = {"minibatch": state.minibatch} if state.minibatch else {}
        events.write("resume", epoch=state.epoch, **within)


def _graph_of(part: Part | DynamicGraph) -> Graph | DynamicGraph:
    """The graph of which a rank has a part."""
    return part if isinstance(part, DynamicGraph) else part.own


def _write_result(
    loop: Loop, part: Part | DynamicGraph, events: EventLog | NullEventLog, out: Tensor, scores: AllScores
) -> None:
    task = loop.procedure.task
    fields: dict[str, Any] = {f"{split}_scores": of for split, of in scores.items()}
    if task.kind in _LABELLED and task.count["test"]:
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


def _metrics_of(loop: Loop, config: Config, scores: AllScores) -> dict[str, Any]:
    """The object that ``--json`` prints, but for the run's folder. Collective."""
    procedure, state = loop.procedure, loop.state
    found: dict[str, Any] = {"metric": procedure.task.metric}
    for split, of in scores.items():
        found |= {f"{split}_{name}": value for name, value in of.items()}
        found[f"{split}_score"] = of[procedure.task.metric]
    peak = str(max(state.peak_rss_bytes, peak_rss_bytes()))
    peaks = all_gather_texts(loop.comm, peak, label="control")
    sent = procedure.sent.update()
    return found | {
        "epochs": state.epoch,
        "best_epoch": state.best_epoch,
        "seconds": state.seconds,
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
