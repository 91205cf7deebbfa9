"""The one place that composes a run: data, model, procedure, folder. The command line and Python both come here."""

import copy
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from siafu.data.lookup import is_store
from siafu.events import Events, Progress, silent
from siafu.folder import RunFolder, checksum, existing_folder, new_folder
from siafu.graph import Graph
from siafu.nn.embedded import build_model
from siafu.results.machine import describe_machine, peak_rss_bytes
from siafu.results.progress import TrainingProgress, in_notebook
from siafu.results.read import across_seeds
from siafu.settings import Settings, build, from_keywords, parse_toml, write_toml
from siafu.store.tensors import save_tensors
from siafu.trained import Run, load, model_inputs, open_run
from siafu.training import inputs, metrics
from siafu.training.full import EpochListener, FullTrainer, Watch
from siafu.training.task import SPLITS, task_of

_ENDS = ("done", "patience")
_SOME_OF_BASELINE = ("model", "test_score", "val_score", "epochs", "epoch_seconds")


@dataclass(frozen=True)
class Onlooker:
    """Who follows a run from outside.

    Attributes:
        on_epoch: told of each epoch.
        should_stop: asked after each epoch for a reason to stop.
        progress: told how far a download is.
        say: told what begins, in a line.
    """

    on_epoch: EpochListener
    should_stop: Callable[[], str | None] = lambda: None
    progress: Progress = silent
    say: Callable[[str], None] = lambda _: None


def train(
    graph: Graph | str | Path,
    *,
    model: str | nn.Module | None = None,
    out: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    onlooker: Onlooker | None = None,
    **settings: Any,
) -> Run:
    """Train a model on a graph; settings are keywords such as ``epochs=100`` or ``hidden=128``.

    ``model`` is a kind of model, or your own module of (block, x), which is trained in place. ``config`` takes whole
    tables, as a TOML file has. With ``seeds=10`` the metrics are means, and each has its deviation as ``…_std``.
    """
    custom = model if isinstance(model, nn.Module) else None
    kind = {} if model is None else {"kind": "custom" if custom is not None else model}
    tree = build(config or {}, from_keywords(settings), {"model": kind})
    with _watched(onlooker) as watching:
        graph, tree = _settle(graph, tree, watching)
        trainer = _trainer(graph, tree, custom)  # refuses what cannot be trained, before anything is written
        watching.say(_about(graph, trainer))
        name = f"{graph.name}-{tree.model.kind}-{tree.method}"
        with new_folder(None if out is None else Path(out), name=name) as folder:
            trainer.done.run = folder.write_config(write_toml(tree))
            if tree.seeds > 1:
                return _each_seed(folder, tree, graph, custom, watching)
            return _carry_out(folder, tree, graph, trainer, watching)


def resume(
    run: Path | str,
    *,
    graph: Graph | None = None,
    model: nn.Module | None = None,
    onlooker: Onlooker | None = None,
) -> Run:
    """Go on with a run that was stopped or killed, exactly as it would have gone on; one that ended is opened.

    ``graph`` and ``model`` are needed where they were given as Python values.
    """
    folder = existing_folder(Path(run))
    if folder.finished:
        return open_run(run, model=model)
    with folder.locked(), _watched(onlooker) as watching:
        text = folder.read_config()
        tree = parse_toml(text)
        if tree.model.kind == "custom" and model is None:
            raise ValueError(
                f"{folder.path}: trained a module of your own; resume it from Python with model="
            )
        graph = _same_graph(folder, tree, graph, watching)
        if tree.seeds > 1:
            return _each_seed(folder, tree, graph, model, watching)
        trainer = _trainer(graph, tree, model)
        trainer.done.run = checksum(text)
        if folder.checkpoint.is_file():
            trainer.resume(folder.checkpoint)
        return _carry_out(folder, tree, graph, trainer, watching, resumed=True)


@contextmanager
def _watched(onlooker: Onlooker | None) -> Iterator[Onlooker]:
    """Whoever is given, else a progress bar where somebody may see it."""
    if onlooker is not None:
        yield onlooker
    elif in_notebook() or sys.stderr.isatty():
        with TrainingProgress() as progress:
            yield Onlooker(progress.epoch, progress=progress)
    else:
        yield Onlooker(lambda *_, **__: None)


