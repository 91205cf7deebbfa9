"""The one place that composes a run: data, model, procedure, folder. The command line and Python both come here."""

import json
import os
import resource
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from siafu import data
from siafu.events import Events, Progress, silent
from siafu.folder import RunFolder, existing_folder, new_folder
from siafu.graph import Graph
from siafu.nn.model import Gnn
from siafu.results.machine import describe_machine
from siafu.results.read import across_seeds
from siafu.settings import Settings, build, from_keywords, read_toml, write_toml
from siafu.store.tensors import load_tensors, save_tensors, write_atomically
from siafu.training import inputs, metrics
from siafu.training.full import EpochListener, FullTrainer, Watch
from siafu.training.task import SPLITS, task_of

ShouldStop = Callable[[], str | None]


@dataclass(frozen=True)
class Run:
    """A trained model and what became of it.

    Attributes:
        directory: where the run's files are.
        settings: what it was made with.
        metrics: what ``--json`` prints.
        model: the model with its best weights; None where the run was stopped before its end.
    """

    directory: Path
    settings: Settings
    metrics: dict[str, Any]
    model: nn.Module | None

    @property
    def test_accuracy(self) -> float:
        """The share of test nodes whose class is right."""
        if "test_accuracy" not in self.metrics:
            raise AttributeError(f"this run measured {self.metrics['metric']}, not accuracy; see run.metrics")
        return self.metrics["test_accuracy"]


@dataclass(frozen=True)
class Onlooker:
    """Who follows a run from outside.

    Attributes:
        on_epoch: told of each epoch.
        should_stop: asked after each epoch for a reason to stop.
    """

    on_epoch: EpochListener
    should_stop: ShouldStop


NOBODY = Onlooker(on_epoch=lambda *_, **__: None, should_stop=lambda: None)


def load(source: str | Path, *, fold: int = 0, progress: Progress = silent) -> Graph:
    """A graph by the name of a data set, or the path of a store or an ``.npz``."""
    return data.load(str(source), fold=fold, home=data.data_home(os.environ), progress=progress)


def train(
    graph: Graph | str | Path,
    *,
    model: str | nn.Module = "gcn",
    out: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    onlooker: Onlooker = NOBODY,
    **settings: Any,
) -> Run:
    """Train a model on a graph; settings are keywords such as ``epochs=100`` or ``hidden=128``.

    ``model`` is a kind of model, or your own module of (block, x). ``config`` takes whole tables, as a TOML file has.
    """
    custom = model if isinstance(model, nn.Module) else None
    kind = "custom" if custom is not None else model
    tree = build(config or {}, from_keywords(settings), {"model": {"kind": kind}})
    graph, source = (
        (graph, "") if isinstance(graph, Graph) else (load(graph, fold=tree.data.fold), str(graph))
    )
    resolved = inputs.resolve(tree.data, graph)
    tree = tree.model_copy(
        update={"data": resolved, "source": source, "fingerprint": inputs.fingerprint(graph)}
    )
    trainer = _trainer(graph, tree, custom)
    folder = new_folder(None if out is None else Path(out), name=f"{graph.name}-{kind}-{tree.method}")
    with folder.locked():
        write_atomically(folder.config, write_toml(tree).encode())
        return _carry_out(folder, tree, graph, trainer, onlooker)


def resume(
    run: Path | str,
    *,
    graph: Graph | None = None,
    model: nn.Module | None = None,
    onlooker: Onlooker = NOBODY,
) -> Run:
    """Go on with a run that was stopped or killed, exactly as it would have gone on.

    ``graph`` and ``model`` are needed where they were given as Python values.
    """
    folder = existing_folder(Path(run))
    tree = build(read_toml(folder.config))
    if tree.model.kind == "custom" and model is None:
        raise ValueError(f"{folder.path}: trained a module of your own; resume it from Python with model=")
    graph = _same_graph(folder, tree, graph)
    trainer = _trainer(graph, tree, model)
    with folder.locked():
        if folder.checkpoint.is_file():
            trainer.resume(folder.checkpoint)
        return _carry_out(folder, tree, graph, trainer, onlooker)


