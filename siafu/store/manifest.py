"""``manifest.json`` of a store: it lists every array with dtype, shape and checksum, and carries its own checksum."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from siafu.array_checks import check_width
from siafu.columns import MAX_WIDTH, ColumnType, Kind, Scale

MANIFEST = "manifest.json"
SCHEMA = 1

DType = Literal["bool", "uint8", "int8", "int32", "int64", "float32", "bfloat16", "float64"]
ITEM_BYTES: dict[DType, int] = {
    "bool": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "float32": 4,
    "bfloat16": 2,
    "int8": 1,
    "float64": 8,
}

# Each array that a store may have: its dtypes, and its shapes, in which N and the like stand for one number all over.
_Shapes = tuple[tuple[str, ...], ...]
_ArraySchema = dict[str, tuple[tuple[str, ...], _Shapes]]
_MASK = (("bool",), (("N",), ("N", "S")))
_NAMES: _ArraySchema = {
    "node_names": (("int64",), (("N",),)),
    "node_names_offsets": (("int64",), (("N + 1",),)),
    "node_names_bytes": (("uint8",), (("B",),)),
}
_GRAPH: _ArraySchema = {
    "indptr": (("int64",), (("N + 1",),)),
    "indices": (("int32",), (("E",),)),
    "x": (("float32", "bfloat16", "int8"), (("N", "F"),)),
    "x_scale": (("float32",), (("N",),)),
    "x_indptr": (("int64",), (("N + 1",),)),
    "x_indices": (("int32",), (("Z",),)),
    "x_values": (("float32",), (("Z",),)),
    "y": (("int64", "uint8", "float32"), (("N",), ("N", "C"))),
    "train_mask": _MASK,
    "val_mask": _MASK,
    "test_mask": _MASK,
    "edge_weight": (("float32",), (("E",),)),
    "node_id": (("int64",), (("N",),)),
    **_NAMES,
}
_DYNAMIC: _ArraySchema = {
    "src": (("int32",), (("M",),)),
    "dst": (("int32",), (("M",),)),
    "step_ptr": (("int64",), (("T + 1",),)),
    "step_time": (("float64",), (("T",),)),
    "weight": (("float32",), (("M",),)),
    "edge_y": (("int64",), (("M",),)),
    "x": (("float32",), (("N", "F"), ("T", "N", "F"))),
    "y": (("int64", "float32"), (("N",), ("T", "N"), ("T", "N", "K"))),
    **_NAMES,
}

M = TypeVar("M", bound=BaseModel)
_Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class StrictModel(BaseModel):
    """A pydantic model that refuses unknown fields and converts no types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ArraySpec(StrictModel):
    """One array: raw little-endian values in C order.

    Attributes:
        file: its name in the folder of the store.
        dtype: of its values; bfloat16 is kept as the upper half of a float32.
        shape: its dimensions; the file's size is their product times the bytes of a value.
        xxh3_128: the checksum of the file, in hexadecimal.
    """

    file: Annotated[str, Field(pattern=r"^[a-z0-9_]+\.bin$")]
    dtype: DType
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    xxh3_128: _Checksum

    @property
    def num_bytes(self) -> int:
        """The size of the file in bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class Provenance(StrictModel):
    """The origin of a store.

    Attributes:
        siafu_version: the version that wrote it.
        created: the time, ISO 8601 in UTC.
        sources: the files it was made from, such as ``{"edges": "edges.csv"}``.
        columns: the role of each of their columns, such as ``{"edges": {"src": "from", "dst": "to"}}``.
    """

    siafu_version: str
    created: str
    sources: dict[str, str]
    columns: dict[str, dict[str, str]] = {}


class ColumnSpec(StrictModel):
    """A typed column: the fields of :class:`siafu.columns.ColumnType`; its arrays are named by its place."""

    name: str
    kind: Kind
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    scale: Scale

    @staticmethod
    def of(type: ColumnType) -> "ColumnSpec":
        """Return the spec of a column."""
        return ColumnSpec(name=type.name, kind=type.kind, width=type.width, scale=type.scale)

    @property
    def type(self) -> ColumnType:
        """The column's name, kind and encoding."""
        return ColumnType(self.name, self.kind, self.width, self.scale)


