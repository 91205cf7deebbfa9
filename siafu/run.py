"""Compose a run: load the graph, resolve the config, choose the engine, train, write the metrics.

The command line and Python both come here.
"""

import copy
import hashlib
import inspect
import os
import shlex
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from siafu import native
from siafu.callback import Callback, functions_of, with_epochs
from siafu.comm import Comm
from siafu.config import Config, GivenSettings, from_keywords, parse_toml, write_toml
from siafu.convert import as_graph
from siafu.data_warnings import data_warnings, score_warnings
from siafu.engines import (
    Engine,
    LocalEngine,
    ProcessEngine,
    RayEngine,
    TorchrunEngine,
    TrainingJob,
    partitions_folder,
    start_early,
)
from siafu.event_log import EventLog
from siafu.inference import Run, open_run, read_encoder
from siafu.inference.correct_and_smooth import SMOOTHED
from siafu.inference.ensemble import member_config, with_members
from siafu.load_graph import AnyGraph, load
from siafu.preview import AnyTask, describe, preview_task
from siafu.rank import end_jobs, follow_rank_0
from siafu.recipes.race_folder import RaceFolder, pending_race
from siafu.resolve import LoadedGraph, encode, fingerprint, resolve_engine
from siafu.results.progress import TrainingProgress, in_notebook
from siafu.results.read import across_seeds
from siafu.run_folder import RunFolder, existing_folder, new_folder
from siafu.search import race_metrics, resolve_run, run_race
from siafu.settings_page import settings_help
from siafu.signals import resume_hint
from siafu.terminal import escape_control_chars
from siafu.training.procedure import Callbacks

if TYPE_CHECKING:
    from siafu.launch.elastic import RankProcesses

_OF_ONE_SEED = ("members", SMOOTHED)  # metrics that no mean stands for
_BASELINE_METRICS = ("model", "test_score", "val_score", "epochs", "epoch_seconds")


def train(
    graph: AnyGraph | LoadedGraph | str | Path,
    *,
    model: str | nn.Module | None = None,
    out: Path | str | None = None,
    config: Mapping[str, Any] | Path | str | None = None,
    callbacks: Sequence[Callback] | Callback | Callbacks | None = None,
    verbose: bool | None = None,
    **settings: Any,
) -> Run:
    """Train a model on a graph; settings are keywords such as ``epochs=100`` or ``hidden=128``.

    With ``seeds=10`` each metric is a mean, with its standard deviation as ``…_std``.

    Args:
        graph: a graph, its name or path, or a PyG ``Data`` or ``TemporalData``, which is converted.
        model: a kind of model, or your own module of (block, x), which is trained in place.
        out: the folder of the run; by default a new one under ``runs/``.
        config: whole tables of settings, each of which must apply to the run; or the path of a TOML file, whose
            settings that do not apply are left out.
        callbacks: an instance of :class:`siafu.Callback`, or several, which are called during the run; or the inner
            ``Callbacks``, which replace the progress bar, too.
        verbose: True shows what is trained and its progress, in a notebook, on a terminal or in the standard error of a
            script; False shows nothing; None: a progress bar on a terminal or in a notebook.
        settings: settings by their keys, each of which must belong to one table only; they are listed below.
    """
    module = model if isinstance(model, nn.Module) else None
    kind = {} if model is None else {"kind": "custom" if module is not None else model}
    given = GivenSettings.of(config, from_keywords(settings), {"model": kind} if kind else {})
    return train_given(graph, given, module=module, out=out, callbacks=callbacks, verbose=verbose)


def train_given(
    graph: AnyGraph | LoadedGraph | str | Path,
    given: GivenSettings,
    *,
    module: nn.Module | None = None,
    out: Path | str | None = None,
    callbacks: Sequence[Callback] | Callback | Callbacks | None = None,
    verbose: bool | None = None,
) -> Run:
    """Train a model on a graph with settings of a file and of the user; see :func:`train`."""
    trained_on = graph.graph if isinstance(graph, LoadedGraph) else graph
    chosen = resolve_engine(given.check(), os.environ)
    _check_module(module, chosen)
    if chosen.engine == "sites":
        raise ValueError(
            'engine sites trains where the data are: run "siafu site serve" at each site and "siafu federate" here'
        )
    folder = None if out is None else Path(out)
    with _with_progress(callbacks, verbose) as shown:
        _warn_without_core()
        if chosen.engine == "torchrun":
            return _ended(_train_in_torchrun(graph, chosen, module, folder, shown, given), trained_on, shown)
        with (
            start_early(chosen) as ranks,
            _new_run(graph, chosen, module, folder, shown, given) as job,
        ):
            return _ended(_start(job, _engine(job, ranks=ranks), shown), trained_on, shown)


