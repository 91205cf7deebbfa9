"""Encoders of columns: each is fitted to the values of training nodes, and turns values into features.

An encoder is a few numbers and words, which JSON holds exactly.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, Field

from siafu.columns import MAX_WIDTH, Column, Scale

_SKEWED = 3.0  # skewness from which numbers are scaled by quantiles; an exponential variable has 2
_QUANTILES = 65
_VALUES_A_BUCKET = 4  # the width of a category is so many times the number of buckets
_FARTHEST = 10.0  # standard deviations; values beyond are cut
_ENOUGH_NODES, _ENOUGH_SHARE = 30, 0.005  # training nodes with a value from which it has a feature of its own
_DAY_S, _YEAR_DAYS = 86400.0, 365.2425
_UNIT = 12**0.5  # a uniform variable of standard deviation 1 is so wide


class Scaling(BaseModel):
    """The scale of a number: standardised, or by its place among quantiles of the training nodes.

    Attributes:
        mean, deviation: of the training nodes.
        points, levels: values of the training nodes, and the share of nodes below each; empty if standardised.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    mean: float
    deviation: Annotated[float, Field(gt=0)]
    points: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()

    @staticmethod
    def fit(values: np.ndarray, scale: Scale) -> "Scaling":
        """Fit to the values of training nodes, (n,) float64 with NaN for blanks."""
        filled = values[~np.isnan(values)]
        if not filled.size:
            return Scaling(mean=0.0, deviation=1.0)
        mean, deviation = float(filled.mean()), float(filled.std())
        if deviation <= 1e-12 * abs(mean):
            return Scaling(mean=mean, deviation=1.0)
        skewness = float((((filled - mean) / deviation) ** 3).mean())
        if scale == "standard" or (scale == "auto" and abs(skewness) <= _SKEWED):
            return Scaling(mean=mean, deviation=deviation)
        shares = np.linspace(0, 1, _QUANTILES)
        points, place, count = np.unique(np.quantile(filled, shares), return_inverse=True, return_counts=True)
        levels = np.bincount(place, shares) / count
        return Scaling(mean=mean, deviation=deviation, points=points.tolist(), levels=levels.tolist())

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Scale values to mean 0 and deviation 1; a blank becomes 0."""
        if self.points:
            scaled = (np.interp(values, self.points, self.levels) - 0.5) * _UNIT
        else:
            scaled = np.clip((values - self.mean) / self.deviation, -_FARTHEST, _FARTHEST)
        return np.where(np.isnan(values), 0.0, scaled)


class _Encoder(BaseModel):
    """The part that encoders share: the name of the column, and whether training nodes had blanks."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    blanks: bool

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        return [*self._features(), *([f"{self.name} is blank"] if self.blanks else [])]

    def encode(self, column: Column, out: np.ndarray) -> None:
        """Write the features of n values to ``out``, (n, F) float32 of zeros."""
        if self.blanks:
            out[:, -1] = blank_rows(column)
        self._encode(column, out[:, : len(self._features())])

    def placed(self, column: Column) -> Column:
        """Return the column as :meth:`encode` reads it: values of categories are places of features."""
        return column

    def _features(self) -> list[str]:
        raise NotImplementedError

    def _encode(self, column: Column, out: np.ndarray) -> None:
        raise NotImplementedError


class NumberEncoder(_Encoder):
    """A number becomes one feature."""

    kind: Literal["number"] = "number"
    scaling: Scaling

    @staticmethod
    def fit(train: Column) -> "NumberEncoder":
        """Fit to the values of training nodes."""
        scaling = Scaling.fit(train.values, train.type.scale)
        return NumberEncoder(name=train.type.name, blanks=has_blanks(train), scaling=scaling)

    def _features(self) -> list[str]:
        return [self.name]

    def _encode(self, column: Column, out: np.ndarray) -> None:
        out[:, 0] = self.scaling.apply(column.values)