# The arrays of a column by its kind: suffix, dtype and shape, in which "rows" stands for N or E.
_COLUMN_ARRAYS: dict[Kind, dict[str, tuple[DType, tuple[str, ...]]]] = {
    "number": {"": ("float64", ("rows",))},
    "date": {"": ("float64", ("rows",))},
    "boolean": {"": ("int8", ("rows",))},
    "list": {"": ("float32", ("rows", "K"))},
    "category": {"": ("int32", ("rows",)), "_offsets": ("int64", ("V",)), "_bytes": ("uint8", ("B",))},
    "text": {"_offsets": ("int64", ("rows + 1",)), "_bytes": ("uint8", ("B",))},
}
NODE_COLUMN, EDGE_COLUMN = "column", "edge_column"  # beginnings of the names of arrays


def column_arrays(prefix: str, place: int, kind: Kind, rows: str) -> _ArraySchema:
    """Return the arrays of the column at a place; ``rows`` is N for a value a node, E for one an edge."""
    return {
        f"{prefix}_{place}{suffix}": ((dtype,), (tuple(size.replace("rows", rows) for size in shape),))
        for suffix, (dtype, shape) in _COLUMN_ARRAYS[kind].items()
    }


class _StoreManifest(StrictModel):
    """The fields that the manifests of both kinds of store share.

    Attributes:
        schema_version: the version of this layout.
        name: the name of the graph in messages.
        class_names: a name per class, or None.
        arrays: by name. The ids of the user are ``node_names``, or strings in ``node_names_offsets`` and
            ``node_names_bytes``.
        provenance: the origin of the store.
    """

    schema_version: Literal[1] = 1
    name: str
    class_names: tuple[str, ...] | None
    arrays: dict[str, ArraySpec]
    provenance: Provenance

    @property
    def num_bytes(self) -> int:
        """The size of all arrays on disk."""
        return sum(spec.num_bytes for spec in self.arrays.values())

    def _require_arrays(self, *names: str) -> None:
        missing = set(names) - self.arrays.keys()
        if missing:
            raise ValueError(f"arrays lacks {', '.join(sorted(missing))}")

    def _check_arrays(self, known: _ArraySchema, sizes: dict[str, int]) -> None:
        for name, spec in self.arrays.items():
            _check_array(name, spec, known, sizes)
        if "x" in self.arrays:
            check_width(self.arrays["x"].shape, "arrays.x")
        files = [spec.file for spec in self.arrays.values()]
        if len(set(files)) != len(files):
            raise ValueError("two arrays name the same file")
        if ("node_names_offsets" in self.arrays) != ("node_names_bytes" in self.arrays):
            raise ValueError("node_names_offsets and node_names_bytes belong together, but one is missing")


