"""Read tables, Parquet or CSV, a batch of rows at a time; errors name file, line or row, and column.

CSV and TSV may be gzipped, and may have a header. The first line is a header if it holds one of the column
names that are looked for (``src`` or ``dst`` in edges, ``id`` in tables of nodes), or if its leading ids (two
in edges, one in tables of nodes) are not all integers. So integer ids need no header, and string ids need
one.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from siafu.data.importing.file_location import FileLocation, parquet_files
from siafu.data.importing.limits import BLOCK_BYTES, DEFAULT, Limits
from siafu.data.importing.page_headers import unpacked_bytes
from siafu.data.importing.text_ids import (
    NeededParsing,
    PaddedIdScanner,
    TextIdsError,
    has_padded_ids,
    whole_numbers,
)
from siafu.event_log import Progress, no_progress
from siafu.store.node_names import is_string

_BATCH_ROWS = 1 << 18
_BATCH_BYTES = 1 << 27  # of strings from dictionaries, in a batch
_GZIP_RATIO = 1032  # at most
_ROW_BYTES = 2  # at least, in text
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(r"\s*[+-]?\d+(\.0*)?\s*")


@dataclass(frozen=True)
class Batch:
    """A batch of rows of a table, and its location."""

    columns: pa.RecordBatch
    place: FileLocation


@dataclass(frozen=True)
class Table:
    """A table on disk.

    Attributes:
        path: as the user gave it.
        files: of which it consists, alike in their columns.
        names: of its columns.
        types: of its columns, as in the first rows.
        csv: whether it is text.
        header: whether its first line holds the names.
        skipped: the lines before its first row.
        watched: columns of ids whose text may need another reading; see :class:`TextIdsError`.
        whole: columns of ids that are read as whole numbers, whether or not they are written as floats.
        limits: on its lines and on what it unpacks to.
        more: further tables with the same columns, whose rows follow.
    """

    path: Path
    files: tuple[Path, ...]
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    csv: bool = False
    header: bool = False
    skipped: int = 0
    watched: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    limits: Limits = DEFAULT
    more: tuple["Table", ...] = ()

    @property
    def most_rows(self) -> int:
        """An upper bound on the number of rows, known without reading them."""
        return self._own_rows + sum(table.most_rows for table in self.more)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of this table and of further ones, as the user gave them."""
        return (self.path, *(table.path for table in self.more))

    @property
    def _own_rows(self) -> int:
        if not self.csv:
            return sum(_num_rows(file) for file in self.files)
        size = self.path.stat().st_size
        return (size * _GZIP_RATIO if _is_packed(self.path) else size) // _ROW_BYTES + 1

    def type_of(self, name: str) -> pa.DataType:
        """Return the type of a column."""
        return self.types[self.names.index(name)]

    def read_as(self, types: Mapping[str, pa.DataType]) -> "Table":
        """Read some columns of a text as other types."""
        return replace(
            self, types=tuple(types.get(n, t) for n, t in zip(self.names, self.types, strict=True))
        )

    def with_ids(self, columns: Sequence[str], *, whole: bool = False) -> "Table":
        """Read some columns as ids: integers, or ``whole`` numbers that may be written as floats."""
        types = self.read_as(dict.fromkeys(columns, pa.int64()))
        return replace(types, whole=tuple(columns) if whole else ())

    def batches(self, columns: Sequence[str], *, label: str, progress: Progress) -> Iterator[Batch]:
        """Yield the named columns in batches; report the bytes or rows read to ``progress``."""
        read = self._csv_batches if self.csv else self._parquet_batches
        for batch in read(columns, label, progress):
            yield batch if not self.whole else Batch(self._with_whole(batch), batch.place)
        for table in self.more:
            yield from self._parsed_alike(table).batches(columns, label=label, progress=progress)

    def _parsed_alike(self, table: "Table") -> "Table":
        """Return a further table whose text is parsed as this one's."""
        if not self.csv:
            return table
        types = tuple(self.type_of(name) for name in table.names)
        return replace(table, types=types, watched=self.watched, whole=self.whole)

    def _with_whole(self, batch: Batch) -> pa.RecordBatch:
        columns = batch.columns
        for name in (name for name in self.whole if name in columns.schema.names):
            ids = whole_numbers(decoded(columns.column(name)), batch.place, name, self._fail)
            columns = columns.set_column(columns.schema.get_field_index(name), name, ids)
        return columns

    def _fail(self, needs: NeededParsing, message: str) -> None:
        raise TextIdsError(self.path, needs, message) if self.watched else ValueError(message)

    def _csv_batches(self, columns: Sequence[str], label: str, progress: Progress) -> Iterator[Batch]:
        types = {name: pa.string() if name in self.whole else self.type_of(name) for name in columns}
        total, line = self.path.stat().st_size, self.skipped + 1
        watches = any(name in self.watched and pa.types.is_integer(kind) for name, kind in types.items())
        with _naming_file(self.path, self.names, self.watched, self.limits), pa.OSFile(str(self.path)) as raw:
            stream = PaddedIdScanner(_unpacked(raw, self.path), watch=watches)
            for columns_read in _open_csv(stream, self, types):
                progress(label, raw.tell(), total)
                self.limits.check_unpacked(str(self.path), stream.num_bytes, total)
                if watches and stream.padded:
                    self._refuse_padded_ids()
                    watches = False  # it was another column
                yield Batch(columns_read, FileLocation(self.path, "line", line))
                line += columns_read.num_rows

    def _refuse_padded_ids(self) -> None:
        """Check whether an id has leading zeros, after some field turned out to have them."""
        text = replace(self.read_as(dict.fromkeys(self.watched, pa.string())), watched=(), whole=())
        for batch in text.batches(self.watched, label="ids", progress=no_progress):
            for name in self.watched:
                if has_padded_ids(batch.columns.column(name)):
                    self._fail("text", f"{self.path}: column {name!r} has ids with zeros in front")

    def _parquet_batches(self, columns: Sequence[str], label: str, progress: Progress) -> Iterator[Batch]:
        done, total = 0, sum(_num_rows(file) for file in self.files)
        for file in self.files:
            row = written_out = 0
            with _naming_file(file, self.names), _open_parquet_file(file) as source:
                _check_columns(source, columns, file)
                size = file.stat().st_size
                self.limits.check_unpacked(str(file), _claimed_bytes(source, columns, file), size)
                strings = [
                    name for name in columns if is_string(_values(source.schema_arrow.field(name).type))
                ]
                for batch in _read_groups(source, file, columns, strings):
                    written_out += sum(_decoded_bytes(batch.column(name)) for name in strings)
                    self.limits.check_unpacked(str(file), written_out, size)
                    yield Batch(batch.select(list(columns)), FileLocation(file, "row", row))
                    row += batch.num_rows
                    done += batch.num_rows
                    progress(label, done, total)