if train.__doc__:  # not in python -OO
    train.__doc__ = f"{inspect.cleandoc(train.__doc__)}\n\n{settings_help()}"


def resume(
    run: Path | str,
    *,
    graph: AnyGraph | None = None,
    model: nn.Module | None = None,
    callbacks: Sequence[Callback] | Callback | Callbacks | None = None,
    verbose: bool | None = None,
) -> Run:
    """Resume a run that was stopped or killed, exactly where it was; a run that has ended is opened.

    Give ``graph`` and ``model`` if the run was started with Python values for them. ``callbacks`` and ``verbose`` are
    those of :func:`train`.
    """
    folder = existing_folder(Path(run))
    if folder.finished:
        return open_run(run, model=model).with_graph(graph)
    config = parse_toml(folder.read_config())
    with (
        folder.locked(),
        resume_hint(_resume_command(folder.path, config)),
        _with_progress(callbacks, verbose) as shown,
    ):
        _warn_without_core()
        if config.engine == "torchrun":
            raise ValueError(
                f"{folder.path}: trained by a group that torchrun started; start it again with the same command and "
                f"--out {folder.path}"
            )
        with start_early(config) as ranks:
            loaded = _load_same_graph(folder, config, graph, shown)
            job = _resumed_job(folder, config, loaded, model, shown)
            return _ended(_start(job, _engine(job, ranks=ranks), shown), graph, shown)


def resume_command(run: Run) -> str:
    """Return the command, or the call, that resumes a run that was stopped."""
    return _resume_command(run.directory, run.settings)


def _resume_command(path: Path, config: Config) -> str:
    arguments = ["graph=…"] * (not config.source) + ["model=…"] * (config.model.kind == "custom")
    if config.engine == "torchrun":
        return f"the same command, and --out {shlex.quote(str(path))}"
    if arguments:
        return f"siafu.resume({str(path)!r}, {', '.join(arguments)}) in Python"
    return f"siafu resume {shlex.quote(str(path))}"


@contextmanager
def _new_run(
    graph: AnyGraph | LoadedGraph | str | Path,
    config: Config,
    module: nn.Module | None,
    out: Path | None,
    callbacks: Callbacks,
    given: GivenSettings,
) -> Iterator[TrainingJob]:
    """Load the graph, resolve the config, check that both fit, and hold the folder of a new run."""
    found = resolve_run(graph, config, module, callbacks, given.asked_keys)
    graph, resolved = found.graph, found.config
    callbacks.say(describe(graph, resolved, found.task))
    if found.choice:
        callbacks.say(found.choice)
    if unused := given.unused(resolved):
        callbacks.say(f"settings of the file that do not apply to this run, left out: {', '.join(unused)}")
    if config.train.evaluate_every == "auto" and resolved.train.scoring_interval > 1:
        callbacks.say(
            f"scores every {resolved.train.scoring_interval} epochs and after the last, so that scoring takes about "
            "a third of the time at most (train.evaluate_every)"
        )
    kinds = {each.config.model.kind for each in found.race.candidates} if found.race else set()
    kind = "auto" if len(kinds) > 1 else resolved.model.kind
    with new_folder(out, name=f"{graph.name}-{kind}-{resolved.method}") as folder:
        if found.race is not None:
            RaceFolder(folder).write_plan(found.race)
        if found.encoder is not None:  # before the config: what is resumed has it
            folder.write_encoder(found.encoder.model_dump(mode="json"))
        folder.write_config(write_toml(resolved))
        warnings = _warn(graph, found.task, callbacks)
        with resume_hint(_resume_command(folder.path, resolved)):
            yield TrainingJob(folder, resolved, graph, module, warnings=warnings, race=found.race)