class Manifest(_StoreManifest):
    """The manifest of a static graph; its arrays are the fields of :class:`siafu.graph.Graph`.

    Attributes:
        kind: what the arrays make up.
        undirected: whether every edge is known to stand in both directions. Masks are (N,), or (N, S) for S splits.
        sparse_features: F of features that are stored as compressed sparse rows; None for dense ones.
        columns: typed columns of the nodes, which runs encode as features.
        edge_columns: typed columns of the edges, in the order of ``indices``.
    """

    kind: Literal["graph"] = "graph"
    undirected: bool
    sparse_features: Annotated[int, Field(ge=1)] | None = None
    columns: tuple[ColumnSpec, ...] = ()
    edge_columns: tuple[ColumnSpec, ...] = ()

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.arrays["indptr"].shape[0] - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return self.arrays["indices"].shape[0]

    @property
    def num_features(self) -> int:
        """F, 0 where there are no features."""
        if self.sparse_features is not None:
            return self.sparse_features
        return self.arrays["x"].shape[1] if "x" in self.arrays else 0

    @property
    def num_folds(self) -> int:
        """S, the number of splits; 0 where there is no mask."""
        shapes = [spec.shape for name, spec in self.arrays.items() if name.endswith("_mask")]
        return max((shape[1] if len(shape) == 2 else 1 for shape in shapes), default=0)

    @model_validator(mode="after")
    def _arrays_fit(self) -> "Manifest":
        self._require_arrays("indptr", "indices")
        if self.arrays["indptr"].shape in ((0,), ()):
            raise ValueError("arrays.indptr is empty; expected one value more than nodes")
        sizes = {"N": self.num_nodes, "N + 1": self.num_nodes + 1, "E": self.num_edges}
        columns = self._column_schema()
        self._require_arrays(*columns)
        self._check_arrays(_GRAPH | columns, sizes)
        if self.columns and self.num_features:
            raise ValueError("arrays has features and columns; expected one of them")
        if ("x_scale" in self.arrays) != ("x" in self.arrays and self.arrays["x"].dtype == "int8"):
            raise ValueError("x_scale and an x in int8 belong together, but one is missing")
        check_sparse(self.arrays, self.sparse_features)
        widths = {s.shape[1:] for n, s in self.arrays.items() if n.endswith("_mask")}
        if len(widths) > 1:
            raise ValueError(f"the masks have different numbers of splits: {sorted(widths)}")
        return self

    def _column_schema(self) -> _ArraySchema:
        """Return the arrays of all columns; refuse two columns of one name."""
        schema: _ArraySchema = {}
        for prefix, columns, rows in (
            (NODE_COLUMN, self.columns, "N"),
            (EDGE_COLUMN, self.edge_columns, "E"),
        ):
            if len({column.name for column in columns}) != len(columns):
                raise ValueError(f"two {prefix}s have the same name")
            for place, column in enumerate(columns):
                schema |= column_arrays(prefix, place, column.kind, rows)
        return schema


class ProtocolSpec(StrictModel):
    """The evaluation protocol of a dynamic graph: the fields of :class:`siafu.dynamic.Protocol`."""

    step: float | None
    window: int
    edge_life: int
    negatives: int
    split: tuple[float, float, float]
    task: str | None


class DynamicManifest(_StoreManifest):
    """The manifest of a dynamic graph; its arrays are the fields of ``DynamicGraph``.

    Attributes:
        kind: what the arrays make up.
        undirected: whether an event holds in both directions.
        num_nodes: N.
        protocol: how it is usually scored.
    """

    kind: Literal["dynamic"] = "dynamic"
    undirected: bool
    num_nodes: Annotated[int, Field(ge=1)]
    protocol: ProtocolSpec

    @property
    def num_steps(self) -> int:
        """T."""
        return self.arrays["step_ptr"].shape[0] - 1

    @property
    def num_events(self) -> int:
        """M."""
        return self.arrays["src"].shape[0]

    @property
    def num_features(self) -> int:
        """F, 0 where there are no features."""
        return self.arrays["x"].shape[-1] if "x" in self.arrays else 0

    @model_validator(mode="after")
    def _arrays_fit(self) -> "DynamicManifest":
        self._require_arrays("src", "dst", "step_ptr")
        if not self.arrays["step_ptr"].shape or self.arrays["step_ptr"].shape[0] < 2:
            raise ValueError("arrays.step_ptr is empty; expected one value more than steps")
        if not self.arrays["src"].shape:
            raise ValueError("arrays.src is one number; expected one an event")
        sizes = {"N": self.num_nodes, "N + 1": self.num_nodes + 1, "M": self.num_events}
        self._check_arrays(_DYNAMIC, sizes | {"T": self.num_steps, "T + 1": self.num_steps + 1})
        return self