@dataclass(frozen=True)
class MemoryTable(Table):
    """An Arrow table in memory; its path is a name for messages."""

    data: Any = None

    @property
    def _own_rows(self) -> int:
        return int(self.data.num_rows)

    def _parquet_batches(self, columns: Sequence[str], label: str, progress: Progress) -> Iterator[Batch]:
        row = 0
        for batch in self.data.select(list(columns)).to_batches(max_chunksize=_BATCH_ROWS):
            yield Batch(batch, FileLocation(self.path, "row", row))
            row += batch.num_rows
            progress(label, row, self.data.num_rows)


TableLike = Path | Table


def memory_table(data: pa.Table, name: str) -> MemoryTable:
    """Wrap an Arrow table; ``name`` is what messages call it."""
    if len(set(data.column_names)) != data.num_columns:
        raise ValueError(f"{name}: two columns have the same name; expected different names")
    return MemoryTable(Path(name), (), tuple(data.column_names), tuple(data.schema.types), data=data)


def open_table(
    path: Path, *, wanted: Sequence[str], header: bool | None = None, limits: Limits = DEFAULT
) -> Table:
    """Open a table; ``wanted`` are its id columns; with ``header`` None the first line decides."""
    if path.is_dir() or path.suffix.lower() in (".parquet", ".pq"):
        return replace(_open_parquet(path), limits=limits)
    fields, line = _first_fields(path, limits)
    if header is None:
        header = bool(set(wanted) & set(fields)) or not all(map(_INTEGER.fullmatch, fields[: len(wanted)]))
    names = tuple(fields) if header else tuple(f"column {i + 1}" for i in range(len(fields)))
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{path}: line 1 names the column {twice!r} twice; expected different names")
    with _naming_file(path, names, (), limits), pa.OSFile(str(path)) as raw:
        skipped = line if header else line - 1
        table = Table(path, (path,), names, (), csv=True, header=header, skipped=skipped, limits=limits)
        return replace(table, types=tuple(_open_csv(_unpacked(raw, path), table, {}).schema.types))


def path_of(given: TableLike) -> Path:
    """Return the path of a file or table, for messages."""
    return given.path if isinstance(given, Table) else given