def train_seeds(
    graph: Graph | str | Path,
    *,
    seeds: int,
    out: Path | str | None = None,
    onlooker: Onlooker = NOBODY,
    **settings: Any,
) -> dict[str, Any]:
    """Train with the seeds 0 to ``seeds`` - 1, each below ``out``; the mean of every metric, and its ``_std``."""
    graph = graph if isinstance(graph, Graph) else load(graph)
    folder = new_folder(None if out is None else Path(out), name=f"{graph.name}-seeds")
    runs: list[Run] = []
    for seed in range(seeds):
        runs.append(train(graph, out=folder.path / f"seed-{seed}", seed=seed, onlooker=onlooker, **settings))
        if not runs[-1].metrics["finished"]:
            return runs[-1].metrics
    spread = across_seeds([run.metrics for run in runs])
    found = runs[0].metrics | {
        "run": str(folder.path),
        "seeds": seeds,
        "runs": [str(run.directory) for run in runs],
    }
    return (
        found
        | {key: s.mean for key, s in spread.items()}
        | {f"{key}_std": s.std for key, s in spread.items()}
    )


def open_run(run: Path | str, *, model: nn.Module | None = None) -> Run:
    """A finished run, loaded again; ``model`` is needed where it was a module of your own."""
    folder = existing_folder(Path(run))
    if not folder.weights.is_file() or not folder.metrics.is_file():
        raise ValueError(
            f'{folder.path}: this run has not ended; continue it with "siafu resume {folder.path}"'
        )
    tree = build(read_toml(folder.config))
    weights, shape = load_tensors(folder.weights)
    if model is None:
        if tree.model.kind == "custom":
            raise ValueError(f"{folder.path}: trained a module of your own; open it from Python with model=")
        model = Gnn(tree.model, in_features=shape["in_features"], out_features=shape["out_features"])
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"{folder.weights}: its weights do not fit the model ({error})") from None
    found = json.loads(folder.metrics.read_text(encoding="utf-8"))
    return Run(folder.path, tree, found, model)


@torch.no_grad()
def predict(run: Run, graph: Graph, *, embeddings: bool = False) -> dict[str, Tensor]:
    """What a run's model says of a graph's nodes, in the user's order.

    Returns ``output`` (N, C), the model's bare output, and with ``embeddings`` also ``embedding`` (N, H).
    """
    if run.model is None:
        raise ValueError(
            f'{run.directory}: stopped before its end; continue it with "siafu resume {run.directory}"'
        )
    config = inputs.resolve(run.settings.data.model_copy(update={"reorder": "auto"}), graph)
    graph = inputs.prepare(graph, config)
    x = inputs.features(graph, config)
    block = graph.block.with_static(x)
    run.model.eval()
    try:
        found = {"output": run.model(block, x)}
    except RuntimeError as error:
        raise ValueError(f"{graph.name}: its {x.shape[1]} features do not fit the model ({error})") from None
    if embeddings:
        if not isinstance(run.model, Gnn):
            raise ValueError("embeddings are known of siafu's own models only")
        found["embedding"] = run.model.embed(block, x)
    return {name: inputs.in_user_order(rows, graph) for name, rows in found.items()}


def source_graph(run: Run, source: str | None = None) -> Graph:
    """The graph of ``source``, or the one a run was trained on."""
    source = source or run.settings.source
    if not source:
        raise ValueError(f"{run.directory}: trained on a graph given in Python; name the data to predict")
    return load(source, fold=run.settings.data.fold)


def _same_graph(folder: RunFolder, tree: Settings, graph: Graph | None) -> Graph:
    if graph is None:
        if not tree.source:
            raise ValueError(
                f"{folder.path}: trained on a graph given in Python; resume it from there with graph="
            )
        graph = load(tree.source, fold=tree.data.fold)
    found = inputs.fingerprint(graph)
    if found != tree.fingerprint:
        raise ValueError(
            f"{folder.path}: trained on other data: {graph.name} now has the fingerprint {found}, "
            f"but config.toml says {tree.fingerprint}; put the old data back or train anew"
        )
    return graph