def check_sparse(arrays: dict[str, ArraySpec], width: int | None) -> None:
    """Refuse sparse features of which an array or the width is missing, or that stand beside dense ones."""
    found = [name for name in ("x_indptr", "x_indices", "x_values") if name in arrays]
    if width is None and not found:
        return
    if width is None or len(found) < 3:
        raise ValueError(
            "x_indptr, x_indices, x_values and sparse_features belong together, but one is missing"
        )
    if "x" in arrays:
        raise ValueError("arrays has x and x_indptr; expected dense or sparse features, not both")
    if arrays["x_indices"].shape != arrays["x_values"].shape:
        raise ValueError("x_indices and x_values have different lengths")


def _check_array(name: str, spec: ArraySpec, known: _ArraySchema, sizes: dict[str, int]) -> None:
    if name not in known:
        raise ValueError(f"arrays.{name} is unknown; expected some of {', '.join(known)}")
    dtypes, shapes = known[name]
    if spec.dtype not in dtypes:
        raise ValueError(f"arrays.{name} is {spec.dtype}; expected {' or '.join(dtypes)}")
    if not any(_fits(spec.shape, shape, sizes) for shape in shapes):
        wanted = (
            ", ".join(f"{each} = {sizes[each]}" if each in sizes else each for each in s) for s in shapes
        )
        raise ValueError(
            f"arrays.{name} has shape {spec.shape}; expected {' or '.join(map('({})'.format, wanted))}"
        )


def _fits(found: tuple[int, ...], wanted: tuple[str, ...], sizes: dict[str, int]) -> bool:
    return len(found) == len(wanted) and all(
        sizes.get(symbol, size) == size for size, symbol in zip(found, wanted, strict=True)
    )


def write_manifest(manifest: Manifest | DynamicManifest, folder: Path) -> None:
    """Write ``manifest.json`` with its checksum."""
    write_checksummed(folder / MANIFEST, manifest)


def read_manifest(folder: Path) -> Manifest | DynamicManifest:
    """Read ``manifest.json``; refuse one that is missing, foreign or changed."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{folder} is not a store: it has no {MANIFEST}; make one with siafu import"
        ) from None
    except NotADirectoryError:
        raise ValueError(f"{folder} is a file; expected the folder of a store") from None
    return parse_manifest(text, str(path))


def parse_manifest(text: bytes, what: str) -> Manifest | DynamicManifest:
    """Parse the manifest of a static or a dynamic graph; ``what`` names it in errors."""
    again = "copy or import the store again"
    if _parse(text, what, again).get("kind") == "dynamic":
        return parse_checksummed(text, DynamicManifest, what, again=again)
    return parse_checksummed(text, Manifest, what, again=again)


def write_checksummed(path: Path, values: BaseModel) -> None:
    """Write a model as JSON with its checksum."""
    fields = values.model_dump(mode="json")
    text = json.dumps({**fields, "checksum": _seal(fields)}, indent=1) + "\n"
    path.write_text(text, encoding="utf-8")


def parse_checksummed(text: bytes, kind: type[M], what: str, *, again: str) -> M:
    """Parse JSON from :func:`write_checksummed`; ``what`` names it in errors, ``again`` says how to get it anew."""
    fields = _parse(text, what, again)
    given = fields.pop("checksum", None)
    if given != _seal(fields):
        raise ValueError(
            f"{what}: checksum is {given!r}, but its content gives {_seal(fields)!r}: it was changed or "
            f"damaged; {again}"
        )
    if fields.get("schema_version") != SCHEMA:
        raise ValueError(
            f"{what}: schema_version is {fields.get('schema_version')!r}; expected {SCHEMA}: {again}"
        )
    try:
        return kind.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise ValueError(f"{what}: {field}: {first['msg']}; {again}") from None


def _seal(fields: dict[str, Any]) -> str:
    """Return the checksum of the values, independent of the layout of the text."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode("ascii"))


def _parse(text: bytes, what: str, again: str) -> dict[str, Any]:
    try:
        fields = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not readable JSON ({error}); {again}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{what} holds {type(fields).__name__}; expected a JSON object: {again}")
    return fields