def _resumed_job(
    folder: RunFolder, config: Config, graph: AnyGraph, module: nn.Module | None, callbacks: Callbacks
) -> TrainingJob:
    """Make the job of a run that was started before."""
    if config.model.kind == "custom" and module is None:
        raise ValueError(f"{folder.path}: trained a module of your own; resume it from Python with model=")
    warnings = _warn(graph, preview_task(graph, config, module), callbacks)
    return TrainingJob(
        folder, config, graph, module, resumed=True, warnings=warnings, race=pending_race(folder)
    )


def _warn(graph: AnyGraph, task: AnyTask, callbacks: Callbacks) -> tuple[str, ...]:
    """Show the warnings about a graph and its task; returns them."""
    warnings = data_warnings(graph, task)
    for text in warnings:
        callbacks.say(f"warning: {text}")
    return warnings


def _train_in_torchrun(
    graph: AnyGraph | LoadedGraph | str | Path,
    config: Config,
    module: nn.Module | None,
    out: Path | None,
    callbacks: Callbacks,
    given: GivenSettings,
) -> Run:
    """Train as one rank of a group that torchrun, Slurm or the like started: rank 0 composes, the others follow.

    A group that is started again finds its run in ``out`` and resumes it.
    """
    from siafu.launch.elastic import join

    if out is None:
        raise ValueError("engine torchrun: give --out, so that a group that is started again finds its run")
    any_threads = config.model_copy(update={"threads": 0})  # hosts may have other numbers of cores
    digest = hashlib.sha256(write_toml(any_threads).encode()).hexdigest()
    wire = {"encrypt": config.comm.encrypt, "trust_network": config.comm.trust_network}
    with join(os.environ, deadline_s=config.comm.deadline, settings=digest, **wire) as comm:
        if config.ranks not in (1, comm.world_size):
            raise ValueError(
                f"ranks is {config.ranks}, but {comm.world_size} were started; leave --ranks out"
            )
        config = config.model_copy(update={"ranks": comm.world_size})
        torch.set_num_threads(config.threads)
        if comm.rank:
            silent = Callbacks(should_stop=callbacks.should_stop, on_training=callbacks.on_training)
            metrics, model = follow_rank_0(comm, silent, module)
            return Run(Path(metrics["run"]), config, metrics, model, comm.rank)
        run = _train_as_rank_0(graph, config, module, out, callbacks, comm, given)
        end_jobs(comm, run.metrics)
        return run


def _train_as_rank_0(
    graph: AnyGraph | LoadedGraph | str | Path,
    config: Config,
    module: nn.Module | None,
    out: Path,
    callbacks: Callbacks,
    comm: Comm,
    given: GivenSettings,
) -> Run:
    """Start the run in ``out`` with the group, or resume it if it was started with the same config."""
    if not (out / "config.toml").is_file():
        with _new_run(graph, config, module, out, callbacks, given) as job:
            return _start(job, _engine(job, comm), callbacks)
    folder = existing_folder(out)
    with folder.locked():
        found = resolve_run(graph, config, module, callbacks, given.asked_keys)
        candidates = () if found.race is None else found.race.candidates
        started = parse_toml(folder.read_config())
        if write_toml(started) not in map(write_toml, (found.config, *(each.config for each in candidates))):
            raise ValueError(
                f"{folder.path}: already holds a run with other settings or other data; choose another --out"
            )
        if folder.finished:  # a rank was lost after the end
            return open_run(folder.path, model=module)
        job = _resumed_job(folder, started, found.graph, module, callbacks)
        return _start(job, _engine(job, comm), callbacks)


def _engine(
    job: TrainingJob, group: Comm | None = None, *, ranks: "deque[RankProcesses] | None" = None
) -> Engine:
    """Return the engine of a run.

    ``group`` is the group that torchrun started, on its rank 0; ``ranks`` are processes that were started before.
    """
    if job.config.engine == "local":
        return LocalEngine()
    partitions = partitions_folder(job.config, job.folder)
    if group is not None:
        return TorchrunEngine(group, partitions)
    return (
        RayEngine(partitions) if job.config.engine == "ray" else ProcessEngine(partitions, ranks or deque())
    )


def _warn_without_core() -> None:
    """Warn on standard error that the compiled core is missing; in Python no callback may be set."""
    if not native.compiled():
        print(f"siafu: {native.NOT_COMPILED}", file=sys.stderr, flush=True)


