"""Load the graph of a run and resolve its config: defaults that depend on the machine or the graph become values."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from siafu.config import Config, build, check_applying, without_unused
from siafu.convert import as_graph
from siafu.cores import default_threads
from siafu.data.columns import Encoder, encode_graph
from siafu.data.loading import is_store
from siafu.dynamic import DynamicGraph
from siafu.event_log import Progress
from siafu.load_graph import AnyGraph, load
from siafu.machine import usable_memory_bytes
from siafu.methods import METHODS
from siafu.nn.config import TEMPORAL
from siafu.partition.assign import resolve
from siafu.training import inputs
from siafu.training.scoring_interval import scoring_interval


def resolve_engine(config: Config, environ: Mapping[str, str]) -> Config:
    """Resolve the settings that depend on the machine alone: ``engine`` auto, and ``threads`` 0."""
    engine = config.engine
    if engine == "auto":
        engine = "local" if config.ranks == 1 else "processes"
    default = default_threads(environ, ranks=config.ranks, torch_threads=torch.get_num_threads())
    return config.model_copy(update={"engine": engine, "threads": config.threads or default})


class LoadedGraph(NamedTuple):
    """A graph that was loaded before, for several runs: the graph, and its source as a config records it."""

    graph: AnyGraph
    source: str


def load_source(
    graph: AnyGraph | LoadedGraph | str | Path, config: Config, progress: Progress
) -> tuple[AnyGraph, str]:
    """Load the graph that the user gave or named; returns it and its source, "" for a graph given in Python."""
    if isinstance(graph, LoadedGraph):
        return graph
    if not isinstance(graph, str | Path):
        return as_graph(graph, fold=config.data.fold), ""
    path = Path(graph).expanduser()
    loaded = load(graph, fold=config.data.fold, step=config.snapshots.step, progress=progress)
    on_disk = path.is_file() or is_store(path)
    return loaded, str(path.absolute()) if on_disk else str(
        graph
    )  # absolute: a run is resumed from any folder


def encode(
    graph: AnyGraph, config: Config, encoder: Encoder | None = None
) -> tuple[AnyGraph, Config, Encoder | None]:
    """Encode the typed columns of a graph as its features, by statistics of the training nodes if not by ``encoder``.

    Encoded features are scaled, so ``data.normalize`` becomes none; another value is refused.
    """
    if isinstance(graph, DynamicGraph) or graph.columns is None:
        return graph, config, None
    if config.data.normalize not in ("auto", "none"):
        raise ValueError(
            f"{graph.name}: data.normalize is {config.data.normalize}, but its features are columns, which their "
            "encoders scale; leave data.normalize out (a schema sets the scale of a column: siafu import --schema)"
        )
    encoded, fitted = encode_graph(graph, encoder)
    data = config.data.model_copy(update={"normalize": "none"})
    return encoded, config.model_copy(update={"data": data}), fitted


def resolve_for_graph(config: Config, graph: AnyGraph, asked: Iterable[str] = ()) -> Config:
    """Resolve the method, the task and the protocol's settings, and leave out settings that do not apply.

    A method that cannot train on such a graph is refused, and so is a setting in ``asked`` that does not apply.
    """
    if isinstance(graph, DynamicGraph):
        config = _resolve_dynamic(config, graph)
    elif METHODS[config.method].over_time:
        raise ValueError(
            f"{graph.name}: method snapshots trains on graphs that change over time, and this one does not; use method "
            "full, or import events with a time each (siafu import --events)"
        )
    check_applying(config, asked)
    return without_unused(config)


def resolve_config(config: Config, graph: AnyGraph, source: str) -> Config:
    """Resolve the settings that depend on the data of the graph."""
    known = {"source": source, "fingerprint": fingerprint(graph), "class_names": graph.class_names or ()}
    if isinstance(graph, DynamicGraph):
        return config.model_copy(update=known)
    memory_bytes = usable_memory_bytes() if METHODS[config.method].streams_inputs(config) else None
    return config.model_copy(
        update={
            "data": inputs.resolve(
                config.data,
                graph,
                memory_bytes=memory_bytes,
                ranks=config.ranks,
                reads_sparse=METHODS[config.method].reads_sparse_inputs(config),
            ),
            "partition": resolve(config.partition, graph, parts=config.ranks),
            **known,
        }
    )


def resolve_scoring(config: Config, graph: AnyGraph, task: Any) -> Config:
    """Resolve ``train.evaluate_every`` auto by the work of a run's task."""
    if config.train.evaluate_every != "auto":
        return config
    work = METHODS[config.method].epoch_work(config, graph, task)
    every = 1 if work is None else scoring_interval(work, config.train.epochs)
    return config.model_copy(update={"train": config.train.model_copy(update={"evaluate_every": every})})


def fingerprint(graph: AnyGraph) -> str:
    """Compute the checksum of everything that a run reads of a graph."""
    return graph.fingerprint if isinstance(graph, DynamicGraph) else inputs.fingerprint(graph)


def _resolve_dynamic(config: Config, graph: DynamicGraph) -> Config:
    """Take settings that the user did not give from the protocol of a dynamic graph."""
    given = config.model_dump(exclude_unset=True)
    if given.get("method", "snapshots") != "snapshots":
        raise ValueError(
            f"{graph.name}: changes over time, which method {config.method} does not know of; use method snapshots"
        )
    protocol = graph.protocol
    defaults = {
        "method": "snapshots",
        "task": _default_task(graph),
        "snapshots": {
            "step": protocol.step,
            "edge_life": protocol.edge_life,
            "window": protocol.window,
        },
        "link": {"negatives": protocol.negatives},
    }
    resolved = build(METHODS["snapshots"].defaults, defaults, given)
    if resolved.model.kind not in TEMPORAL:
        raise ValueError(
            f"model.kind is {resolved.model.kind}, which knows no time; {graph.name} changes over time: choose one of "
            f"{', '.join(TEMPORAL)}"
        )
    return resolved


def _default_task(graph: DynamicGraph) -> str:
    """Return the task that the protocol names, or the one that the graph has labels for."""
    task = graph.protocol.task or ("link" if graph.y is None else "node")
    return "node" if task == "regression" else task
