"""A graph from files into a store."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

from siafu.data.importing.column_roles import column_roles, label_description
from siafu.data.importing.edge_sort import EdgeBuffer, write_csr
from siafu.data.importing.external_sort import DiskBuffer
from siafu.data.importing.features import FeatureDType, TableFeatures, write_features
from siafu.data.importing.inputs import IdParsing, ImportRequest, Inputs, open_inputs
from siafu.data.importing.labels import LabelKind, Labels, check_label_kind, labels_of_nodes
from siafu.data.importing.limits import DEFAULT, Limits
from siafu.data.importing.node_ids import IdMap, InferredRowNumbers, RowNumbers, SparseIdsError
from siafu.data.importing.node_split import masks_of_nodes
from siafu.data.importing.nodes import NodeTable, NodeValues, read_nodes
from siafu.data.importing.text_ids import TextIdsError
from siafu.event_log import Progress, no_progress
from siafu.store import Store, StoreWriter
from siafu.store.node_names import names_to_arrays
from siafu.store.splits import check_disjoint
from siafu.store.writer import ArrayFolderWriter
from siafu.user_input import MAX_NODES

S = TypeVar("S", bound=DiskBuffer)
T = TypeVar("T")


def import_graph(
    out: str | Path,
    *,
    edges: str | Path,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    split: str | Path | None = None,
    undirected: bool = False,
    name: str | None = None,
    progress: Progress = no_progress,
    feature_dtype: FeatureDType = "float32",
    label_kind: LabelKind | None = None,
    limits: Limits = DEFAULT,
) -> Store:
    """Import a graph from files into a new store; on any failure nothing is left behind.

    Ids are row numbers beside features (or, without features, labels or a split) that come as arrays. They
    are the user's own, integers or strings, beside a table of features or labels with an id column, or where
    edges have strings: then nodes are numbered by first appearance in the features, the labels, the edges,
    and the ids
        are kept
    as ``node_names``. Integers in edges alone are row numbers if at least a quarter of the numbers up to the
    largest is in use, else the user's own. In a CSV file a first line that names a column that is looked for,
    or whose leading ids are not all integers, is a header; so string ids need a header. Ids in text are integers if
    all are, also where they are written as floats (``2.0`` is ``2``). Else they keep their text, in every table: one
    id such as ``A7`` or ``007`` is enough. A row number may have zeros in front.

    Args:
        out: the folder to make.
        edges: columns ``src`` and ``dst``, else the first two, and ``weight`` if there is one, in a Parquet
            file, a folder of such, ``.csv`` or ``.tsv`` (also ``.gz``); a ``.npy`` of integers, (E, 2) or (2,
            E); an ``.npz`` with ``edge_index`` and, if not given apart, ``x`` (or ``x_indptr``,
            ``x_indices``, ``x_data``, ``x_shape``), ``y``, ``train_mask``, ``val_mask``, ``test_mask``; or
            the folder of an OGB node-property data set, with its features, labels and split.
        features: ``.npy`` (N, F); a table with an id column (``id``, else the first) and numbers; or a CSR
            matrix as ``scipy.sparse.save_npz`` writes it.
        labels: ``.npy``, or a table with an id column and ``label`` (else all other columns): classes from 0
            with -1 for none, words, several columns of 0 and 1, or real numbers to regress on.
        split: ``.npy`` of 0 train, 1 validation, 2 test, 3 none, (N,) or (N, S); a table with an id column
            and ``split``, which may also be words; or, with an OGB folder, the folder of one of its schemes.
        undirected: whether to add the reverse of each edge and drop repeated edges (the first weight is
            kept).
        name: what to call the graph; None for the name of the folder.
        progress: told how far it is.
        feature_dtype: how to keep the features.
        label_kind: what labels are: ``class``, ``multilabel`` or ``number``. Without it, one column of words or of
            whole numbers, also if written as floats, is of classes; more than 50 classes of fewer than 4 nodes each
            are refused.
        limits: on what files claim and unpack to.

    Which columns were read as what stands in ``manifest.provenance.columns`` of the store.
    """
    check_label_kind(label_kind)
    if feature_dtype not in get_args(FeatureDType):
        raise ValueError(f"feature_dtype is {feature_dtype!r}; expected one of {get_args(FeatureDType)}")
    given = ImportRequest(*(Path(edges), _path(features), _path(labels), _path(split)), label_kind, limits)
    target = _Target(Path(out), name or Path(out).name, undirected, feature_dtype)
    return with_readings(lambda reading: _import_as(reading, given, target, progress))


def with_readings(read: Callable[[IdParsing], T]) -> T:
    """Import with ids as integers, and again from the start where a text turns out to need another reading."""
    reading = IdParsing()
    while True:
        try:
            return read(reading)
        except TextIdsError as error:
            if reading.text:
                raise
            reading = reading.after(error)


@dataclass(frozen=True)
class _Target:
    """The store to make: its place, its name, whether edges hold both ways, and how features are kept."""

    out: Path
    name: str
    undirected: bool
    feature_dtype: FeatureDType


def _import_as(reading: IdParsing, given: ImportRequest, target: _Target, progress: Progress) -> Store:
    """Import with ids that are read in one way."""
    with StoreWriter(target.out) as store:
        inputs, ids = read_ids(open_inputs(given, store.scratch), given, reading)
        import_features(inputs, ids, store, target.feature_dtype, progress)
        labelled = read_labels(inputs, ids, progress)
        known, ids = _import_edges(inputs, ids, store, target.undirected, progress)
        refuse_lone_labels(inputs, labelled, known)
        labels = import_labels(inputs, labelled, ids.count, store, given.label_kind)
        _import_split(inputs, ids, store, progress)
        if isinstance(ids, IdMap):
            for array, values in names_to_arrays(ids.names()).items():
                store.add(array, values)
        columns = column_roles(inputs, ids)
        if labels is not None:
            columns["labels"]["kind"] = label_description(labels.y)
        return store.finish(
            name=target.name,
            undirected=target.undirected or inputs.both_directions,
            class_names=None if labels is None else labels.class_names,
            sources=given.sources(),
            columns=columns,
        )


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def read_ids(
    inputs: Inputs, given: ImportRequest, reading: IdParsing
) -> tuple[Inputs, RowNumbers | InferredRowNumbers | IdMap]:
    """The inputs, whose ids are read alike, and what knows the row of each id."""
    ids = ids_for(inputs, given)
    if isinstance(ids, RowNumbers):  # zeros in front of a row number change nothing
        return inputs, ids
    inputs = inputs.read_ids(reading)
    return inputs, ids_for(inputs, given)


def ids_for(inputs: Inputs, given: ImportRequest) -> RowNumbers | InferredRowNumbers | IdMap:
    """What knows the row of each id: see :func:`import_graph`."""
    counted = inputs.counted(given)
    if counted is not None:
        count, by = counted
        if not 1 <= count <= MAX_NODES:
            raise ValueError(f"{by} counts {count} nodes; expected 1 to {MAX_NODES}")
        if inputs.bare_count:
            given.limits.check_nodes(count, by, inputs.edges.most_edges)
        return RowNumbers(count, by)
    if (
        inputs.edges.strings
        or isinstance(inputs.features, TableFeatures)
        or isinstance(inputs.labels, NodeTable)
    ):
        return IdMap(strings=inputs.strings)
    return InferredRowNumbers(inputs.edges.most_edges)


def import_features(
    inputs: Inputs,
    ids: RowNumbers | InferredRowNumbers | IdMap,
    store: ArrayFolderWriter,
    dtype: FeatureDType,
    progress: Progress,
) -> None:
    """Write the features, a row a node; where they name the nodes, no others may come."""
    if inputs.features is None:
        return
    new_ids = ids if isinstance(ids, IdMap) else None
    rows = write_features(inputs.features, store, new_ids, dtype, progress)
    if new_ids is not None:
        new_ids.closed_by = str(inputs.features.path)
    if rows != ids.count:
        by = ids.counted_by if isinstance(ids, RowNumbers) else "the ids"
        raise ValueError(
            f"{inputs.features.path} has {rows} rows, but {by} counts {ids.count} nodes; expected as many"
        )


def read_labels(
    inputs: Inputs, ids: RowNumbers | InferredRowNumbers | IdMap, progress: Progress
) -> NodeValues | None:
    """Read a table of labels; it comes before the edges, since it may be what names the nodes."""
    if not isinstance(inputs.labels, NodeTable):
        return None
    return read_nodes(inputs.labels, ids, label="labels", progress=progress)


def _import_edges(
    inputs: Inputs,
    ids: RowNumbers | InferredRowNumbers | IdMap,
    store: StoreWriter,
    undirected: bool,
    progress: Progress,
) -> tuple[DiskBuffer, RowNumbers | IdMap]:
    """Write the edges; returns what is known of them, and the ids of all nodes."""
    spool, known = fill(
        lambda: EdgeBuffer(store.scratch, weighted=inputs.edges.weighted, undirected=undirected),
        inputs,
        ids,
        progress,
    )
    write_csr(spool, store, num_nodes=known.count, progress=progress)
    return spool, known


def fill(
    make: Callable[[], S], inputs: Inputs, ids: RowNumbers | InferredRowNumbers | IdMap, progress: Progress
) -> tuple[S, RowNumbers | IdMap]:
    """Write down the edges of the inputs; returns them, and the ids of all nodes. It may take a second reading."""
    path = str(inputs.edges.path)
    spool = make()
    try:
        spool.fill(inputs.edges, ids, progress)
        if isinstance(ids, InferredRowNumbers):
            ids = ids.settled(path)
    except SparseIdsError:
        ids = IdMap(strings=False)
        spool = make()
        spool.fill(inputs.edges, ids, progress)
    if isinstance(ids, IdMap) and ids.closed_by is None:
        ids.closed_by = path
    assert not isinstance(ids, InferredRowNumbers)
    return spool, ids


def refuse_lone_labels(inputs: Inputs, labelled: NodeValues | None, edges: DiskBuffer) -> None:
    """Refuse a label whose id nothing else has: it is a slip of the pen more likely than a node."""
    if labelled is None or inputs.features is not None or inputs.num_nodes is not None:
        return
    assert isinstance(inputs.labels, NodeTable)
    touched = np.zeros(int(labelled.rows.max()) + 1, dtype=bool)
    known = min(touched.size, edges.touched.size)
    touched[:known] = edges.touched[:known]
    lone = ~touched[labelled.rows]
    if lone.any():
        row = int(lone.argmax())
        raise ValueError(
            f"{labelled.at(row)}, column {inputs.labels.id_column!r}: no edge in {inputs.edges.path} names "
            "this node; give it features, or drop the row"
        )


def import_labels(
    inputs: Inputs,
    labelled: NodeValues | None,
    num_nodes: int,
    store: ArrayFolderWriter,
    kind: LabelKind | None,
) -> Labels | None:
    """Write the labels, and return them."""
    if inputs.labels is None:
        return None
    if isinstance(inputs.labels, Labels):
        found = inputs.labels
    else:
        assert labelled is not None
        found = labels_of_nodes(labelled, inputs.labels, num_nodes, kind)
    if len(found.y) != num_nodes:
        raise ValueError(f"labels: {len(found.y)} rows, but there are {num_nodes} nodes; expected as many")
    store.add("y", found.y)
    return found


def _import_split(inputs: Inputs, ids: RowNumbers | IdMap, store: StoreWriter, progress: Progress) -> None:
    if inputs.split is None:
        return
    if isinstance(inputs.split, NodeTable):
        values = read_nodes(inputs.split, ids, label="split", progress=progress)
        masks = masks_of_nodes(values, inputs.split, ids.count)
    else:
        masks = inputs.split
    check_disjoint(masks, "split")
    for name, mask in masks.items():
        if len(mask) != ids.count:
            raise ValueError(f"split: {len(mask)} rows, but there are {ids.count} nodes; expected as many")
        store.add(name, mask)