def open_tables(given: Sequence[TableLike], *, wanted: Sequence[str], limits: Limits = DEFAULT) -> Table:
    """Open several tables with the same columns, in any order, as one."""
    first, *more = (
        each if isinstance(each, Table) else open_table(each, wanted=wanted, limits=limits) for each in given
    )
    for table in more:
        lacks = set(first.names) ^ set(table.names)
        if lacks:
            name = min(lacks)
            has, other = (first, table) if name in first.names else (table, first)
            raise ValueError(
                f"{other.path}: no column {name!r}, which {has.path} has; expected the same columns"
            )
        if table.csv != first.csv:
            raise ValueError(
                f"{table.path}: not of the format of {first.path}; expected all text or all Parquet"
            )
    return replace(first, more=tuple(more))


def refuse_ids_as_names(table: Table, batch: Batch, columns: Sequence[str]) -> None:
    """Refuse a text of string ids without a header: its first line would be read as column names."""
    if not table.header:
        return
    for column, word in product(columns, columns):
        row = pc.index(batch.columns.column(column), word).as_py()
        if row >= 0:
            raise ValueError(
                f"{batch.place.at(row)}: {word!r} is an id here and the name of a column in line {table.skipped}; "
                "a table of string ids needs a header: add a first line of column names"
            )


def refuse_numbers_as_names(table: Table, id_column: str) -> None:
    """Refuse a table of nodes with string ids but no header: its columns would be named by numbers."""
    others = [name for name in table.names if name != id_column]
    if table.header and id_column not in ("id", "") and any(map(_NUMBER.fullmatch, others)):
        raise ValueError(
            f"{table.path}: line {table.skipped} is either a header with numbers for names or a row of data; name "
            "the column of ids 'id', or, if there is no header, add one"
        )


def _open_parquet(path: Path) -> Table:
    files = tuple(parquet_files(path))
    with _naming_file(files[0], ()):
        schema = pq.read_schema(files[0])
    return Table(path, files, tuple(schema.names), tuple(schema.types))


def _open_parquet_file(file: Path, *, read_dictionary: Sequence[str] = ()) -> pq.ParquetFile:
    # Read ahead it would keep every row group it has read until it is closed.
    return pq.ParquetFile(
        file, buffer_size=BLOCK_BYTES, pre_buffer=False, read_dictionary=list(read_dictionary)
    )


def _num_rows(file: Path) -> int:
    with _naming_file(file, ()):
        return pq.read_metadata(file).num_rows


def _check_columns(source: pq.ParquetFile, columns: Sequence[str], file: Path) -> None:
    missing = [name for name in columns if name not in source.schema_arrow.names]
    if missing:
        found = ", ".join(source.schema_arrow.names)
        raise ValueError(f"{file}: no column {missing[0]!r}, which other files have; found {found}")


def _delimiter(path: Path) -> str:
    return "\t" if ".tsv" in path.name.lower()[-7:] else ","


def _first_fields(path: Path, limits: Limits) -> tuple[list[str], int]:
    """Read the fields of the first non-empty line, and the number of that line."""
    with _naming_file(path, ()), gzip.open(path) if _is_packed(path) else path.open("rb") as file:
        start = file.read(limits.line_bytes + 1)
    if len(start) > limits.line_bytes and not re.search(rb"[\r\n]", start.lstrip(b"\r\n")):
        raise ValueError(limits.too_long(str(path)))
    with _naming_file(path, ()):
        text = io.TextIOWrapper(io.BytesIO(start), encoding="utf-8-sig", newline="")
        rows = csv.reader(text, delimiter=_delimiter(path))
        fields = next((row for row in rows if row), [])
    if not fields:
        raise ValueError(f"{path} is empty; expected a table")
    return [field.strip() for field in fields], rows.line_num


def _unpacked(raw: pa.NativeFile, path: Path) -> pa.NativeFile:
    return pa.CompressedInputStream(raw, "gzip") if _is_packed(path) else raw


def _is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _claimed_bytes(source: pq.ParquetFile, columns: Sequence[str], file: Path) -> int:
    """Return the unpacked size of some Parquet columns by the file's own words: page sizes, or 8 bytes per value."""
    groups = [source.metadata.row_group(place) for place in range(source.metadata.num_row_groups)]
    places = range(source.metadata.num_columns)
    chunks = [group.column(place) for group in groups for place in places]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns]
    pages = max(sum(chunk.total_uncompressed_size for chunk in chunks), unpacked_bytes(file, chunks))
    values = max(source.metadata.num_rows * len(columns), sum(chunk.num_values for chunk in chunks))
    return max(pages, 8 * values)


