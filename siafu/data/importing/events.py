"""Read events in batches: edges with a time and maybe a class."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from siafu.data.importing.edges import EdgeBatch, TableEdges, end_columns, finite, native_ids, with_ids
from siafu.data.importing.file_location import FileLocation
from siafu.data.importing.limits import Limits
from siafu.data.importing.numpy_files import NpyFile, names_in_npz
from siafu.data.importing.tables import Batch, Table, open_table
from siafu.event_log import Progress

_BATCH_ROWS = 1 << 20
_TIMES, _WEIGHTS, _LABEL = ("t", "time", "timestamp"), ("w", "weight"), "label"


@dataclass(frozen=True)
class TableEvents(TableEdges):
    """Events in a table: ``src``, ``dst``, ``t``, maybe ``w`` and ``label``; else its first three columns, or four."""

    time_column: str = "t"
    label_column: str | None = None
    label: ClassVar[str] = "events"

    @property
    def labelled(self) -> bool:
        """Return whether events have classes."""
        return self.label_column is not None

    @property
    def roles(self) -> dict[str, str]:
        """See :class:`EdgeSource`."""
        label = {} if self.label_column is None else {"label": self.label_column}
        return {**super().roles, "time": self.time_column, **label}

    def _wanted(self) -> tuple[str, ...]:
        label = () if self.label_column is None else (self.label_column,)
        return (*super()._wanted(), self.time_column, *label)

    def _read(self, batch: Batch) -> EdgeBatch:
        label = None if self.label_column is None else _classes(batch, self.label_column)
        return super()._read(batch)._replace(time=_times(batch, self.time_column), label=label)


@dataclass(frozen=True)
class ArrayEvents:
    """Events in arrays, (M,) each: ids of integers, times, and maybe weights and classes."""

    src: NpyFile
    dst: NpyFile
    t: NpyFile
    weight: NpyFile | None = None
    label: NpyFile | None = None
    columns: tuple[str, str] = ("src", "dst")
    strings: bool = False

    @property
    def stored(self) -> dict[str, np.dtype]:
        """See :class:`EdgeSource`."""
        return {}

    @property
    def path(self) -> Path:
        """See :class:`EdgeSource`."""
        return self.src.shown.parent

    @property
    def weighted(self) -> bool:
        """See :class:`EdgeSource`."""
        return self.weight is not None

    @property
    def labelled(self) -> bool:
        """Return whether events have classes."""
        return self.label is not None

    @property
    def most_edges(self) -> int:
        """See :class:`EdgeSource`."""
        return self.t.shape[0]

    @property
    def roles(self) -> dict[str, str]:
        """See :class:`EdgeSource`."""
        arrays = {
            "src": self.src,
            "dst": self.dst,
            "time": self.t,
            "weight": self.weight,
            "label": self.label,
        }
        return {role: array.shown.name for role, array in arrays.items() if array is not None}

    def batches(self, progress: Progress) -> Iterator[EdgeBatch]:
        """See :class:`EdgeSource`."""
        total = self.t.shape[0]
        for start in range(0, total, _BATCH_ROWS):
            rows = slice(start, min(start + _BATCH_ROWS, total))
            place = FileLocation(self.path, "event", start)
            yield EdgeBatch(
                native_ids(self.src.read(rows)),
                native_ids(self.dst.read(rows)),
                None if self.weight is None else finite(self.weight.read(rows), place, "w"),
                place,
                _numbers(self.t.read(rows), place, "t"),
                None if self.label is None else _known_classes(self.label.read(rows), place, "edge_y"),
            )
            progress("events", rows.stop, total)


EventSource = TableEvents | ArrayEvents


def table_events(path: Path, limits: Limits) -> TableEvents:
    """Open a table of events."""
    table = open_table(path, wanted=("src", "dst"), limits=limits)
    if len(table.names) < 3:
        raise ValueError(
            f"{path} has the columns {', '.join(table.names)}; expected src, dst and t, or any three"
        )
    columns = end_columns(table)
    time, weight, label = _further_columns(table, named=columns == ("src", "dst"))
    table = with_ids(table, columns)
    if table.csv:
        stamps = pa.types.is_temporal(table.type_of(time))
        numbers = {name: pa.float32() for name in (weight,) if name is not None}
        table = table.read_as(numbers if stamps else numbers | {time: pa.float64()})
    return TableEvents(table, columns, weight, time_column=time, label_column=label)


def array_events(path: Path, arrays: dict[str, NpyFile]) -> ArrayEvents:
    """Check the arrays of events of an ``.npz`` file."""
    if not {"src", "dst", "t"} <= arrays.keys():
        found = ", ".join(names_in_npz(path)) or "no array"
        raise ValueError(f"{path} holds {found}; expected arrays src, dst and t, of numbers")
    count = arrays["t"].shape
    for name in ("src", "dst", "t", "w", "edge_y"):
        if name in arrays and (len(count) != 1 or arrays[name].shape != count):
            raise ValueError(
                f"{arrays[name].shown} is {arrays[name].shape}; expected a value an event, as many as t"
            )
    for name in ("src", "dst", "edge_y"):
        if name in arrays and arrays[name].dtype.kind not in "iu":
            raise ValueError(f"{arrays[name].shown} is an array of {arrays[name].dtype}; expected integers")
    return ArrayEvents(arrays["src"], arrays["dst"], arrays["t"], arrays.get("w"), arrays.get("edge_y"))


def _further_columns(table: Table, *, named: bool) -> tuple[str, str | None, str | None]:
    """The columns of times, weights and classes; the last two may be missing."""
    if not named:
        return table.names[2], table.names[3] if len(table.names) > 3 else None, None
    time = next((name for name in _TIMES if name in table.names), None)
    if time is None:
        raise ValueError(
            f"{table.path} has no column 't', when an event happened; found {', '.join(table.names)}"
        )
    weight = next((name for name in _WEIGHTS if name in table.names), None)
    return time, weight, _LABEL if _LABEL in table.names else None


def _times(batch: Batch, name: str) -> np.ndarray:
    """Times as numbers; stamps become seconds since 1970."""
    column = batch.columns.column(name)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        whole = pa.types.is_date(column.type) or column.type.unit == "s"
        stamps = column.cast(pa.timestamp("s" if whole else "us"), safe=False).cast(pa.int64())
        _refuse_missing(stamps, batch.place, name)
        numbers = stamps.to_numpy(zero_copy_only=False)
        return numbers if whole else numbers / 1e6
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        found = next((value.as_py() for value in column if value.is_valid), None)
        raise ValueError(
            f"{batch.place.file}: column {name!r} holds {column.type}, such as {found!r}; expected times as numbers "
            "or as time stamps"
        )
    _refuse_missing(column, batch.place, name)
    return _numbers(column.to_numpy(zero_copy_only=False), batch.place, name)


def _numbers(values: np.ndarray, place: FileLocation, name: str) -> np.ndarray:
    times = values.astype(np.int64 if values.dtype.kind in "iu" else np.float64, copy=False)
    bad = ~np.isfinite(times)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{place.at(row)}, column {name!r} is {times[row]}; expected a time, a finite number"
        )
    return times


def _refuse_missing(column: pa.Array, place: FileLocation, name: str) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"{place.at(row)}, column {name!r} is empty or NaN; expected the time of the event")


def _classes(batch: Batch, name: str) -> np.ndarray:
    column = batch.columns.column(name)
    if not pa.types.is_integer(column.type):
        raise ValueError(
            f"{batch.place.file}: column {name!r} holds {column.type}; expected classes from 0, -1 for none"
        )
    return _known_classes(column.fill_null(-1).to_numpy(zero_copy_only=False), batch.place, name)


def _known_classes(values: np.ndarray, place: FileLocation, name: str) -> np.ndarray:
    bad = values < -1 if values.dtype.kind == "i" else np.zeros(values.shape, bool)
    bad |= values >= 65536
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"{place.at(row)}, column {name!r} is {values[row]}; expected a class from 0, or -1 for none"
        )
    return values.astype(np.int64)
