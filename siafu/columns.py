"""Typed columns of a table: numbers, dates, booleans, categories, lists of numbers and texts of nodes or edges.

They hold values as the user gave them. ``siafu.data.columns`` encodes them as features.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Kind = Literal["number", "boolean", "category", "date", "list", "text"]
Scale = Literal["auto", "standard", "quantile"]
MAX_WIDTH = 1 << 16


@dataclass(frozen=True)
class ColumnType:
    """The name of a column, what its values are, and how they are encoded.

    Attributes:
        name: as in the user's table.
        kind: what its values are.
        width: categories: how many values have a feature of their own; texts: how many features words are hashed to.
        scale: numbers, dates and lists: standardised, or by quantiles; auto: by quantiles where they are skewed.
    """

    name: str
    kind: Kind
    width: int = 64
    scale: Scale = "auto"


@dataclass(frozen=True, eq=False)
class Column:
    """A typed column of N values.

    Attributes:
        type: its name, kind and encoding.
        values: by kind: number (N,) float64, NaN for a blank; boolean (N,) int8, -1 for a blank; category (N,) int32,
            places in ``vocabulary``, -1 for a blank; date (N,) float64 seconds since 1970 in UTC, NaN for a blank; list
            (N, K) float32, NaN in all of a blank row; text: an Arrow array of N strings.
        vocabulary: an Arrow array of the different values of a category; None for other kinds.
    """

    type: ColumnType
    values: Any
    vocabulary: Any = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray | slice) -> "Column":
        """Return the values of some rows."""
        if self.type.kind != "text":
            return replace(self, values=self.values[rows])
        if isinstance(rows, slice):
            return replace(self, values=self.values[rows.start : rows.stop])
        return replace(self, values=self.values.take(rows))


Columns = tuple[Column, ...]


def take_columns(columns: Columns | None, rows: np.ndarray | slice) -> Columns | None:
    """Return some rows of columns; None for None."""
    return None if columns is None else tuple(column.take(rows) for column in columns)