def _check_module(module: nn.Module | None, config: Config) -> None:
    """Refuse a module of the user's own that the ranks of this engine cannot train."""
    if module is None:
        return
    parameters = list(inspect.signature(module.forward).parameters)[:2]
    if type(module).__module__.startswith("torch_geometric.") or "edge_index" in parameters:
        raise ValueError(
            f"model is a {type(module).__name__}, which reads (x, edge_index); siafu.train calls a module with "
            "(block, x): choose a kind such as model='gcn', build it of layers of siafu.nn, or train it in a loop of "
            "your own with siafu.NeighborLoader"
        )
    if config.engine in ("processes", "ray"):
        raise ValueError(
            "a module of your own cannot be sent to other processes; use engine local, or torchrun with your script"
        )
    dropouts = (module for module in module.modules() if isinstance(module, nn.modules.dropout._DropoutNd))
    if config.ranks > 1 and config.engine == "local" and (dropout := next(dropouts, None)) is not None:
        raise ValueError(
            f"your module has a {type(dropout).__name__}, which draws from the one generator of torch that ranks of "
            "engine local share; use siafu.nn.dropout.Dropout, called with (rows, block.given_id), or train on one rank"
        )


@contextmanager
def _with_progress(
    callbacks: Sequence[Callback] | Callback | Callbacks | None, verbose: bool | None
) -> Iterator[Callbacks]:
    """Give the functions that a run calls: those of the user's callbacks, and progress where it is to be shown."""
    if isinstance(callbacks, Callbacks):
        yield callbacks
        return
    called = functions_of(() if callbacks is None else callbacks)
    if not (in_notebook() or sys.stderr.isatty() if verbose is None else verbose):
        yield called
        return
    with TrainingProgress() as progress:
        shown = with_epochs(called, progress.epoch, progress=progress)
        yield replace(shown, say=_say) if verbose else shown


def _say(text: str) -> None:
    """Print a line on standard error."""
    print(escape_control_chars(text), file=sys.stderr, flush=True)


def _load_same_graph(
    folder: RunFolder, config: Config, graph: AnyGraph | None, callbacks: Callbacks
) -> AnyGraph:
    """Load the graph of a run that is resumed, and check that it has not changed."""
    if graph is None:
        if not config.source:
            raise ValueError(
                f"{folder.path}: trained on a graph given in Python; resume it from there with graph="
            )
        graph = load(
            config.source, fold=config.data.fold, step=config.snapshots.step, progress=callbacks.progress
        )
    graph = as_graph(graph, fold=config.data.fold)
    graph, _, _ = encode(graph, config, read_encoder(folder))
    found = fingerprint(graph)
    if found != config.fingerprint:
        raise ValueError(
            f"{folder.path}: trained on other data: {graph.name} now has the fingerprint {found}, "
            f"but config.toml says {config.fingerprint}; put the old data back or train anew"
        )
    return graph


def _start(job: TrainingJob, engine: Engine, callbacks: Callbacks) -> Run:
    """Train a run, after its callbacks are told."""
    callbacks.on_start(job.folder.path, job.config)
    return _train(job, engine, callbacks)


def _ended(run: Run, graph: Any, callbacks: Callbacks) -> Run:
    """Return a run that remembers the graph that it was given, after its callbacks are told."""
    run = run.with_graph(graph)
    if run.rank == 0:
        callbacks.on_end(run)
    return run


def _train(job: TrainingJob, engine: Engine, callbacks: Callbacks) -> Run:
    """Train to the end or until a stop is requested, and write the metrics."""
    if job.race is not None:
        job, outcome = run_race(job, engine, callbacks)
        if not outcome["finished"]:
            return Run(job.folder.path, job.config, _unfinished(job, outcome), None)
    folder, config = job.folder, job.config
    if config.seeds > 1:
        return _train_seeds(job, engine, callbacks)
    members = _train_members(job, engine, callbacks)
    if members and not members[-1].metrics["finished"]:
        return Run(folder.path, config, members[-1].metrics | {"run": str(folder.path)}, None)
    on = "" if config.ranks == 1 else f" on {config.ranks} ranks"
    callbacks.say(
        f"averaging the outputs of {len(members)} members{on}, in {folder.path}"
        if members
        else f"training {config.model.kind} for up to {config.max_epochs} epochs{on}, seed {config.seed}, "
        f"in {folder.path}"
    )
    metrics, model = engine.train(job, callbacks)
    if members:
        metrics = with_members(metrics, members)
    warnings = [*job.warnings, *score_warnings(metrics, callbacks.say)]
    metrics |= {"run": str(folder.path), "warnings": warnings, **race_metrics(folder)}
    if metrics["finished"] and config.baseline:
        baseline = _train_baseline(job, engine, callbacks).metrics
        metrics["baseline"] = {key: baseline[key] for key in _BASELINE_METRICS}
        metrics |= {} if baseline["finished"] else {"finished": False, "stopped_by": baseline["stopped_by"]}
    if metrics["finished"]:
        with closing(EventLog(folder.events)) as events:
            for text in warnings:
                events.write("note", text=text)
            events.write("end", **metrics)
        folder.write_metrics(metrics)
    return Run(folder.path, config, metrics, model if metrics["finished"] else None)


