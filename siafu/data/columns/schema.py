"""A schema file: what the columns of tables of nodes and edges are, as TOML.

[nodes]
id = "id"

[nodes.columns]
country = { kind = "category", width = 32 }
opened = { kind = "date", order = "day-first" }
notes = { kind = "ignore" }
"""

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from siafu.columns import MAX_WIDTH, ColumnType, Kind, Scale

DateOrder = Literal["iso", "day-first", "month-first"]
_TEXT_WIDTH, _WIDTH = 256, 64


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ColumnSchema(_Strict):
    """The user's word on a column.

    Attributes:
        kind: what its values are; ignore: the column is not read.
        width: categories: how many values have a feature of their own; texts: how many features words are hashed to.
        scale: numbers, dates and lists: standardised, or by quantiles; auto: by quantiles where they are skewed.
        order: dates: the order of day, month and year; None: found from the data.
    """

    kind: Kind | Literal["ignore"]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)] | None = None
    scale: Scale = "auto"
    order: DateOrder | None = None

    def type(self, name: str) -> ColumnType:
        """Return the type of a column of this schema."""
        assert self.kind != "ignore"
        width = self.width or (_TEXT_WIDTH if self.kind == "text" else _WIDTH)
        return ColumnType(name, self.kind, width, self.scale)


class NodeSchema(_Strict):
    """The columns of the tables of nodes: ids, labels, split, and those that become features."""

    id: str | None = None
    label: str | None = None
    split: str | None = None
    columns: dict[str, ColumnSchema] = {}


class EdgeSchema(_Strict):
    """The columns of the tables of edges: the ends, the weight, and those that are stored."""

    source: str | None = None
    target: str | None = None
    weight: str | None = None
    columns: dict[str, ColumnSchema] = {}


class TableSchema(_Strict):
    """The columns of all tables of an import."""

    nodes: NodeSchema = NodeSchema()
    edges: EdgeSchema = EdgeSchema()


def read_schema(path: Path) -> TableSchema:
    """Read a schema file; an unknown key is refused."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"schema: {path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"schema: {path} is not TOML: {error}") from None
    try:
        return TableSchema.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"schema: {path}: {place}: {first['msg']}, found {first['input']!r}") from None


def schema_to_toml(schema: TableSchema) -> str:
    """Serialize a schema as TOML."""
    lines = []
    for table, part in (("nodes", schema.nodes), ("edges", schema.edges)):
        plain = part.model_dump(exclude_none=True, exclude={"columns"})
        lines += [f"[{table}]", *(f"{key} = {_quoted(value)}" for key, value in plain.items()), ""]
        if part.columns:
            lines += [f"[{table}.columns]"]
            lines += [f"{_quoted(name)} = {_inline(column)}" for name, column in part.columns.items()]
            lines += [""]
    return "\n".join(lines)


def refuse_unknown_columns(said: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    """Refuse a column of a schema that a table does not have; ``what`` names the table."""
    for name in said:
        require_column(name, names, what)


def require_column(name: str, names: Sequence[str], what: str) -> str:
    """Return a column's name, refuse one that a table does not have with the nearest."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"{what}: no column {name!r}: {hint}found {', '.join(names)}")


def _inline(column: ColumnSchema) -> str:
    fields = column.model_dump(exclude_none=True, exclude_defaults=True)
    return "{ " + ", ".join(f"{key} = {_quoted(value)}" for key, value in fields.items()) + " }"


def _quoted(value: object) -> str:
    return json.dumps(value).replace("\\/", "/").replace("\x7f", "\\u007f")