def _settle(graph: Graph | str | Path, tree: Settings, onlooker: Onlooker) -> tuple[Graph, Settings]:
    """The graph, and the settings with all that depends on it."""
    source = ""
    if not isinstance(graph, Graph):
        source, path = str(graph), Path(graph).expanduser()
        graph = load(graph, fold=tree.data.fold, progress=onlooker.progress)
        if path.is_file() or is_store(path):
            source = str(path.absolute())  # so that the run can be resumed from elsewhere
    return graph, tree.model_copy(
        update={
            "data": inputs.resolve(tree.data, graph),
            "source": source,
            "fingerprint": inputs.fingerprint(graph),
            "class_names": graph.class_names or (),
        }
    )


def _same_graph(folder: RunFolder, tree: Settings, graph: Graph | None, onlooker: Onlooker) -> Graph:
    if graph is None:
        if not tree.source:
            raise ValueError(
                f"{folder.path}: trained on a graph given in Python; resume it from there with graph="
            )
        graph = load(tree.source, fold=tree.data.fold, progress=onlooker.progress)
    found = inputs.fingerprint(graph)
    if found != tree.fingerprint:
        raise ValueError(
            f"{folder.path}: trained on other data: {graph.name} now has the fingerprint {found}, "
            f"but config.toml says {tree.fingerprint}; put the old data back or train anew"
        )
    return graph


def _trainer(graph: Graph, tree: Settings, custom: nn.Module | None) -> FullTrainer:
    graph, x = model_inputs(graph, tree)
    task = task_of(graph, tree.train)
    if custom is not None:
        if graph.x is None:
            raise ValueError(f"{graph.name}: no features for your module to read; give x")
        return FullTrainer(custom, graph.block, x, task, tree.train, seed=tree.seed)
    shape = {"in_features": x.shape[1], "out_features": task.num_outputs, "num_nodes": graph.num_nodes}
    model = build_model(tree.model, **shape)
    model.reset(torch.Generator().manual_seed(tree.seed))
    return FullTrainer(model, graph.block, x, task, tree.train, seed=tree.seed)


def _carry_out(
    folder: RunFolder,
    tree: Settings,
    graph: Graph,
    trainer: FullTrainer,
    onlooker: Onlooker,
    *,
    resumed: bool = False,
) -> Run:
    """Train to the end, or to where somebody stops it, and write what came of it."""
    folder.checkpoint.parent.mkdir(exist_ok=True)
    done = f" ({trainer.done.epoch} done)" if trainer.done.epoch else ""
    onlooker.say(
        f"training {tree.model.kind} for up to {tree.train.epochs} epochs{done}, seed {tree.seed}, in {folder.path}"
    )
    try:
        with closing(Events(folder.events)) as events:
            _begin(events, tree, graph, trainer, resumed=resumed)
            reason = trainer.train(Watch(events, folder.checkpoint, onlooker.should_stop, onlooker.on_epoch))
            out = trainer.outputs()
            found = _measure(folder, tree, trainer, out)
            if reason in _ENDS:
                _write_result(folder, graph, trainer, events, out)
                if tree.baseline:
                    without = _baseline(folder, tree, graph, onlooker).metrics
                    found["baseline"] = {key: without[key] for key in _SOME_OF_BASELINE}
                    reason = reason if without["finished"] else without["stopped_by"]
            found |= {"finished": reason in _ENDS, "stopped_by": reason}
            if found["finished"]:
                events.write("end", **found)
        if found["finished"]:
            folder.write_metrics(found)
    except OSError as error:
        error.filename = error.filename or str(folder.events)  # a failed write does not say where
        raise
    return Run(folder.path, tree, found, trainer.model if found["finished"] else None)


def _begin(events: Events, tree: Settings, graph: Graph, trainer: FullTrainer, *, resumed: bool) -> None:
    if not trainer.done.epoch:
        about = {"name": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges}
        about |= {"features": trainer.x_src.shape[1], "outputs": trainer.task.num_outputs}
        events.write("start", config=tree.model_dump(), graph=about, machine=describe_machine())
    if resumed:
        events.write("resume", epoch=trainer.done.epoch)