def _unfinished(job: TrainingJob, outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a run that was stopped in its race."""
    return {"run": str(job.folder.path), "epochs": 0, "warnings": list(job.warnings), **outcome}


def _train_within(job: TrainingJob, path: Path, config: Config, engine: Engine, callbacks: Callbacks) -> Run:
    """Train a run in a folder within that of another run, or resume it."""
    module = copy.deepcopy(job.module) if config.model.kind == "custom" else None
    if (path / "config.toml").is_file():
        folder = existing_folder(path)
        if folder.finished:
            return open_run(path, model=module)
        with folder.locked():
            inner = TrainingJob(folder, config, job.graph, module, resumed=True, warnings=job.warnings)
            return _train(inner, engine, callbacks)
    with new_folder(path, name=path.name) as folder:
        if (encoder := job.folder.read_encoder()) is not None:
            folder.write_encoder(encoder)
        folder.write_config(write_toml(config))
        inner = TrainingJob(folder, config, job.graph, module, warnings=job.warnings)
        return _train(inner, engine, callbacks)


def _train_baseline(job: TrainingJob, engine: Engine, callbacks: Callbacks) -> Run:
    """Train an MLP of the same size, which does not see the graph."""
    model = job.config.model.model_copy(update={"kind": "mlp"})
    smooth = job.config.correct_and_smooth.model_copy(update={"enabled": False})  # it would see the graph
    update = {"model": model, "baseline": False, "correct_and_smooth": smooth}
    config = job.config.model_copy(update=update)
    if config.method == "lazy" and config.lazy.recipe == "frugal":  # its models all read the graph
        config = config.model_copy(update={"method": "full"})
    return _train_within(job, job.folder.path / "baseline", config, engine, callbacks)


def _train_members(job: TrainingJob, engine: Engine, callbacks: Callbacks) -> list[Run]:
    """Train the members of an ensemble one after another, up to one that is stopped; none if it has one member."""
    runs, count = list[Run](), job.config.train.ensemble
    for place in range(count if count > 1 else 0):
        config = member_config(job.config, place)
        runs.append(_train_within(job, job.folder.member(place), config, engine, callbacks))
        if not runs[-1].metrics["finished"]:
            break
    return runs


def _train_seeds(job: TrainingJob, engine: Engine, callbacks: Callbacks) -> Run:
    """Train with one seed after another; each metric is a mean, with its standard deviation as ``…_std``."""
    folder, config, runs = job.folder, job.config, list[Run]()
    for place in range(config.seeds):
        one_seed = config.model_copy(update={"seeds": 1, "seed": config.seed + place})
        runs.append(_train_within(job, folder.seed(place), one_seed, engine, callbacks))
        if not runs[-1].metrics["finished"]:
            return Run(folder.path, config, runs[-1].metrics | {"run": str(folder.path)}, None)
    metrics = _mean_metrics([run.metrics for run in runs])
    if config.baseline:
        metrics["baseline"] = _mean_metrics([run.metrics["baseline"] for run in runs])
    metrics |= {
        "run": str(folder.path),
        "seeds": config.seeds,
        "runs": [str(run.directory) for run in runs],
        **race_metrics(folder),
    }
    folder.write_metrics(metrics)
    return Run(folder.path, config, metrics, None)


def _mean_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    spread = across_seeds(metrics)
    means = {key: value.mean for key, value in spread.items()}
    shared = {key: value for key, value in metrics[0].items() if key not in _OF_ONE_SEED}
    return shared | means | {f"{key}_std": value.std for key, value in spread.items()}