def _trainer(graph: Graph, tree: Settings, custom: nn.Module | None) -> FullTrainer:
    graph = inputs.prepare(graph, tree.data)
    task = task_of(graph, tree.train)
    x = inputs.features(graph, tree.data)
    model = custom
    if model is None:
        model = Gnn(tree.model, in_features=x.shape[1], out_features=task.num_outputs)
        model.reset(torch.Generator().manual_seed(tree.seed))
    return FullTrainer(model, graph.block, x, task, tree.train, seed=tree.seed)


def _carry_out(
    folder: RunFolder, tree: Settings, graph: Graph, trainer: FullTrainer, onlooker: Onlooker
) -> Run:
    """Train to the end, or to where somebody stops it, and write what came of it."""
    folder.checkpoint.parent.mkdir(exist_ok=True)
    events = Events(folder.events)
    try:
        if trainer.done.epoch:
            events.write("resume", epoch=trainer.done.epoch)
        else:
            about = {"name": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges}
            about |= {"features": trainer.x_src.shape[1], "outputs": trainer.task.num_outputs}
            events.write("start", config=tree.model_dump(), graph=about, machine=describe_machine())
        watch = Watch(events, folder.checkpoint, onlooker.should_stop, onlooker.on_epoch)
        reason = trainer.train(watch)
        finished = reason in ("done", "patience")
        found = _measure(folder, tree, trainer) | {"finished": finished, "stopped_by": reason}
        if finished:
            _write_result(folder, graph, trainer, events)
            if tree.baseline:
                found["baseline"] = _baseline(folder, tree, graph, onlooker)
            events.write("end", **found)
            write_atomically(folder.metrics, (json.dumps(found, indent=1) + "\n").encode())
    finally:
        events.close()
    return Run(folder.path, tree, found, trainer.model if finished else None)


def _baseline(folder: RunFolder, tree: Settings, graph: Graph, onlooker: Onlooker) -> dict[str, Any]:
    """What a model of the same size reaches without the graph, in a folder of its own below the run's."""
    out = folder.path / "baseline"
    if (out / "config.toml").is_file():
        run = resume(out, graph=graph, onlooker=onlooker)
    else:
        config = tree.model_dump(exclude={"baseline", "source", "fingerprint"})
        run = train(graph, model="mlp", out=out, config=config, onlooker=onlooker)
    return {key: run.metrics[key] for key in ("model", "test_score", "val_score", "epochs", "epoch_seconds")}


def _write_result(folder: RunFolder, graph: Graph, trainer: FullTrainer, events: Events) -> None:
    task, out = trainer.task, trainer.outputs()
    rows = task.rows["test"]
    fields: dict[str, Any] = {f"{split}_scores": task.scores(out, split) for split in SPLITS}
    if task.kind == "class" and rows.numel():
        fields["confusion"] = metrics.confusion(out[rows].argmax(1), task.y[rows], task.num_outputs).tolist()
        fields["class_names"] = list(graph.class_names or map(str, range(task.num_outputs)))
    events.write("result", best_epoch=trainer.done.best_epoch, **fields)
    shape = {"in_features": trainer.x_src.shape[1], "out_features": task.num_outputs}
    save_tensors(folder.weights, trainer.model.state_dict(), shape)


def _measure(folder: RunFolder, tree: Settings, trainer: FullTrainer) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    task, done, out = trainer.task, trainer.done, trainer.outputs()
    found: dict[str, Any] = {"metric": task.metric}
    for split in SPLITS:
        scores = task.scores(out, split)
        found |= {f"{split}_{name}": value for name, value in scores.items()}
        found[f"{split}_score"] = scores.get(task.metric)
    return found | {
        "epochs": done.epoch,
        "best_epoch": done.best_epoch,
        "seconds": done.seconds,
        "epoch_seconds": statistics.median(done.epoch_seconds),
        "bytes_sent": 0,
        "bytes_by_label": {},
        "peak_rss_bytes": max(done.peak_rss_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
        "task": task.kind,
        "method": tree.method,
        "model": tree.model.kind,
        "ranks": tree.ranks,
        "seed": tree.seed,
        "run": str(folder.path),
    }
