"""The cost of a run: a dated table of prices, a meter of usage, and the bill. It asks no cloud and no clock.

The table is ``prices.toml`` beside this file; a file of the same form adds or replaces entries. Server seconds are
those of the graph servers, which are also the parameter servers, so they include everything.
"""

import difflib
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, TypeVar

_BUILT_IN = Path(__file__).with_name("prices.toml")
_GB = 2**30
_MB_MS_PER_GB_S = 1024 * 1000


@dataclass(frozen=True)
class InstancePrice:
    """The price of a server: dollars ``per_hour``, on a date, in a region."""

    per_hour: float
    region: str
    date: date


@dataclass(frozen=True)
class FunctionPrice:
    """The price of a serverless function.

    Attributes:
        per_gb_second: dollars for 1024 MB of memory for a second.
        per_vcpu_second: dollars for a processor for a second; 0 if the price of memory includes it.
        per_million_requests: dollars for a million invocations.
        round_up_ms: the time of an invocation, with its start, is rounded up to a multiple of this.
    """

    per_gb_second: float
    per_vcpu_second: float
    per_million_requests: float
    round_up_ms: int
    region: str
    date: date


@dataclass(frozen=True)
class NetworkPrice:
    """The price of sending 2**30 bytes, by destination. Bytes between zones are billed at both ends."""

    internet_per_gb: float
    between_zones_per_gb_each_way: float
    within_zone_per_gb: float
    region: str
    date: date


@dataclass(frozen=True)
class Rates:
    """The prices that apply to one run."""

    instance: InstancePrice
    function: FunctionPrice
    bytes: NetworkPrice


@dataclass(frozen=True)
class Prices:
    """All known prices, by name."""

    instances: Mapping[str, InstancePrice]
    functions: Mapping[str, FunctionPrice]
    bytes: Mapping[str, NetworkPrice]

    def rates(
        self, instance: str = "c5n.2xlarge", function: str = "lambda-x86", *, bytes: str = "aws"
    ) -> Rates:
        """Look up the prices of a server, a function and a network; a ValueError names the nearest known name."""
        return Rates(
            _lookup(self.instances, instance, "instance"),
            _lookup(self.functions, function, "function"),
            _lookup(self.bytes, bytes, "network"),
        )


@dataclass(frozen=True)
class Invocation:
    """One invocation of a function.

    Attributes:
        seconds: from its begin to its end, or until now.
        init_s: of the start before that, which is billed too; 0 for a warm function.
        memory_mb: its memory limit.
        vcpus: its processors; they count if the price bills them.
    """

    seconds: float
    init_s: float = 0.0
    memory_mb: int = 1769
    vcpus: float = 1.0


@dataclass(frozen=True)
class Meter:
    """Usage in the units that are billed. Meters can be added, and subtracted to get the usage of a period.

    Attributes:
        server_seconds: seconds times servers.
        memory_mb_ms: memory times billed milliseconds of invocations.
        vcpu_ms: processors times billed milliseconds of invocations.
        requests: the number of invocations.
        internet_bytes, between_zones_bytes, within_zone_bytes: bytes sent, by destination, each counted once.
    """

    server_seconds: float = 0.0
    memory_mb_ms: int = 0
    vcpu_ms: float = 0.0
    requests: int = 0
    internet_bytes: int = 0
    between_zones_bytes: int = 0
    within_zone_bytes: int = 0

    def __add__(self, other: "Meter") -> "Meter":
        return Meter(*(a + b for a, b in zip(_values(self), _values(other), strict=True)))

    def __sub__(self, other: "Meter") -> "Meter":
        return Meter(*(a - b for a, b in zip(_values(self), _values(other), strict=True)))

    def with_servers(self, servers: int, *, seconds: float) -> "Meter":
        """Return the meter with the time of servers added, busy or idle."""
        return replace(self, server_seconds=self.server_seconds + servers * seconds)

    def with_invocation(self, invocation: Invocation, price: FunctionPrice) -> "Meter":
        """Return the meter with an invocation added; one that still runs is billed as if it ended now."""
        billed = billed_ms(invocation, price)
        return replace(
            self,
            memory_mb_ms=self.memory_mb_ms + invocation.memory_mb * billed,
            vcpu_ms=self.vcpu_ms + invocation.vcpus * billed,
            requests=self.requests + 1,
        )


@dataclass(frozen=True)
class Bill:
    """Dollars, by item."""

    servers: float
    functions: float
    requests: float
    bytes: float

    @property
    def dollars(self) -> float:
        """The total."""
        return self.servers + self.functions + self.requests + self.bytes


