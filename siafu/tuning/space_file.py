"""Read a search space that the user gave: a TOML file, or a mapping of the same form.

A key is a setting, a value a list of choices or a table with low, high and, if wanted, log and step.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from siafu.config import build, merge
from siafu.results.record import flatten
from siafu.tuning.space import Choices, Domain, Entry, Range, Settings, Space, Value

# They say on what, where or how a run is trained or scored, so that trials could not be compared.
NOT_SEARCHED = frozenset(
    {
        *("method", "task", "engine", "ranks", "threads", "seeds", "baseline", "source", "fingerprint"),
        *("class_names", "data.fold", "train.metric", "train.search", "link.split", "link.evaluation"),
        *("snapshots.step", "snapshots.window", "snapshots.edge_life"),
    }
)
_OF_RANGE = ("low", "high", "log", "step")


def read_space(space: Path | str | Mapping[str, Any], *, fixed: Mapping[str, Any]) -> Space:
    """Read and check a space; ``fixed`` are the tables of settings that the user gave beside it.

    Errors name the file and the key.
    """
    if isinstance(space, Mapping):
        return _parse(space, fixed, "space")
    path = Path(space)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None
    return _parse(tables, fixed, str(path))


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn keys such as ``model.hidden`` into nested tables."""
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        tables = merge(tables, {table: {name: value}} if table else {key: value})
    return tables


def parse_domain(value: Any) -> Domain:
    """Parse a list of choices or the table of a range; a ValueError says what was found and expected."""
    if isinstance(value, list):
        return _parse_choices(value)
    if isinstance(value, Mapping):
        return _parse_range(value)
    raise ValueError(
        f"is {value!r}; expected a list of choices, or a table such as {{low = 0.001, high = 0.1}}"
    )


def space_to_plain(space: Space) -> list[list[Any]]:
    """Return a space as plain JSON values."""
    return [[entry.key, entry.domain.to_plain(), list(entry.kinds)] for entry in space]


def space_from_plain(plain: Any) -> Space:
    """Return the space that :func:`space_to_plain` was given."""
    return tuple(
        Entry(str(key), parse_domain(domain), tuple(map(str, kinds))) for key, domain, kinds in plain
    )


def _parse(tables: Mapping[str, Any], fixed: Mapping[str, Any], where: str) -> Space:
    found = dict(_entries(tables))
    if not found:
        raise ValueError(f"{where}: names no setting; expected lines such as model.hidden = [64, 128, 256]")
    given, space = flatten(fixed), []
    for key, value in found.items():
        try:
            space.append(_parse_entry(key, value, given))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        _check_values(space[-1], fixed, where)
    return tuple(space)


def _entries(tables: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield each setting with its choices or range, from nested tables or from keys with dots."""
    for key, value in tables.items():
        if isinstance(value, Mapping) and not prefix and "." not in key and not set(value) & set(_OF_RANGE):
            yield from _entries(value, f"{key}.")
        else:
            yield f"{prefix}{key}", value


def _parse_entry(key: str, value: Any, given: Settings) -> Entry:
    if key in NOT_SEARCHED:
        raise ValueError(f"{key} cannot be searched, since scores would not compare; leave it out")
    if key in given:
        raise ValueError(
            f"{key} is to be searched, but you also set it to {given[key]}; leave one of the two out"
        )
    try:
        return Entry(key, parse_domain(value))
    except ValueError as error:
        raise ValueError(f"{key} {error}") from None


def _parse_choices(values: list[Any]) -> Choices:
    if not values:
        raise ValueError("is an empty list; expected at least one choice")
    for value in values:
        if not isinstance(value, bool | int | float | str):
            raise ValueError(f"has the choice {value!r}; expected numbers, texts, true or false")
    again = next(
        (value for place, value in enumerate(values) if value in Choices(tuple(values[:place]))), None
    )
    if again is not None:
        raise ValueError(f"has the choice {again!r} twice; expected different choices")
    return Choices(tuple(values))


def _parse_range(table: Mapping[str, Any]) -> Range:
    if unknown := sorted(set(table) - set(_OF_RANGE)):
        raise ValueError(f"has the field {unknown[0]!r}; expected low, high, log, step")
    low, high, step = (_number(table, name) for name in ("low", "high", "step"))
    log = table.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"has log = {log!r}; expected true or false")
    if low is None or high is None:
        raise ValueError(f"has no {'low' if low is None else 'high'}; expected both low and high")
    if not low < high:
        raise ValueError(f"goes from low = {low} to high = {high}; expected low below high")
    if log and low <= 0:
        raise ValueError(f"has log = true and low = {low}; expected low above 0")
    if log and step is not None:
        raise ValueError("has both log and step; leave one of them out")
    if step is not None and not 0 < step <= high - low:
        raise ValueError(f"has step = {step}; expected a number above 0, and at most {high - low:g}")
    if step is None:
        return Range(low, high, log)
    if not isinstance(step, int):
        low = float(low)
    return Range(
        low, low + (high - low + 1e-9) // step * step, step=step
    )  # the highest number that is reached


def _number(table: Mapping[str, Any], name: str) -> float | None:
    value = table.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        raise ValueError(f"has {name} = {value!r}; expected a finite number")
    return value


def _check_values(entry: Entry, fixed: Mapping[str, Any], where: str) -> None:
    """Refuse unknown settings, and values that a config refuses."""
    for value in _examples(entry.domain):
        try:
            build(fixed, nested({entry.key: value}))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _examples(domain: Domain) -> tuple[Value, ...]:
    """Return all choices, or both ends of a range and a number between them."""
    if isinstance(domain, Choices):
        return domain.values
    between = domain.low + (domain.step or (1 if domain.is_int else 0.37 * (domain.high - domain.low)))
    return domain.low, domain.high, between