class BooleanEncoder(_Encoder):
    """A boolean becomes 1 or -1; a blank 0."""

    kind: Literal["boolean"] = "boolean"

    @staticmethod
    def fit(train: Column) -> "BooleanEncoder":
        """Fit to the values of training nodes."""
        return BooleanEncoder(name=train.type.name, blanks=has_blanks(train))

    def _features(self) -> list[str]:
        return [self.name]

    def _encode(self, column: Column, out: np.ndarray) -> None:
        out[:, 0] = np.where(column.values < 0, 0, 2 * column.values - 1)


class DateEncoder(_Encoder):
    """A date becomes its age, and sine and cosine of the day of the year, of the week, and of the time of day.

    Attributes:
        latest: of the training nodes, seconds since 1970; ages count from it.
        scaling: of the age in days.
        hours: whether training nodes have times of day.
    """

    kind: Literal["date"] = "date"
    latest: float
    scaling: Scaling
    hours: bool

    @staticmethod
    def fit(train: Column) -> "DateEncoder":
        """Fit to the values of training nodes."""
        filled = train.values[~np.isnan(train.values)]
        latest = float(filled.max(initial=-np.inf)) if filled.size else 0.0
        return DateEncoder(
            name=train.type.name,
            blanks=has_blanks(train),
            latest=latest,
            scaling=Scaling.fit((latest - train.values) / _DAY_S, train.type.scale),
            hours=bool((filled % _DAY_S != 0).any()),
        )

    def _features(self) -> list[str]:
        cycles = ["year", "week", *(["day"] if self.hours else [])]
        parts = [f"{self.name} {part} of the {cycle}" for cycle in cycles for part in ("sine", "cosine")]
        return [f"{self.name} age", *parts]

    def _encode(self, column: Column, out: np.ndarray) -> None:
        days = column.values / _DAY_S
        out[:, 0] = self.scaling.apply((self.latest - column.values) / _DAY_S)
        cycles = [days / _YEAR_DAYS, np.floor(days) / 7, *([days] if self.hours else [])]
        blank = np.isnan(days)
        for place, cycle in enumerate(cycles):
            angle = 2 * np.pi * np.where(blank, 0.0, cycle % 1)
            out[:, 1 + 2 * place] = np.where(blank, 0.0, np.sin(angle))
            out[:, 2 + 2 * place] = np.where(blank, 0.0, np.cos(angle))


