"""Import a static graph from files into a store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from siafu.columns import ColumnType
from siafu.data.columns.kinds import Found
from siafu.data.columns.schema import EdgeSchema, NodeSchema, TableSchema, schema_to_toml
from siafu.data.importing.column_roles import column_roles, label_description
from siafu.data.importing.edge_columns import EdgeColumns
from siafu.data.importing.edge_sort import Combine, EdgeBuffer, write_csr
from siafu.data.importing.edges import EdgeSource, TableEdges
from siafu.data.importing.external_sort import DiskBuffer
from siafu.data.importing.features import (
    FeatureDType,
    FeatureFormat,
    FeatureLayout,
    TableFeatures,
    write_features,
)
from siafu.data.importing.inputs import IdParsing, ImportRequest, Inputs, open_inputs, open_nodes
from siafu.data.importing.labels import LabelKind, Labels, check_label_kind, labels_of_nodes
from siafu.data.importing.limits import DEFAULT, Limits
from siafu.data.importing.node_columns import find_kinds, write_node_columns
from siafu.data.importing.node_ids import IdMap, InferredRowNumbers, RowNumbers, SparseIdsError
from siafu.data.importing.node_masks import SplitShares, import_split, read_split_option
from siafu.data.importing.nodes import NodeTable, NodeValues, read_nodes
from siafu.data.importing.plausibility import refuse_node_rows
from siafu.data.importing.tables import Table, TableLike
from siafu.data.importing.text_ids import TextIdsError
from siafu.event_log import Progress, no_progress
from siafu.store import Store, StoreWriter
from siafu.store.node_names import names_to_arrays
from siafu.store.writer import ArrayFolderWriter
from siafu.user_input import MAX_NODES

S = TypeVar("S", bound=DiskBuffer)
T = TypeVar("T")
Given = str | Path | Table | Sequence[str | Path | Table]


def import_graph(
    out: str | Path,
    *,
    edges: Given,
    nodes: Given | None = None,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    split: str | Path | None = None,
    schema: TableSchema | None = None,
    schema_out: str | Path | None = None,
    combine: Combine | None = None,
    undirected: bool = False,
    split_seed: int = 0,
    name: str | None = None,
    progress: Progress = no_progress,
    say: Callable[[str], None] = lambda _: None,
    feature_dtype: FeatureDType = "float32",
    feature_layout: FeatureLayout = "auto",
    label_kind: LabelKind | None = None,
    limits: Limits = DEFAULT,
) -> Store:
    """Import a graph from files into a new store; on any failure nothing is left behind.

    Ids are row numbers if features come as an array (or, without features, if labels or a split do). Ids are the
    user's own, integers or strings, if a table of features or labels has an id column, or if edges have strings.
    Nodes are then numbered by first appearance in the features, the labels and the edges, and the ids are stored as
    ``node_names``. Integers in edges alone are row numbers if at least a quarter of the numbers up to the largest is
    in use, else the user's own.

    The first line of a CSV file is a header if it names an expected column, or if its leading ids are not all
    integers; so string ids need a header. Ids in text are integers if all are, also if written as floats (``2.0`` is
    ``2``). Otherwise ids keep their text in every table: one id such as ``A7`` or ``007`` is enough. A row number may
    have leading zeros.

    Args:
        out: the folder to make.
        edges: the columns that ``schema`` names, or ``src`` and ``dst``, else the first two, and ``weight`` if there
            is one, in one table or several with the same columns. Other columns are stored as columns of edges. A
            table is a Parquet file, a folder of such, ``.csv`` or ``.tsv`` (also ``.gz``). Or a ``.npy`` of integers,
            (E, 2) or (2, E); an ``.npz`` with ``edge_index`` and, if not given apart, ``x`` (or ``x_indptr``,
            ``x_indices``, ``x_data``, ``x_shape``), ``y``, ``train_mask``, ``val_mask``, ``test_mask``; or
            the folder of an OGB node-property data set, with its features, labels and split.
        nodes: one table or several with the same columns of any kind: an id column (``id``, else the first) and
            columns that a run encodes as features; see :mod:`siafu.data.columns`. Columns ``label`` and ``split``, or
            those that ``schema`` names, are labels and split.
        features: ``.npy`` (N, F); a table with an id column (``id``, else the first) and numbers; or a CSR
            matrix as ``scipy.sparse.save_npz`` writes it.
        labels: ``.npy``, or a table with an id column and ``label`` (else all other columns): classes from 0
            with -1 for none, words, several columns of 0 and 1, or real numbers to regress on.
        split: ``.npy`` of 0 train, 1 validation, 2 test, 3 none, (N,) or (N, S); a table with an id column
            and ``split``, which may also be words; or, with an OGB folder, the folder of one of its schemes; or
            shares of the labelled nodes, such as ``80/10/10``. Without a split, labelled nodes are split 60/20/20.
        schema: the user's word on columns.
        schema_out: a file to write the schema to that was found.
        combine: how repeated edges become one: ``first`` keeps the first weight, ``sum`` and ``mean`` compute one;
            None: repeated edges stay, unless ``undirected``.
        undirected: whether to add the reverse of each edge and drop repeated edges (the first weight is
            kept).
        split_seed: the seed of a split by shares.
        name: what to call the graph; None for the name of the folder.
        progress: callback for progress.
        say: callback for notes: how labelled nodes were split, how many edges were combined.
        feature_dtype: the stored dtype of the features.
        feature_layout: ``sparse`` stores features as compressed sparse rows, ``dense`` with their zeros; auto: sparse
            if at most an eighth is not zero and ``feature_dtype`` is float32.
        label_kind: the kind of labels: ``class``, ``multilabel`` or ``number``. Without it, one column of words or of
            whole numbers, also if written as floats, is of classes; more than 50 classes of fewer than 4 nodes each
            are refused.
        limits: on sizes that files claim and unpack to.

    ``manifest.provenance.columns`` of the store records the role of each column.
    """
    check_label_kind(label_kind)
    features_as = FeatureFormat(feature_dtype, feature_layout)
    shares, split_path = read_split_option(split)
    request = ImportRequest(
        _several(edges),
        *(_path(features), _path(labels), split_path),
        label_kind,
        limits,
        _several(nodes),
        schema or TableSchema(),
    )
    found: dict[str, Found] = {}
    if request.nodes:
        table = open_nodes(request)
        found = find_kinds(table.table, table.columns, request.schema.nodes.columns, progress)
    target = _Target(
        Path(out),
        name or Path(out).name,
        undirected,
        features_as,
        combine,
        found,
        SplitShares(shares, split_seed),
        say,
        None if schema_out is None else Path(schema_out),
    )
    return retry_id_parsing(lambda parsing: _import_as(parsing, request, target, progress))


def _several(given: Given | None) -> tuple[TableLike, ...]:
    """Return one path or table, or several, as a tuple."""
    if given is None:
        return ()
    if isinstance(given, str | Path | Table):
        given = [given]
    return tuple(Path(each) if isinstance(each, str) else each for each in given)


def retry_id_parsing(read: Callable[[IdParsing], T]) -> T:
    """Import with integer ids; restart from the beginning if a text needs another way of parsing ids."""
    parsing = IdParsing()
    while True:
        try:
            return read(parsing)
        except TextIdsError as error:
            if parsing.text:
                raise
            parsing = parsing.after(error)


@dataclass(frozen=True)
class _Target:
    """The store to write, and how.

    Attributes:
        out, name: its path, and the name of the graph.
        undirected: whether the reverse of each edge is added.
        features: how features are stored.
        combine: how repeated edges become one.
        kinds: what each column of nodes is.
        shares: of a split of labelled nodes.
        say: callback for notes.
        schema_out: a file to write the schema to.
    """

    out: Path
    name: str
    undirected: bool
    features: FeatureFormat
    combine: Combine | None
    kinds: Mapping[str, Found]
    shares: SplitShares
    say: Callable[[str], None]
    schema_out: Path | None


def _import_as(parsing: IdParsing, request: ImportRequest, target: _Target, progress: Progress) -> Store:
    """Import with one way of parsing ids."""
    with StoreWriter(target.out) as store:
        inputs, ids = read_ids(open_inputs(request, store.scratch), request, parsing)
        sparse_features = import_features(inputs, ids, store, target.features, progress)
        node_columns = _import_columns(inputs, ids, store, target, progress)
        labelled = read_labels(inputs, ids, progress)
        known, ids = _import_edges(inputs, ids, store, target, progress)
        refuse_orphan_labels(inputs, labelled, known)
        labels = import_labels(inputs, labelled, ids.count, store, request.label_kind)
        import_split(inputs, ids, labels, store, target.shares, target.say, progress)
        if isinstance(ids, IdMap):
            for array, values in names_to_arrays(ids.names()).items():
                store.add(array, values)
        columns = column_roles(inputs, ids, target.kinds)
        if labels is not None:
            columns["labels"]["kind"] = label_description(labels.y)
        written = store.finish(
            name=target.name,
            undirected=target.undirected or inputs.both_directions,
            class_names=None if labels is None else labels.class_names,
            sources=request.sources(),
            columns=columns,
            sparse_features=sparse_features,
            node_columns=node_columns,
            edge_columns=_more_columns(inputs.edges).types,
        )
    if target.schema_out is not None:
        target.schema_out.write_text(schema_to_toml(_found_schema(inputs, target)), encoding="utf-8")
    return written


def _found_schema(inputs: Inputs, target: _Target) -> TableSchema:
    """Return what was found of columns; labels and split are left out, since new rows have none."""
    nodes, edges = NodeSchema(), EdgeSchema()
    if inputs.nodes is not None:
        columns = {name: found.schema for name, found in target.kinds.items()}
        nodes = NodeSchema(id=inputs.nodes.id_column, columns=columns)
    if isinstance(inputs.edges, TableEdges):
        source, dest = inputs.edges.columns
        more = {name: found.schema for name, found in _more_columns(inputs.edges).found.items()}
        edges = EdgeSchema(source=source, target=dest, weight=inputs.edges.weight_column, columns=more)
    return TableSchema(nodes=nodes, edges=edges)


def _more_columns(edges: EdgeSource) -> EdgeColumns:
    """Return the further columns of a table of edges."""
    more = edges.more if isinstance(edges, TableEdges) else None
    return more or EdgeColumns({}, {})


def _import_columns(
    inputs: Inputs,
    ids: RowNumbers | InferredRowNumbers | IdMap,
    store: StoreWriter,
    target: _Target,
    progress: Progress,
) -> list[ColumnType]:
    """Write the columns of the nodes, which number the nodes; returns their types."""
    if inputs.nodes is None:
        return []
    assert isinstance(ids, IdMap)
    return write_node_columns(inputs.nodes, target.kinds, ids, store, progress)


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def read_ids(
    inputs: Inputs, request: ImportRequest, parsing: IdParsing
) -> tuple[Inputs, RowNumbers | InferredRowNumbers | IdMap]:
    """Return the inputs with ids parsed alike, and the lookup from ids to rows."""
    ids = choose_ids(inputs, request)
    if isinstance(ids, RowNumbers):  # zeros in front of a row number change nothing
        return inputs, ids
    inputs = inputs.read_ids(parsing)
    return inputs, choose_ids(inputs, request)


def choose_ids(inputs: Inputs, request: ImportRequest) -> RowNumbers | InferredRowNumbers | IdMap:
    """Choose the lookup from ids to rows: see :func:`import_graph`."""
    counted = inputs.counted(request)
    if counted is not None:
        count, by = counted
        if not 1 <= count <= MAX_NODES:
            raise ValueError(f"{by} counts {count} nodes; expected 1 to {MAX_NODES}")
        if inputs.bare_count:
            request.limits.check_nodes(count, by, inputs.edges.most_edges)
        return RowNumbers(count, by)
    if (
        inputs.edges.strings
        or inputs.nodes is not None
        or isinstance(inputs.features, TableFeatures)
        or isinstance(inputs.labels, NodeTable)
    ):
        return IdMap(strings=inputs.strings)
    return InferredRowNumbers(inputs.edges.most_edges)


def import_features(
    inputs: Inputs,
    ids: RowNumbers | InferredRowNumbers | IdMap,
    store: ArrayFolderWriter,
    how: FeatureFormat,
    progress: Progress,
) -> int | None:
    """Write the features, one row per node; if they define the nodes, no further nodes are accepted.

    Returns the number of columns if they are stored sparse.
    """
    if inputs.features is None:
        return None
    new_ids = ids if isinstance(ids, IdMap) else None
    rows, sparse_width = write_features(inputs.features, store, new_ids, how, progress)
    if new_ids is not None:
        new_ids.defined_by = str(inputs.features.path)
    if rows != ids.count:
        by = ids.counted_by if isinstance(ids, RowNumbers) else "the ids"
        raise ValueError(
            f"{inputs.features.path} has {rows} rows, but {by} counts {ids.count} nodes; expected as many"
        )
    return sparse_width


def read_labels(
    inputs: Inputs, ids: RowNumbers | InferredRowNumbers | IdMap, progress: Progress
) -> NodeValues | None:
    """Read a table of labels; it is read before the edges, since it may define the nodes."""
    if not isinstance(inputs.labels, NodeTable):
        return None
    return read_nodes(inputs.labels, ids, label="labels", progress=progress)


def _import_edges(
    inputs: Inputs,
    ids: RowNumbers | InferredRowNumbers | IdMap,
    store: StoreWriter,
    target: _Target,
    progress: Progress,
) -> tuple[EdgeBuffer, RowNumbers | IdMap]:
    """Write the edges; return their buffer, and the ids of all nodes."""
    spool, known = fill(
        lambda: EdgeBuffer(
            store.scratch,
            weighted=inputs.edges.weighted,
            undirected=target.undirected,
            stored=inputs.edges.stored,
            combine=target.combine,
        ),
        inputs,
        ids,
        progress,
    )
    if inputs.nodes is None and inputs.features is None:
        _refuse_node_rows(inputs.edges, spool, known.count)
    more = _more_columns(inputs.edges)
    writers = more.writers(store)
    dropped = write_csr(spool, store, num_nodes=known.count, progress=progress, columns=writers)
    more.close(writers)
    if dropped:
        target.say(f"edges: {dropped:,} repeated edges were combined ({spool.combine}) with others")
    return spool, known


def _refuse_node_rows(edges: EdgeSource, spool: EdgeBuffer, num_nodes: int) -> None:
    """Refuse a table of nodes that was given as edges; ends that the user named are believed."""
    if not isinstance(edges, TableEdges) or edges.named:
        return
    sources, targets = np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int64)
    for rows in spool.read("src", "dst"):
        sources += np.bincount(rows["src"], minlength=num_nodes)
        targets += np.bincount(rows["dst"], minlength=num_nodes)
    refuse_node_rows(sources, targets, edges.columns, str(edges.path))


def fill(
    make: Callable[[], S], inputs: Inputs, ids: RowNumbers | InferredRowNumbers | IdMap, progress: Progress
) -> tuple[S, RowNumbers | IdMap]:
    """Write the edges of the inputs to a buffer, maybe in a second attempt; return it and the ids of all nodes."""
    path = str(inputs.edges.path)
    spool = make()
    try:
        spool.fill(inputs.edges, ids, progress)
        if isinstance(ids, InferredRowNumbers):
            ids = ids.confirmed(path)
    except SparseIdsError:
        ids = IdMap(strings=False)
        spool = make()
        spool.fill(inputs.edges, ids, progress)
    if isinstance(ids, IdMap) and ids.defined_by is None:
        ids.defined_by = path
    assert not isinstance(ids, InferredRowNumbers)
    return spool, ids


def refuse_orphan_labels(inputs: Inputs, labelled: NodeValues | None, edges: DiskBuffer) -> None:
    """Refuse a label whose id occurs nowhere else: more likely a typing error than a node."""
    if labelled is None or inputs.num_nodes is not None:
        return
    if inputs.features is not None or inputs.nodes is not None:
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
    """Write the labels and return them."""
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