def billed_ms(invocation: Invocation, price: FunctionPrice) -> int:
    """Return the billed milliseconds of an invocation: its start and its run together, rounded up.

    Seconds are first rounded to nanoseconds, so that 0.07 s are 70 ms, not 71 by a rounding error.
    """
    steps = round((invocation.init_s + invocation.seconds) * 1000 / price.round_up_ms, 6)
    return math.ceil(steps) * price.round_up_ms


def charge(meter: Meter, rates: Rates) -> Bill:
    """Compute the bill of a meter."""
    function, network = rates.function, rates.bytes
    memory = meter.memory_mb_ms / _MB_MS_PER_GB_S * function.per_gb_second
    sent = (
        meter.internet_bytes * network.internet_per_gb
        + meter.between_zones_bytes * 2 * network.between_zones_per_gb_each_way
        + meter.within_zone_bytes * network.within_zone_per_gb
    )
    return Bill(
        servers=meter.server_seconds / 3600 * rates.instance.per_hour,
        functions=memory + meter.vcpu_ms / 1000 * function.per_vcpu_second,
        requests=meter.requests / 1_000_000 * function.per_million_requests,
        bytes=sent / _GB,
    )


def value(seconds: float, dollars: float) -> float:
    """Compute V = 1 / (time x cost), as in Dorylus: twice as fast for the same money is twice the value."""
    return 1 / (seconds * dollars) if seconds > 0 and dollars > 0 else math.inf


def read_prices(own: Path | None = None) -> Prices:
    """Read the built-in table, overridden by a user's own file; a ValueError says what is wrong with that."""
    known = _read(_BUILT_IN)
    if own is None:
        return known
    user = _read(own)
    return Prices(
        instances={**known.instances, **user.instances},
        functions={**known.functions, **user.functions},
        bytes={**known.bytes, **user.bytes},
    )


_Entry = TypeVar("_Entry", InstancePrice, FunctionPrice, NetworkPrice)
_KINDS = ("instances", "functions", "bytes")


def _read(path: Path) -> Prices:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); expected a TOML file of prices"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from error
    _check_keys(tables, _KINDS, f"{path}")
    return Prices(
        instances=_entries(path, tables, "instances", InstancePrice),
        functions=_entries(path, tables, "functions", FunctionPrice),
        bytes=_entries(path, tables, "bytes", NetworkPrice),
    )


def _entries(
    path: Path, tables: Mapping[str, Any], kind: str, make: Callable[..., _Entry]
) -> dict[str, _Entry]:
    return {
        name: _entry(f"{path}: {kind}.{name}", table, make)
        for name, table in _table(tables.get(kind, {}), f"{path}: {kind}").items()
    }


def _entry(where: str, table: Any, make: Callable[..., _Entry]) -> _Entry:
    expected = tuple(field.name for field in fields(make))  # type: ignore[arg-type]
    found = _table(table, where)
    _check_keys(found, expected, where)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ValueError(
            f"{where}: no {' and no '.join(missing)}; an entry is given whole: {', '.join(expected)}"
        )
    return make(**{name: _checked(f"{where}.{name}", name, found[name]) for name in expected})


def _checked(where: str, name: str, found: Any) -> Any:
    if name == "region":
        good, expected = isinstance(found, str) and bool(found), "the name of a region"
    elif name == "date":
        good = isinstance(found, date) and not isinstance(found, datetime)
        expected = "a date such as 2026-11-16, without quotes"
    elif name == "round_up_ms":
        good = isinstance(found, int) and not isinstance(found, bool) and found > 0
        expected = "a whole number of milliseconds, 1 or more"
    else:
        number = isinstance(found, int | float) and not isinstance(found, bool)
        good, expected = number and 0 <= found < math.inf, "dollars, 0 or more"
    if not good:
        raise ValueError(f"{where} is {found!r}; expected {expected}")
    return found


def _table(found: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise ValueError(f"{where} is {found!r}; expected a table")
    return found


def _check_keys(found: Mapping[str, Any], expected: tuple[str, ...], where: str) -> None:
    for name in found:
        if name not in expected:
            raise ValueError(
                f"{where}: unknown key {name!r}{_nearest(name, expected)}; expected {', '.join(expected)}"
            )


def _lookup(known: Mapping[str, _Entry], name: str, what: str) -> _Entry:
    if name not in known:
        raise ValueError(
            f"no price of {what} {name!r}{_nearest(name, tuple(known))}; known are {', '.join(known)}; "
            "give your own in a TOML file of prices"
        )
    return known[name]


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _values(meter: Meter) -> list[Any]:
    return [getattr(meter, field.name) for field in fields(meter)]
