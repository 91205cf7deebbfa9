"""Import a dynamic graph from event files into a store."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from siafu.array_checks import check_width
from siafu.data.builtin import transactions
from siafu.data.importing.column_roles import Columns, column_roles, label_description
from siafu.data.importing.event_sort import EventBuffer, write_log
from siafu.data.importing.events import EventSource, array_events, table_events
from siafu.data.importing.features import ArrayFeatures, FeatureFormat, array_features
from siafu.data.importing.file_location import format_of
from siafu.data.importing.graph import (
    fill,
    import_features,
    read_ids,
    read_labels,
    refuse_orphan_labels,
    retry_id_parsing,
)
from siafu.data.importing.inputs import (
    IdParsing,
    ImportRequest,
    Inputs,
    open_features,
    open_label_table,
    scalar,
)
from siafu.data.importing.labels import LabelKind, Labels, check_label_kind, checked_labels, labels_of_nodes
from siafu.data.importing.limits import DEFAULT, Limits
from siafu.data.importing.node_ids import IdMap, RowNumbers
from siafu.data.importing.nodes import NodeTable, NodeValues
from siafu.data.importing.numpy_files import NpyFile, open_npy, unpack_npz
from siafu.data.temporal import PUBLIC_SETS, read_temporal
from siafu.data.transactions import CLASS_NAMES, PROTOCOL, Transactions
from siafu.dynamic import Protocol
from siafu.event_log import Progress, no_progress
from siafu.store import DynamicStore, DynamicWriter, write_dynamic
from siafu.store.node_names import names_to_arrays

_CHUNK_VALUES = 1 << 22
_NPZ = ("src", "dst", "t", "w", "edge_y", "x", "y", "num_nodes", "undirected", "step")


@dataclass(frozen=True)
class EventInputs:
    """The opened inputs of an import of events.

    Attributes:
        inputs: events, features of nodes that never change, and labels that come as a table.
        events: the events, which ``inputs`` knows as edges.
        x: features by step, or None.
        y: labels or targets that came as an array, or None.
        undirected: whether the file says that events hold in both directions.
        step: the length of a step, as the file says it, or None.
    """

    inputs: Inputs
    events: EventSource
    x: NpyFile | None = None
    y: NpyFile | None = None
    undirected: bool = False
    step: float | None = None


def import_events(
    out: str | Path,
    *,
    events: str | Path,
    step: float | None = None,
    steps: int | None = None,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    undirected: bool = False,
    name: str | None = None,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda _: None,
    label_kind: LabelKind | None = None,
    limits: Limits = DEFAULT,
) -> DynamicStore:
    """Import a graph that changes over time into a new store; on any failure nothing is left behind.

    Events may come in any order; those of a step stay as they came. A step without an event is kept. Ids are parsed as
    :func:`siafu.data.importing.import_graph` reads those of edges. Memory does not grow with the number of events.

    Args:
        out: the folder to create.
        events: columns ``src``, ``dst``, ``t`` and, where there are any, ``w`` (weight) and ``label`` (a class from
            0, -1 for none), else the first three and maybe a fourth for weights, in a Parquet file, a folder of
            such, ``.csv`` or ``.tsv`` (also ``.gz``); or an ``.npz`` in the layout of :mod:`siafu.data.temporal`.
            Times are numbers, or time stamps, which become seconds since 1970. ``transactions:nodes=1000000,…``
            is made on the way.
        step: the length of a step in units of the times; the last step may be shorter.
        steps: how many steps of equal length to make, instead. Without either each distinct time is a step, if
            there are at most 1000.
        features: as for :func:`siafu.data.importing.import_graph`, or a ``.npy`` of (T, N, F), a row a node and step.
        labels: as there; or a ``.npy`` of classes (N,) or (T, N), or of real numbers (T, N) or (T, N, K), a row a step.
        undirected: whether events hold in both directions.
        name: what to call the graph; None for the name of the folder.
        progress: callback for progress.
        say: callback for notes: events out of order, steps that are empty or shorter than the others.
        label_kind: as there.
        limits: on sizes that files claim and unpack to.
    """
    check_label_kind(label_kind)
    if step is not None and steps is not None:
        raise ValueError(
            f"both a step ({step}) and a number of steps ({steps}) were given; expected one of them"
        )
    if made := transactions(str(events)):
        if any(value is not None for value in (step, steps, features, labels)):
            raise ValueError(
                f"{events}: its steps, features and labels are made with it; leave those options out"
            )
        return _write_transactions(
            made, out, name=name, undirected=undirected, spec=str(events), progress=progress
        )
    request = ImportRequest((Path(events),), _path(features), _path(labels), None, label_kind, limits)
    if _is_known(request):
        graph = read_temporal(request.edge_path, step=step, steps=steps)
        graph = replace(graph, name=name or Path(out).name, undirected=graph.undirected or undirected)
        return write_dynamic(graph, out, provenance=request.sources())
    target = _Target(Path(out), name or Path(out).name, undirected, step, steps)
    return retry_id_parsing(lambda parsing: _import_as(parsing, request, target, progress, say))


@dataclass(frozen=True)
class _Target:
    """The store to write: its path and name, edge direction, and how time is cut."""

    out: Path
    name: str
    undirected: bool
    step: float | None
    steps: int | None


def _import_as(
    parsing: IdParsing,
    request: ImportRequest,
    target: _Target,
    progress: Progress,
    say: Callable[[str], None],
) -> DynamicStore:
    """Import with one way of parsing ids."""
    with DynamicWriter(target.out) as store:
        found = _open(request, store.scratch)
        inputs, ids = read_ids(found.inputs, request, parsing)
        found = replace(found, inputs=inputs)
        import_features(found.inputs, ids, store, FeatureFormat(layout="dense"), progress)
        labelled = read_labels(found.inputs, ids, progress)
        spool, known = fill(
            lambda: EventBuffer(
                store.scratch, weighted=found.events.weighted, labelled=found.events.labelled
            ),
            found.inputs,
            ids,
            progress,
        )
        refuse_orphan_labels(found.inputs, labelled, spool)
        length = found.step if target.step is None and target.steps is None else target.step
        cut = spool.cut(step=length, steps=target.steps, name=str(request.edge_path))
        counts = write_log(spool, cut, store, progress)
        _report_irregularities(spool, counts, length=length, say=say)
        if found.x is not None:
            _write_steps(found.x, store, cut.num_steps, known.count)
        labels = _write_labels(found, labelled, store, cut.num_steps, known.count, request.label_kind)
        if isinstance(known, IdMap):
            for array, values in names_to_arrays(known.names()).items():
                store.add(array, values)
        return store.finish(
            name=target.name,
            num_nodes=known.count,
            undirected=target.undirected or found.undirected,
            protocol=Protocol(step=cut.length),
            class_names=None if labels is None else labels.class_names,
            sources={"events" if what == "edges" else what: path for what, path in request.sources().items()},
            columns=_columns(found, known, labels),
        )


def _columns(found: EventInputs, ids: RowNumbers | IdMap, labels: Labels | None) -> Columns:
    """Return the role of each column and array."""
    columns = column_roles(found.inputs, ids, events=True)
    if found.x is not None:
        columns["features"] = {"x": "an array, a row a step and node"}
    if labels is not None:
        columns.setdefault("labels", {"y": "an array"})["kind"] = label_description(labels.y)
    return columns


def _write_transactions(
    made: Transactions, out: str | Path, *, name: str | None, undirected: bool, spec: str, progress: Progress
) -> DynamicStore:
    """Generate and write payments, a step at a time."""
    with DynamicWriter(out) as store:
        src, dst, weight = (
            store.array("src", "int32"),
            store.array("dst", "int32"),
            store.array("weight", "float32"),
        )
        for payments in made.by_step():
            src.append(payments.src)
            dst.append(payments.dst)
            weight.append(payments.weight)
            progress("events", src.num_rows, made.events)
        store.add("step_ptr", made.step_ptr)
        store.add("step_time", np.arange(made.steps, dtype=np.float64))
        store.add("y", made.labels())
        if (x := made.inputs()) is not None:
            store.add("x", x)
        return store.finish(
            name=name or Path(out).name,
            num_nodes=made.nodes,
            undirected=undirected,
            protocol=PROTOCOL,
            class_names=CLASS_NAMES,
            sources={"events": spec},
        )


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _is_known(request: ImportRequest) -> bool:
    """Return whether the file is a public data set, whose protocol is known."""
    alone = request.features is None and request.labels is None
    return (
        alone
        and request.edge_path.suffix == ".npz"
        and request.edge_path.stem in PUBLIC_SETS
        and request.edge_path.is_file()
    )


def _open(request: ImportRequest, scratch: Path) -> EventInputs:
    found = _open_events(request, scratch)
    inputs = found.inputs
    if request.features is not None:
        array = open_npy(request.features) if format_of(request.features, "features") == "npy" else None
        if array is not None and len(array.shape) == 3:
            found = replace(found, x=array)
        else:
            inputs = replace(inputs, features=open_features(request.features, scratch, request.limits))
    if request.labels is not None:
        if format_of(request.labels, "labels") == "npy":
            found = replace(found, y=open_npy(request.labels))
        else:
            inputs = replace(inputs, labels=open_label_table(request.labels, request.limits))
    return replace(found, inputs=_counted(replace(found, inputs=inputs)))


def _open_events(request: ImportRequest, scratch: Path) -> EventInputs:
    path = request.edge_path
    match format_of(path, "events"):
        case "npz":
            return _open_npz(request, unpack_npz(path, scratch / "npz", _NPZ, request.limits))
        case "npy" | "ogb":
            raise ValueError(f"events: {path} is no table of events; expected .parquet, .csv, .tsv or .npz")
    events = table_events(path, request.limits)
    return EventInputs(Inputs(events), events)


def _open_npz(request: ImportRequest, arrays: dict[str, NpyFile]) -> EventInputs:
    path = request.edge_path
    events = array_events(path, arrays)
    x = arrays.get("x") if request.features is None else None
    counted = (scalar(arrays["num_nodes"]), f"{path / 'num_nodes'}") if "num_nodes" in arrays else None
    features: ArrayFeatures | None = None
    if x is not None and len(x.shape) != 3:
        features, x = array_features(x), None
    return EventInputs(
        Inputs(events, features, num_nodes=counted),
        events,
        x=x,
        y=arrays.get("y") if request.labels is None else None,
        undirected="undirected" in arrays and scalar(arrays["undirected"]) == 1,
        step=float(arrays["step"].read()) if "step" in arrays else None,
    )


def _counted(found: EventInputs) -> Inputs:
    """Return the inputs, with the number of nodes taken from arrays by step."""
    for array in (found.x, found.y):
        if array is not None and found.inputs.num_nodes is None and array.shape:
            count = array.shape[0] if len(array.shape) == 1 else array.shape[1]
            return replace(found.inputs, num_nodes=(count, str(array.shown)))
    return found.inputs


def _write_steps(x: NpyFile, store: DynamicWriter, num_steps: int, num_nodes: int) -> None:
    """Write features by step, some steps at a time."""
    if x.shape[:2] != (num_steps, num_nodes):
        raise ValueError(
            f"{x.shown} is {x.shape}; expected ({num_steps}, {num_nodes}, F), a row a step and node"
        )
    check_width(x.shape, str(x.shown))
    array = store.array("x", "float32", row=x.shape[1:])
    size = max(1, _CHUNK_VALUES // max(1, x.shape[1] * x.shape[2]))
    for start in range(0, num_steps, size):
        rows = x.read(slice(start, start + size)).astype(np.float32)
        if not np.isfinite(rows).all():
            step, node, column = np.argwhere(~np.isfinite(rows))[0]
            raise ValueError(
                f"{x.shown}: step {start + step}, row {node}, column {column} is not a finite number"
            )
        array.append(rows)


def _write_labels(
    found: EventInputs,
    labelled: NodeValues | None,
    store: DynamicWriter,
    num_steps: int,
    num_nodes: int,
    kind: LabelKind | None,
) -> Labels | None:
    """Write the labels of nodes, from an array or a table, and return them."""
    if labelled is not None:
        assert isinstance(found.inputs.labels, NodeTable)
        table = labels_of_nodes(labelled, found.inputs.labels, num_nodes, kind)
        _check_labels(table.y, str(found.inputs.labels.path), num_steps, num_nodes)
        store.add("y", table.y)
        return table
    if found.y is not None:
        y, shown = found.y.read(), str(found.y.shown)
        plain = checked_labels(y.reshape(-1), lambda row: f"{shown}: value {row}", kind).reshape(y.shape)
        _check_labels(plain, shown, num_steps, num_nodes)
        store.add("y", plain)
        return Labels(plain, None)
    return None


def _check_labels(y: np.ndarray, shown: str, num_steps: int, num_nodes: int) -> None:
    by_step = y.shape[:2] == (num_steps, num_nodes)
    fits = (
        by_step and y.ndim <= 3
        if y.dtype.kind == "f"
        else y.shape == (num_nodes,) or (by_step and y.ndim == 2)
    )
    if not fits or y.dtype == np.uint8:
        raise ValueError(
            f"{shown} is {y.shape} {y.dtype}; expected classes, ({num_nodes},) or ({num_steps}, {num_nodes}), or real "
            f"numbers, ({num_steps}, {num_nodes}) or ({num_steps}, {num_nodes}, K): a row a step"
        )


def _report_irregularities(
    spool: EventBuffer, counts: np.ndarray, *, length: float | None, say: Callable[[str], None]
) -> None:
    """Report late events, empty steps and an uneven last step."""
    if spool.num_late:
        say(
            f"{spool.num_late:,} of {spool.num_edges:,} events come after one of a later time; sorted by step"
        )
    if empty := int((counts == 0).sum()):
        say(f"{empty:,} of {counts.size:,} steps have no event; they are kept")
    span = 0 if spool.first is None else spool.last - spool.first
    if length is not None and span > length and span % length:
        say(
            f"steps of {length:g} do not divide the span of {span:g}; the last one is shorter than the others"
        )
