"""Open the user's input files, and decide how their ids are parsed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from siafu.data.columns.schema import NodeSchema, TableSchema
from siafu.data.importing.edges import (
    EdgeSource,
    TableEdges,
    array_edges,
    edges_in,
    is_number,
    value_type,
    whole_ids,
    with_columns,
)
from siafu.data.importing.features import (
    CSR,
    FeatureSource,
    TableFeatures,
    array_features,
    scipy_features,
    sparse_features,
    table_features,
)
from siafu.data.importing.file_location import format_of
from siafu.data.importing.labels import LabelKind, Labels, label_table, labels_of_array, words_as_text
from siafu.data.importing.limits import DEFAULT, Limits
from siafu.data.importing.node_columns import ColumnTable, column_table
from siafu.data.importing.node_split import codes_or_words, masks_of_array, split_table
from siafu.data.importing.nodes import NodeTable
from siafu.data.importing.numpy_files import NpyFile, names_in_npz, open_npy, unpack_npz
from siafu.data.importing.ogb import open_ogb, read_ogb_split
from siafu.data.importing.plausibility import refuse_edge_table, refuse_node_table
from siafu.data.importing.tables import Table, TableLike, column_named, open_tables, path_of
from siafu.data.importing.text_ids import TextIdsError
from siafu.store.node_names import is_string
from siafu.store.splits import MASKS

Masks = dict[str, np.ndarray]
_NOTHING_SAID, _NO_NODES = TableSchema(), NodeSchema()
_NPZ = (
    "edge_index",
    "edge_weight",
    "x",
    *(f"x_{name}" for name in CSR),
    "y",
    *MASKS,
    "num_nodes",
    "undirected",
)


@dataclass(frozen=True)
class ImportRequest:
    """The user's files, and how they are read.

    Attributes:
        edges: files or tables; several are tables with the same columns.
        features, labels, split: files.
        label_kind: the kind of labels; None: inferred.
        limits: on what files claim.
        nodes: files or tables of nodes with columns of any kind, all with the same columns.
        schema: the user's word on columns.
    """

    edges: tuple[TableLike, ...]
    features: Path | None = None
    labels: Path | None = None
    split: Path | None = None
    label_kind: LabelKind | None = None
    limits: Limits = DEFAULT
    nodes: tuple[TableLike, ...] = ()
    schema: TableSchema = _NOTHING_SAID

    @property
    def edge_path(self) -> Path:
        """The first file of edges."""
        return path_of(self.edges[0])

    def sources(self) -> dict[str, str]:
        """Return the files by name, for the provenance of the store."""
        fields: dict[str, Path | None] = {
            "features": self.features,
            "labels": self.labels,
            "split": self.split,
        }
        several = {"edges": self.edges, "nodes": self.nodes}
        found = {
            name: ", ".join(str(path_of(each)) for each in given) for name, given in several.items() if given
        }
        return found | {name: str(path) for name, path in fields.items() if path is not None}


@dataclass(frozen=True)
class Inputs:
    """The opened inputs of an import.

    Attributes:
        edges, features: read in batches.
        labels, split: arrays by row number, or tables that are read later.
        num_nodes: N and its source, if anything other than features, labels and split gives it.
        both_directions: whether the file says that each edge is stored in both directions.
        nodes: a table of nodes with columns of any kind.
        split_path: the file of the split, if it has one of its own.
    """

    edges: EdgeSource
    features: FeatureSource | None = None
    labels: Labels | NodeTable | None = None
    split: Masks | NodeTable | None = None
    num_nodes: tuple[int, str] | None = None
    both_directions: bool = False
    nodes: ColumnTable | None = None
    split_path: Path | None = None

    def counted(self, request: ImportRequest) -> tuple[int, str] | None:
        """Return N and its source if ids are row numbers; None if ids must be mapped or inferred."""
        if self.nodes is not None:
            return None
        counts = [] if self.num_nodes is None else [self.num_nodes]
        if self.features is not None and self.features.num_rows is not None:
            counts.append((self.features.num_rows, str(self.features.path)))
        if isinstance(self.features, TableFeatures) and self.features.id_column is not None:
            return None
        if isinstance(self.labels, Labels):
            counts.append((self.labels.y.shape[0], str(request.labels or self.edges.path)))
        elif isinstance(self.labels, NodeTable) and not counts:
            return None
        if isinstance(self.split, dict):
            counts.append((len(next(iter(self.split.values()))), str(request.split or self.edges.path)))
        for count, file in counts[1:]:
            if count != counts[0][0]:
                raise ValueError(
                    f"{file} has {count} rows, but {counts[0][1]} has {counts[0][0]}; expected as many"
                )
        return counts[0] if counts else None

    @property
    def bare_count(self) -> bool:
        """True if no array with a row per node supports the number of nodes."""
        rows = (self.features is not None, isinstance(self.labels, Labels), isinstance(self.split, dict))
        return self.num_nodes is not None and not any(rows)

    @property
    def strings(self) -> bool:
        """True if any of the ids are strings."""
        kinds = [table.type_of(column) for table, column in self._id_columns()]
        return self.edges.strings or any(is_string(value_type(kind)) for kind in kinds)

    def read_ids(self, parsing: "IdParsing") -> "Inputs":
        """Parse the ids of all texts alike: as strings if any of them are, else as integers."""
        parsing = replace(parsing, text=True) if self.strings else parsing
        edges, features, labels, split = self.edges, self.features, self.labels, self.split
        if isinstance(edges, TableEdges):
            edges = replace(edges, table=parsing.of(edges.table, edges.columns))
        if isinstance(features, TableFeatures) and features.id_column is not None:
            features = replace(features, table=parsing.of(features.table, (features.id_column,)))
        if isinstance(labels, NodeTable):
            labels = replace(labels, table=parsing.of(labels.table, (labels.id_column,)))
        if isinstance(split, NodeTable):
            split = replace(split, table=parsing.of(split.table, (split.id_column,)))
        nodes = self.nodes
        if nodes is not None:
            nodes = replace(nodes, table=parsing.of(nodes.table, (nodes.id_column,)))
        return replace(self, edges=edges, features=features, labels=labels, split=split, nodes=nodes)

    def _id_columns(self) -> list[tuple[Table, str]]:
        tables = [table for table in (self.labels, self.split) if isinstance(table, NodeTable)]
        columns = [(table.table, table.id_column) for table in tables]
        if isinstance(self.features, TableFeatures) and self.features.id_column is not None:
            columns.append((self.features.table, self.features.id_column))
        if self.nodes is not None:
            columns.append((self.nodes.table, self.nodes.id_column))
        return columns


@dataclass(frozen=True)
class IdParsing:
    """The way to parse ids in text.

    Attributes:
        text: whether as strings, since some ids differ only as text.
        whole: the tables whose ids may be written as floats, such as ``2.0``.
    """

    text: bool = False
    whole: frozenset[Path] = frozenset()

    def after(self, error: TextIdsError) -> "IdParsing":
        """Return the parsing to try next, after a table turned out to need it."""
        if error.needs == "whole" and error.path not in self.whole:
            return replace(self, whole=self.whole | {error.path})
        return replace(self, text=True)

    def of(self, table: Table, columns: tuple[str, ...]) -> Table:
        """Return the table with its id columns parsed this way."""
        if not table.csv:
            return table
        if self.text:
            table = table.read_as(dict.fromkeys(columns, pa.string()))
            return replace(table, whole=())
        if self.whole & set(table.paths):
            table = table.with_ids(columns, whole=True)
        return replace(table, watched=columns)


def open_inputs(request: ImportRequest, scratch: Path) -> Inputs:
    """Open all input files; arrays in an archive are unpacked into ``scratch``."""
    inputs = _open_edges(request, scratch)
    if request.nodes:
        inputs = _open_nodes(inputs, request)
    if request.features is not None:
        inputs = replace(inputs, features=open_features(request.features, scratch, request.limits))
    if request.labels is not None:
        inputs = replace(inputs, labels=_open_labels(request.labels, request))
    if request.split is not None:
        split = _open_split(request.split, inputs.num_nodes, request.limits)
        inputs = replace(inputs, split=split, split_path=request.split)
    return inputs


def open_nodes(request: ImportRequest) -> ColumnTable:
    """Open the tables of nodes; columns of labels and split are those of the schema, or ``label`` and ``split``."""
    table = id_tables(request.nodes, request.limits, id_column=request.schema.nodes.id)
    schema = request.schema.nodes
    if request.labels is not None:
        schema = schema.model_copy(update={"label": None})
    elif schema.label is None and "label" in table.names:
        schema = schema.model_copy(update={"label": "label"})
    if schema.split is None and request.split is None and "split" in table.names:
        schema = schema.model_copy(update={"split": "split"})
    return column_table(table, schema)


def _open_nodes(inputs: Inputs, request: ImportRequest) -> Inputs:
    """Open the tables of nodes, and their columns of labels and split."""
    nodes = open_nodes(request)
    if request.features is not None or inputs.features is not None:
        raise ValueError(
            f"{nodes.path}: nodes and features were given; give --nodes for columns of any kind, or --features for "
            "numbers alone"
        )
    inputs = replace(inputs, nodes=nodes)
    if nodes.label is not None:
        inputs = replace(
            inputs, labels=words_as_text(NodeTable(nodes.table, nodes.id_column, (nodes.label,)))
        )
    if nodes.split is not None:
        inputs = replace(
            inputs, split=codes_or_words(NodeTable(nodes.table, nodes.id_column, (nodes.split,)))
        )
    return inputs


def _open_edges(request: ImportRequest, scratch: Path) -> Inputs:
    if len(request.edges) > 1 or isinstance(request.edges[0], Table):
        return _open_edge_tables(request)
    path = request.edge_path
    match format_of(path, "edges"):
        case "npy":
            return Inputs(array_edges(open_npy(path)))
        case "npz":
            return _open_npz(request, unpack_npz(path, scratch / "npz", _NPZ, request.limits))
        case "ogb":
            ogb = open_ogb(path, scratch / "ogb", request.label_kind, request.limits)
            split = None if request.split else read_ogb_split(path, ogb.num_nodes)
            return Inputs(ogb.edges, ogb.features, ogb.labels, split, (ogb.num_nodes, f"{path / 'raw'}"))
        case _:
            return _open_edge_tables(request)


def _open_edge_tables(request: ImportRequest) -> Inputs:
    """Open tables of edges, with columns of any kind."""
    schema = request.schema.edges
    for given in request.edges:
        if isinstance(given, Path) and (kind := format_of(given, "edges")) not in ("csv", "parquet"):
            raise ValueError(
                f"edges: {given} is {kind}; expected tables (Parquet, CSV, TSV) where several are given"
            )
    wanted = (schema.source or "src", schema.target or "dst")
    table = open_tables(request.edges, wanted=wanted, limits=request.limits)
    refuse_node_table(table, schema)
    return Inputs(with_columns(edges_in(table, schema), schema))


def _open_npz(request: ImportRequest, arrays: dict[str, NpyFile]) -> Inputs:
    path = request.edge_path
    if "edge_index" not in arrays:
        raise ValueError(
            f"{path} holds {', '.join(names_in_npz(path)) or 'no array'}; expected the array edge_index, (2, E)"
        )
    features: FeatureSource | None = None
    if request.features is None and "x" in arrays:
        features = array_features(arrays["x"])
    elif request.features is None and {"x_indptr", "x_indices", "x_data", "x_shape"} <= arrays.keys():
        features = sparse_features(path, arrays, prefix="x_", limits=request.limits)
    masks = {name: arrays[name] for name in MASKS if name in arrays}
    return Inputs(
        array_edges(arrays["edge_index"], weight=arrays.get("edge_weight")),
        features,
        labels_of_array(arrays["y"], request.label_kind)
        if request.labels is None and "y" in arrays
        else None,
        _masks(masks) if request.split is None and masks else None,
        (scalar(arrays["num_nodes"]), f"{path / 'num_nodes'}") if "num_nodes" in arrays else None,
        both_directions="undirected" in arrays and scalar(arrays["undirected"]) == 1,
    )


def open_features(path: Path, scratch: Path, limits: Limits) -> FeatureSource:
    """Open a file of features."""
    match format_of(path, "features"):
        case "npy":
            return array_features(open_npy(path))
        case "npz":
            return scipy_features(path, scratch / "features", limits)
        case "ogb":
            raise ValueError(f"features: {path} is an OGB folder; give it as the edges")
        case _:
            table = id_tables((path,), limits)
            refuse_edge_table(table, "features")
            return table_features(table)


def _open_labels(path: Path, request: ImportRequest) -> Labels | NodeTable:
    match format_of(path, "labels"):
        case "npy":
            return labels_of_array(open_npy(path), request.label_kind)
        case "npz" | "ogb":
            raise ValueError(f"labels: {path} is no table of labels; expected .npy, .parquet, .csv or .tsv")
        case _:
            return open_label_table(path, request.limits, request.schema.nodes)


def open_label_table(path: Path, limits: Limits, schema: NodeSchema = _NO_NODES) -> NodeTable:
    """Open a table of labels."""
    table = id_tables((path,), limits, id_column=schema.id)
    refuse_edge_table(table, "labels")
    return label_table(table, id_column=schema.id, label=schema.label)


def _open_split(path: Path, num_nodes: tuple[int, str] | None, limits: Limits) -> Masks | NodeTable:
    if path.is_dir() and num_nodes is not None and (masks := read_ogb_split(path, num_nodes[0])) is not None:
        return masks
    match format_of(path, "split"):
        case "npy":
            return masks_of_array(open_npy(path))
        case "npz" | "ogb":
            raise ValueError(f"split: {path} is no table of splits; expected .npy, .parquet, .csv or .tsv")
        case _:
            return split_table(id_tables((path,), limits))


def id_tables(given: Sequence[TableLike], limits: Limits, *, id_column: str | None = None) -> Table:
    """Open tables of nodes as one; ids in text that are no integers are read as strings."""
    for each in given:
        if isinstance(each, Path) and (kind := format_of(each, "nodes")) not in ("csv", "parquet"):
            raise ValueError(f"nodes: {each} is {kind}; expected a table (Parquet, CSV, TSV)")
    table = open_tables(given, wanted=(id_column or "id",), limits=limits)
    if id_column is None or id_column not in table.names:
        id_column = column_named(table, "id", 0)
    if table.csv and not is_number(table.type_of(id_column)):
        return table.read_as({id_column: pa.string()})
    return whole_ids(table, (id_column,))


def scalar(array: NpyFile) -> int:
    """Read the one number of an array."""
    values = array.read().ravel()
    if values.size != 1:
        raise ValueError(f"{array.shown} has {values.size} values; expected one number")
    return int(values[0])


def _masks(arrays: dict[str, NpyFile]) -> Masks:
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) not in (1, 2):
        found = ", ".join(f"{array.shown.name} {array.shape}" for array in arrays.values())
        raise ValueError(
            f"{next(iter(arrays.values())).shown.parent}: {found}; expected masks alike, (N,) or (N, S)"
        )
    return {name: array.read().astype(bool) for name, array in arrays.items()}
