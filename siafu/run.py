"""The one place that composes a run: data, model, ranks, folder. The command line and Python both come here."""

import copy
import hashlib
import inspect
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from siafu import native
from siafu.comm import Comm
from siafu.config import Config, build, from_keywords, parse_toml, write_toml
from siafu.convert import as_graph
from siafu.data_warnings import data_warnings
from siafu.engines import (
    Engine,
    LocalEngine,
    ProcessEngine,
    RayEngine,
    TorchrunEngine,
    TrainingJob,
    dismiss,
    follow,
    partitions_folder,
)
from siafu.event_log import EventLog
from siafu.inference.trained_run import AnyGraph, Run, load, open_run
from siafu.machine import usable_cores
from siafu.methods import METHODS
from siafu.resolve import about, fingerprint, settle
from siafu.results.progress import TrainingProgress, in_notebook
from siafu.results.read import across_seeds
from siafu.run_folder import RunFolder, existing_folder, new_folder
from siafu.signals import resume_hint
from siafu.training.procedure import Callbacks

_SOME_OF_BASELINE = ("model", "test_score", "val_score", "epochs", "epoch_seconds")


def train(
    graph: AnyGraph | str | Path,
    *,
    model: str | nn.Module | None = None,
    out: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    **settings: Any,
) -> Run:
    """Train a model on a graph; settings are keywords such as ``epochs=100`` or ``hidden=128``.

    ``graph`` is a graph, its name or path, or a PyG ``Data`` or ``TemporalData``, which is converted.
    ``model`` is a kind of model, or your own module of (block, x), which is trained in place. ``config`` takes whole
    tables, as a TOML file has. With ``seeds=10`` the metrics are means, and each has its deviation as ``…_std``.
    """
    module = model if isinstance(model, nn.Module) else None
    kind = {} if model is None else {"kind": "custom" if module is not None else model}
    tree = _settle_ranks(build(config or {}, from_keywords(settings), {"model": kind}))
    _check_module(module, tree)
    if tree.engine == "sites":
        raise ValueError(
            'engine sites trains where the data are: run "siafu site serve" at each site and "siafu federate" here'
        )
    asked = _Asked(graph, tree, None if out is None else Path(out), module)
    with _watched(callbacks) as watching:
        _say_without_core()
        if tree.engine == "torchrun":
            return _in_group(asked, watching)
        return _train(asked, watching, None)


def resume(
    run: Path | str,
    *,
    graph: AnyGraph | None = None,
    model: nn.Module | None = None,
    callbacks: Callbacks | None = None,
) -> Run:
    """Go on with a run that was stopped or killed, exactly as it would have gone on; one that ended is opened.

    ``graph`` and ``model`` are needed where they were given as Python values.
    """
    folder = existing_folder(Path(run))
    if folder.finished:
        return open_run(run, model=model)
    tree = parse_toml(folder.read_config())
    with folder.locked(), resume_hint(_how_to_resume(folder.path, tree)), _watched(callbacks) as watching:
        _say_without_core()
        if tree.engine == "torchrun":
            raise ValueError(
                f"{folder.path}: trained by a group that torchrun started; start it again with the same command and "
                f"--out {folder.path}"
            )
        graph = _same_graph(folder, tree, graph, watching)
        return _go_on(folder, tree, graph, model, _ranks(tree, folder, None), watching)


def how_to_resume(run: Run) -> str:
    """How a user goes on with a run that was stopped."""
    return _how_to_resume(run.directory, run.settings)


def _how_to_resume(path: Path, tree: Config) -> str:
    needed = ["graph=…"] * (not tree.source) + ["model=…"] * (tree.model.kind == "custom")
    if tree.engine == "torchrun":
        return f"the same command, and --out {shlex.quote(str(path))}"
    if needed:
        return f"siafu.resume({str(path)!r}, {', '.join(needed)}) in Python"
    return f"siafu resume {shlex.quote(str(path))}"


@dataclass(frozen=True, eq=False)
class _Asked:
    """What somebody asked to be trained."""

    graph: AnyGraph | str | Path
    tree: Config
    out: Path | None
    module: nn.Module | None


def _train(asked: _Asked, callbacks: Callbacks, group: Comm | None) -> Run:
    """Compose a new run and carry it out; ``group`` is the one that this process is rank 0 of, or None."""
    graph, tree = settle(asked.graph, asked.tree, callbacks.progress)
    METHODS[tree.method].check(tree)
    callbacks.say(
        about(graph, tree, asked.module)
    )  # both refuse what cannot be trained, before anything is written
    name = f"{graph.name}-{tree.model.kind}-{tree.method}"
    with new_folder(asked.out, name=name) as folder:
        folder.write_config(write_toml(tree))
        work = TrainingJob(folder, tree, graph, asked.module, warnings=_warn(graph, tree, callbacks))
        with resume_hint(_how_to_resume(folder.path, tree)):
            return _run(work, _ranks(tree, folder, group), callbacks)