def _read_groups(
    source: pq.ParquetFile, file: Path, columns: Sequence[str], strings: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read some columns in batches so small that repeated strings fit into memory once decoded."""
    rows = _rows_at_a_time(source, file, strings)
    for count, groups in groupby(range(len(rows)), rows.__getitem__):
        how: dict[str, Any] = {"columns": list(columns), "use_threads": False}
        yield from source.iter_batches(count, row_groups=list(groups), **how)


def _rows_at_a_time(source: pq.ParquetFile, file: Path, strings: Sequence[str]) -> list[int]:
    """Return the batch size for each row group, by the longest strings of its dictionaries."""
    if not strings:
        return [_BATCH_ROWS] * source.num_row_groups
    with _open_parquet_file(file, read_dictionary=strings) as encoded:
        longest = [_longest_strings(encoded, group, strings) for group in range(source.num_row_groups)]
    return [max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, length))) for length in longest]


def _longest_strings(encoded: pq.ParquetFile, group: int, strings: Sequence[str]) -> int:
    """Return the longest strings in a row group's dictionaries in bytes; Arrow reads all of them with one row."""
    for batch in encoded.iter_batches(1, row_groups=[group], columns=list(strings), use_threads=False):
        lengths = (pc.max(pc.binary_length(batch.column(name).dictionary)).as_py() for name in strings)
        return sum(length or 0 for length in lengths)
    return 0


def _decoded_bytes(column: pa.Array) -> int:
    """Return the size of strings after dictionary decoding."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = pc.binary_length(column.dictionary)
    return pc.sum(lengths.take(column.indices).cast(pa.int64())).as_py() or 0


def _values(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _open_csv(stream: Any, table: Table, types: Mapping[str, pa.DataType]) -> pa_csv.CSVStreamingReader:
    """Open a text as a stream of batches of the columns in ``types``, or of all."""
    return pa_csv.open_csv(
        stream,
        # One thread: only then do errors tell the row.
        read_options=pa_csv.ReadOptions(
            use_threads=False,
            block_size=table.limits.line_bytes,
            column_names=list(table.names),
            skip_rows=table.skipped,
        ),
        parse_options=pa_csv.ParseOptions(delimiter=_delimiter(table.path)),
        convert_options=pa_csv.ConvertOptions(column_types=dict(types), include_columns=list(types)),
    )


@contextmanager
def _naming_file(
    file: Path, names: Sequence[str], watched: Sequence[str] = (), limits: Limits = DEFAULT
) -> Iterator[None]:
    """Convert errors about a file's bytes to errors that name file, line and column."""
    try:
        yield
    except pa.ArrowException as error:
        if "straddles two block boundaries" in str(error):
            raise ValueError(limits.too_long(str(file))) from None
        if (found := _CONVERSION.search(str(error))) and names[int(found["column"])] in watched:
            needs: NeededParsing = "whole" if _INTEGER.fullmatch(found["value"]) else "text"
            raise TextIdsError(file, needs, _explain(file, names, str(error))) from None
        raise ValueError(_explain(file, names, str(error))) from None
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, gzip.BadGzipFile):
            raise  # the system's: no permission, no such file
        raise ValueError(f"{file} is cut off, damaged or not what its suffix says: {error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file} is not readable as a table of UTF-8 text: {error}") from None


_CONVERSION = re.compile(
    r"In CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?CSV conversion error to (?P<type>\S+): "
    r"invalid value '(?P<value>.*)'",
    re.DOTALL,
)
_PARSE = re.compile(r"CSV parse error: (?:Row #(?P<row>\d+): )?(?P<rest>.*)", re.DOTALL)


def _explain(file: Path, names: Sequence[str], message: str) -> str:
    if found := _CONVERSION.search(message):
        column = names[int(found["column"])]
        kind = "an integer, as those above are" if "int" in found["type"] else f"a {_plain(found['type'])}"
        return f"{file}: line {found['row']}, column {column!r}: {found['value']!r} is not {kind}"
    if found := _PARSE.search(message):
        return f"{file}: line {found['row']}: {found['rest']}"
    if "magic bytes" in message or "footer" in message:
        return f"{file} is not a Parquet file, or is cut off: {message}"
    return f"{file} is not readable: {message}"


def _plain(kind: str) -> str:
    return "number" if kind in ("float", "double") else kind


def column_named(table: Table, name: str, otherwise: int) -> str:
    """Return the column ``name`` if there is one, else the column at index ``otherwise``."""
    if name in table.names:
        return name
    return table.names[otherwise]


def decoded(values: Any) -> pa.Array:
    """Return the values of a column, decoded if it is dictionary-encoded, in one piece."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