def _about(graph: Graph, trainer: FullTrainer) -> str:
    """What is trained on, for a person to read."""
    task, outputs = trainer.task, {"class": "classes", "labels": "labels", "regression": "targets"}
    train, val, test = (task.rows[split].numel() for split in SPLITS)
    width = trainer.x_src.shape[1]
    features = f"{width:,} features" if width else "no features (a row is learned for each node)"
    return (
        f"{graph.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {features}, "
        f"{task.num_outputs} {outputs[task.kind]}; {train:,} nodes train, {val:,} validate, {test:,} test"
    )


def _part(out: Path, tree: Settings, graph: Graph, custom: nn.Module | None, onlooker: Onlooker) -> Run:
    """Train a run below another's folder, or go on with it."""
    if (out / "config.toml").is_file():
        return resume(out, graph=graph, model=custom, onlooker=onlooker)
    trainer = _trainer(graph, tree, custom)
    with new_folder(out, name=out.name) as folder:
        trainer.done.run = folder.write_config(write_toml(tree))
        return _carry_out(folder, tree, graph, trainer, onlooker)


def _baseline(folder: RunFolder, tree: Settings, graph: Graph, onlooker: Onlooker) -> Run:
    """Train a model of the same size without the graph."""
    model = tree.model.model_copy(update={"kind": "mlp"})
    without = tree.model_copy(update={"model": model, "baseline": False})
    return _part(folder.path / "baseline", without, graph, None, onlooker)


def _each_seed(
    folder: RunFolder, tree: Settings, graph: Graph, custom: nn.Module | None, onlooker: Onlooker
) -> Run:
    """Train with one seed after another; the mean of every metric, and its deviation as ``…_std``."""
    runs: list[Run] = []
    for place in range(tree.seeds):
        one = tree.model_copy(update={"seeds": 1, "seed": tree.seed + place})
        runs.append(_part(folder.seed(place), one, graph, copy.deepcopy(custom), onlooker))
        if not runs[-1].metrics["finished"]:
            return Run(folder.path, tree, runs[-1].metrics | {"run": str(folder.path)}, None)
    found = _means([run.metrics for run in runs])
    if tree.baseline:
        found["baseline"] = _means([run.metrics["baseline"] for run in runs])
    found |= {"run": str(folder.path), "seeds": tree.seeds, "runs": [str(run.directory) for run in runs]}
    folder.write_metrics(found)
    return Run(folder.path, tree, found, None)


def _means(each: list[dict[str, Any]]) -> dict[str, Any]:
    spread = across_seeds(each)
    means = {key: value.mean for key, value in spread.items()}
    return each[0] | means | {f"{key}_std": value.std for key, value in spread.items()}


def _write_result(folder: RunFolder, graph: Graph, trainer: FullTrainer, events: Events, out: Tensor) -> None:
    task = trainer.task
    rows = task.rows["test"]
    fields: dict[str, Any] = {f"{split}_scores": task.scores(out, split) for split in SPLITS}
    if task.kind == "class" and rows.numel():
        fields["confusion"] = metrics.confusion(out[rows].argmax(1), task.y[rows], task.num_outputs).tolist()
        fields["class_names"] = list(graph.class_names or map(str, range(task.num_outputs)))
    events.write("result", best_epoch=trainer.done.best_epoch, **fields)
    nodes, width = trainer.x_src.shape
    shape = {"in_features": width, "out_features": task.num_outputs, "num_nodes": 0 if width else nodes}
    save_tensors(folder.weights, trainer.model.state_dict(), shape)


def _measure(folder: RunFolder, tree: Settings, trainer: FullTrainer, out: Tensor) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    task, done = trainer.task, trainer.done
    found: dict[str, Any] = {"metric": task.metric}
    for split in SPLITS:
        scores = task.scores(out, split)
        found |= {f"{split}_{name}": value for name, value in scores.items()}
        found[f"{split}_score"] = scores[task.metric]
    return found | {
        "epochs": done.epoch,
        "best_epoch": done.best_epoch,
        "seconds": done.seconds,
        "epoch_seconds": statistics.median(done.epoch_seconds),
        "bytes_sent": 0,
        "bytes_by_label": {},
        "peak_rss_bytes": max(done.peak_rss_bytes, peak_rss_bytes()),
        "task": task.kind,
        "method": tree.method,
        "model": tree.model.kind,
        "ranks": tree.ranks,
        "seed": tree.seed,
        "run": str(folder.path),
    }