def _go_on(
    folder: RunFolder,
    tree: Config,
    graph: AnyGraph,
    module: nn.Module | None,
    ranks: Engine,
    callbacks: Callbacks,
) -> Run:
    """Carry out what was begun before."""
    if tree.model.kind == "custom" and module is None:
        raise ValueError(f"{folder.path}: trained a module of your own; resume it from Python with model=")
    warnings = _warn(graph, tree, callbacks)
    work = TrainingJob(folder, tree, graph, module, resumed=True, warnings=warnings)
    return _run(work, ranks, callbacks)


def _warn(graph: AnyGraph, tree: Config, callbacks: Callbacks) -> tuple[str, ...]:
    """Say what limits a run on this graph; returns it."""
    found = data_warnings(graph, tree)
    for text in found:
        callbacks.say(f"warning: {text}")
    return found


def _in_group(asked: _Asked, callbacks: Callbacks) -> Run:
    """Train as one rank of a group that torchrun, Slurm or the like started: rank 0 composes, the others follow.

    A group that was started again finds its run in ``out`` and goes on with it.
    """
    from siafu.launch.elastic import join

    tree = asked.tree
    if asked.out is None:
        raise ValueError("engine torchrun: give --out, so that a group that is started again finds its run")
    anywhere = tree.model_copy(update={"threads": 0})  # hosts may have other numbers of cores
    digest = hashlib.sha256(write_toml(anywhere).encode()).hexdigest()
    wire = {"encrypt": tree.comm.encrypt, "trust_network": tree.comm.trust_network}
    with join(os.environ, deadline_s=tree.comm.deadline, settings=digest, **wire) as comm:
        if tree.ranks not in (1, comm.world_size):
            raise ValueError(f"ranks is {tree.ranks}, but {comm.world_size} were started; leave --ranks out")
        tree = tree.model_copy(update={"ranks": comm.world_size})
        torch.set_num_threads(tree.threads)
        if comm.rank:
            silent = Callbacks(should_stop=callbacks.should_stop, on_training=callbacks.on_training)
            found, model = follow(comm, silent, asked.module)
            return Run(Path(found["run"]), tree, found, model, comm.rank)
        asked = replace(asked, tree=tree)
        run = _resume_in_group(asked, comm, callbacks) or _train(asked, callbacks, comm)
        dismiss(comm, run.metrics)
        return run


def _resume_in_group(asked: _Asked, comm: Comm, callbacks: Callbacks) -> Run | None:
    """Go on with the run in ``out``, if there is one that was asked for in the same way."""
    assert asked.out is not None
    if not (asked.out / "config.toml").is_file():
        return None
    folder = existing_folder(asked.out)
    with folder.locked():
        graph, tree = settle(asked.graph, asked.tree, callbacks.progress)
        if folder.read_config() != write_toml(tree):
            raise ValueError(
                f"{folder.path}: already holds a run with other settings or other data; choose another --out"
            )
        if folder.finished:  # a rank was lost after the end
            return open_run(folder.path, model=asked.module)
        return _go_on(folder, tree, graph, asked.module, _ranks(tree, folder, comm), callbacks)


def _ranks(tree: Config, folder: RunFolder, group: Comm | None) -> Engine:
    """Those who carry out a run in ``folder``."""
    home = partitions_folder(tree, folder)
    if group is not None:
        return TorchrunEngine(group, home)
    match tree.engine:
        case "local":
            return LocalEngine()
        case "ray":
            return RayEngine(home)
    return ProcessEngine(home)


def _say_without_core() -> None:
    """One line for whoever waits, where the compiled core is missing; in Python nobody else may listen."""
    if not native.compiled():
        print(f"siafu: {native.NOT_COMPILED}", file=sys.stderr, flush=True)


def _check_module(module: nn.Module | None, tree: Config) -> None:
    """Refuse a module of the user's own that such ranks cannot train."""
    if module is None:
        return
    reads = list(inspect.signature(module.forward).parameters)[:2]
    if type(module).__module__.startswith("torch_geometric.") or "edge_index" in reads:
        raise ValueError(
            f"model is a {type(module).__name__}, which reads (x, edge_index); siafu.train calls a module with "
            "(block, x): choose a kind such as model='gcn', build it of layers of siafu.nn, or train it in a loop of "
            "your own with siafu.NeighborLoader"
        )
    if tree.engine in ("processes", "ray"):
        raise ValueError(
            "a module of your own cannot be sent to other processes; use engine local, or torchrun with your script"
        )
    torchs_own = (module for module in module.modules() if isinstance(module, nn.modules.dropout._DropoutNd))
    if tree.ranks > 1 and tree.engine == "local" and (found := next(torchs_own, None)) is not None:
        raise ValueError(
            f"your module has a {type(found).__name__}, which draws from the one generator of torch that ranks of "
            "engine local share; use siafu.nn.dropout.Dropout, called with (rows, block.given_id), or train on one rank"
        )