class CategoryEncoder(_Encoder):
    """A category becomes one feature for each frequent value; others share one for unknown values, or are hashed.

    A value is frequent if 30 training nodes have it, or half a percent of them if that is less. Others are hashed where
    there are more values than the width of the column.

    Attributes:
        values: the frequent values of the training nodes, the most frequent first.
        buckets: how many features the other values are hashed to; 0: they share one, for unknown values.
    """

    kind: Literal["category"] = "category"
    values: tuple[str, ...]
    buckets: Annotated[int, Field(ge=0, le=MAX_WIDTH)]

    @staticmethod
    def fit(train: Column) -> "CategoryEncoder":
        """Fit to the values of training nodes."""
        count = np.bincount(train.values[train.values >= 0], minlength=len(train.vocabulary))
        enough = max(1, min(_ENOUGH_NODES, _ENOUGH_SHARE * len(train)))
        words = {
            int(place): train.vocabulary[int(place)].as_py() for place in np.flatnonzero(count >= enough)
        }
        ranked = sorted(words, key=lambda place: (-count[place], words[place]))
        width = train.type.width
        return CategoryEncoder(
            name=train.type.name,
            blanks=has_blanks(train),
            values=tuple(words[place] for place in ranked[:width]),
            buckets=-(-width // _VALUES_A_BUCKET) if np.count_nonzero(count) > width else 0,
        )

    def placed(self, column: Column) -> Column:
        """See :class:`_Encoder`; a value that is not in the vocabulary of the training data is unknown."""
        return replace(column, values=self._slots(column.vocabulary)[column.values])

    def _slots(self, vocabulary: Any) -> np.ndarray:
        known, first = {value: place for place, value in enumerate(self.values)}, len(self.values)
        found = [known.get(value, first) for value in vocabulary.to_pylist()]
        if self.buckets:
            words = zip(found, vocabulary.to_pylist(), strict=True)
            found = [slot if slot < first else first + word_hash(word, self.buckets) for slot, word in words]
        return np.array([*found, -1], dtype=np.int32)  # the last is that of place -1, a blank

    def _features(self) -> list[str]:
        others = [f"{self.name} hashed to {place}" for place in range(self.buckets)]
        return [
            *(f"{self.name} = {value}" for value in self.values),
            *(others or [f"{self.name} is unknown"]),
        ]

    def _encode(self, column: Column, out: np.ndarray) -> None:
        filled = np.flatnonzero(column.values >= 0)
        out[filled, column.values[filled]] = 1


class ListEncoder(_Encoder):
    """A list of K numbers becomes K features."""

    kind: Literal["list"] = "list"
    scalings: tuple[Scaling, ...]

    @staticmethod
    def fit(train: Column) -> "ListEncoder":
        """Fit to the values of training nodes."""
        scalings = [Scaling.fit(column.astype(np.float64), train.type.scale) for column in train.values.T]
        return ListEncoder(name=train.type.name, blanks=has_blanks(train), scalings=tuple(scalings))

    def _features(self) -> list[str]:
        return [f"{self.name}[{place}]" for place in range(len(self.scalings))]

    def _encode(self, column: Column, out: np.ndarray) -> None:
        for place, scaling in enumerate(self.scalings):
            out[:, place] = scaling.apply(column.values[:, place].astype(np.float64))


class TextEncoder(_Encoder):
    """The words of a text are hashed to features and counted; the counts of a text have length 1."""

    kind: Literal["text"] = "text"
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)]

    @staticmethod
    def fit(train: Column) -> "TextEncoder":
        """Fit to the values of training nodes."""
        return TextEncoder(name=train.type.name, blanks=has_blanks(train), width=train.type.width)

    def _features(self) -> list[str]:
        return [f"{self.name} words hashed to {place}" for place in range(self.width)]

    def _encode(self, column: Column, out: np.ndarray) -> None:
        import pyarrow.compute as pc

        from siafu.data.columns.parsing import split_words

        words, rows = split_words(column.values)
        encoded = pc.dictionary_encode(words)
        slots = np.array(
            [word_hash(word, self.width) for word in encoded.dictionary.to_pylist()], dtype=np.int64
        )
        np.add.at(out, (rows, slots[encoded.indices.to_numpy()]), 1)
        out /= np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1)


AnyEncoder = Annotated[
    NumberEncoder | BooleanEncoder | DateEncoder | CategoryEncoder | ListEncoder | TextEncoder,
    Field(discriminator="kind"),
]
ENCODERS: dict[str, Any] = {
    "number": NumberEncoder,
    "boolean": BooleanEncoder,
    "date": DateEncoder,
    "category": CategoryEncoder,
    "list": ListEncoder,
    "text": TextEncoder,
}


def blank_rows(column: Column) -> np.ndarray:
    """Return which values are blank, (n,) bool."""
    match column.type.kind:
        case "text":
            import pyarrow.compute as pc

            return pc.equal(pc.utf8_trim_whitespace(column.values), "").to_numpy(zero_copy_only=False)
        case "list":
            return np.isnan(column.values).all(1)
        case "boolean" | "category":
            return column.values < 0
    return np.isnan(column.values)


def has_blanks(column: Column) -> bool:
    """Return whether any value is blank."""
    return bool(blank_rows(column).any())


def word_hash(word: str, width: int) -> int:
    """Return the place, below ``width``, that a word is hashed to; it never changes."""
    return int(xxhash.xxh3_64_intdigest(word.encode()) % width)