@contextmanager
def _watched(callbacks: Callbacks | None) -> Iterator[Callbacks]:
    """Whoever is given, else a progress bar where somebody may see it."""
    if callbacks is not None:
        yield callbacks
    elif in_notebook() or sys.stderr.isatty():
        with TrainingProgress() as progress:
            yield Callbacks(progress.epoch, progress=progress)
    else:
        yield Callbacks()


def _settle_ranks(tree: Config) -> Config:
    """Settle what ``auto`` means for engine and threads."""
    engine = tree.engine
    if engine == "auto":
        engine = "local" if tree.ranks == 1 else "processes"
    here = torch.get_num_threads() if tree.ranks == 1 else max(1, usable_cores() // tree.ranks)
    return tree.model_copy(update={"engine": engine, "threads": tree.threads or here})


def _same_graph(folder: RunFolder, tree: Config, graph: AnyGraph | None, callbacks: Callbacks) -> AnyGraph:
    if graph is None:
        if not tree.source:
            raise ValueError(
                f"{folder.path}: trained on a graph given in Python; resume it from there with graph="
            )
        graph = load(tree.source, fold=tree.data.fold, step=tree.snapshots.step, progress=callbacks.progress)
    graph = as_graph(graph, fold=tree.data.fold)
    found = fingerprint(graph)
    if found != tree.fingerprint:
        raise ValueError(
            f"{folder.path}: trained on other data: {graph.name} now has the fingerprint {found}, "
            f"but config.toml says {tree.fingerprint}; put the old data back or train anew"
        )
    return graph


def _run(work: TrainingJob, ranks: Engine, callbacks: Callbacks) -> Run:
    """Train to the end, or to where somebody stops it, and write what came of it."""
    folder, tree = work.folder, work.tree
    if tree.seeds > 1:
        return _each_seed(work, ranks, callbacks)
    on = "" if tree.ranks == 1 else f" on {tree.ranks} ranks"
    callbacks.say(
        f"training {tree.model.kind} for up to {tree.max_epochs} epochs{on}, seed {tree.seed}, in {folder.path}"
    )
    found, model = ranks.train(work, callbacks)
    found |= {"run": str(folder.path), "warnings": list(work.warnings)}
    if found["finished"] and tree.baseline:
        without = _baseline(work, ranks, callbacks).metrics
        found["baseline"] = {key: without[key] for key in _SOME_OF_BASELINE}
        found |= {} if without["finished"] else {"finished": False, "stopped_by": without["stopped_by"]}
    if found["finished"]:
        with closing(EventLog(folder.events)) as events:
            for text in work.warnings:
                events.write("note", text=text)
            events.write("end", **found)
        folder.write_metrics(found)
    return Run(folder.path, tree, found, model if found["finished"] else None)


def _below(work: TrainingJob, path: Path, tree: Config, ranks: Engine, callbacks: Callbacks) -> Run:
    """Train a run below another's folder, or go on with it."""
    module = copy.deepcopy(work.module) if tree.model.kind == "custom" else None
    if (path / "config.toml").is_file():
        folder = existing_folder(path)
        if folder.finished:
            return open_run(path, model=module)
        with folder.locked():
            again = TrainingJob(folder, tree, work.graph, module, resumed=True, warnings=work.warnings)
            return _run(again, ranks, callbacks)
    with new_folder(path, name=path.name) as folder:
        folder.write_config(write_toml(tree))
        return _run(TrainingJob(folder, tree, work.graph, module, warnings=work.warnings), ranks, callbacks)


def _baseline(work: TrainingJob, ranks: Engine, callbacks: Callbacks) -> Run:
    """Train a model of the same size without the graph."""
    model = work.tree.model.model_copy(update={"kind": "mlp"})
    without = work.tree.model_copy(update={"model": model, "baseline": False})
    if without.method == "lazy" and without.lazy.recipe == "frugal":  # whose models all read the graph
        without = without.model_copy(update={"method": "full"})
    return _below(work, work.folder.path / "baseline", without, ranks, callbacks)


def _each_seed(work: TrainingJob, ranks: Engine, callbacks: Callbacks) -> Run:
    """Train with one seed after another; the mean of every metric, and its deviation as ``…_std``."""
    folder, tree, runs = work.folder, work.tree, list[Run]()
    for place in range(tree.seeds):
        one = tree.model_copy(update={"seeds": 1, "seed": tree.seed + place})
        runs.append(_below(work, folder.seed(place), one, ranks, callbacks))
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
