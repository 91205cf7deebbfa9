"""What a run costs: a dated table of prices, what was used, and the bill. It asks no cloud and no clock.

The table is ``prices.toml`` beside this file; a file of the same form adds entries or replaces them. Server seconds are
those of graph servers, in which the parameter servers live: nothing is left out.
"""

import difflib
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, TypeVar

_OWN = Path(__file__).with_name("prices.toml")
_GB = 2**30
_MB_MS_PER_GB_S = 1024 * 1000


@dataclass(frozen=True)
class Instance:
    """A server's price: dollars ``per_hour``, true at a date, in a region."""

    per_hour: float
    region: str
    date: date


@dataclass(frozen=True)
class Function:
    """A serverless function's price.

    Attributes:
        per_gb_second: dollars for 1024 MB of its memory for a second.
        per_vcpu_second: dollars for a processor for a second; 0 where memory pays for it.
        per_million_requests: dollars for a million calls.
        round_up_ms: a call's time, its start included, is rounded up to a multiple of so many milliseconds.
    """

    per_gb_second: float
    per_vcpu_second: float
    per_million_requests: float
    round_up_ms: int
    region: str
    date: date


@dataclass(frozen=True)
class Bytes:
    """The price of moving 2**30 bytes, by where they go. What crosses zones is billed at both ends."""

    internet_per_gb: float
    between_zones_per_gb_each_way: float
    within_zone_per_gb: float
    region: str
    date: date


@dataclass(frozen=True)
class Rates:
    """The prices that one run pays."""

    instance: Instance
    function: Function
    bytes: Bytes


@dataclass(frozen=True)
class Prices:
    """Every price that is known, by name."""

    instances: Mapping[str, Instance]
    functions: Mapping[str, Function]
    bytes: Mapping[str, Bytes]

    def rates(
        self, instance: str = "c5n.2xlarge", function: str = "lambda-x86", *, bytes: str = "aws"
    ) -> Rates:
        """Those of a kind of server, of function and of network; a ValueError names the nearest that is known."""
        return Rates(
            _named(self.instances, instance, "instance"),
            _named(self.functions, function, "function"),
            _named(self.bytes, bytes, "network"),
        )


@dataclass(frozen=True)
class Lease:
    """One call of a function.

    Attributes:
        seconds: from its call to its end, or until now.
        init_s: of starting, before that; 0 where it was warm. It is billed.
        memory_mb: what it may use.
        vcpus: how many processors it has; they are counted where they are billed.
    """

    seconds: float
    init_s: float = 0.0
    memory_mb: int = 1769
    vcpus: float = 1.0


@dataclass(frozen=True)
class Meter:
    """What was used, in the units that are billed. Meters add up, and one less an earlier one is what came between.

    Attributes:
        server_seconds: seconds times servers.
        memory_mb_ms: memory times billed milliseconds of leases.
        vcpu_ms: processors times billed milliseconds of leases.
        requests: calls of functions.
        internet_bytes, between_zones_bytes, within_zone_bytes: sent, by where they went, each once.
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
        """With servers that ran for so long, whatever they did meanwhile."""
        return replace(self, server_seconds=self.server_seconds + servers * seconds)

    def with_lease(self, lease: Lease, price: Function) -> "Meter":
        """With a lease that ended; or that would end now, to know what it has cost so far."""
        billed = billed_ms(lease, price)
        return replace(
            self,
            memory_mb_ms=self.memory_mb_ms + lease.memory_mb * billed,
            vcpu_ms=self.vcpu_ms + lease.vcpus * billed,
            requests=self.requests + 1,
        )


@dataclass(frozen=True)
class Bill:
    """Dollars, by what they were paid for."""

    servers: float
    functions: float
    requests: float
    bytes: float

    @property
    def dollars(self) -> float:
        """In all."""
        return self.servers + self.functions + self.requests + self.bytes


def billed_ms(lease: Lease, price: Function) -> int:
    """The milliseconds that a lease is billed: its start and its run together, rounded up.

    Seconds count to the nanosecond, so that 0.07 s are 70 ms, not 71 by a rounding error.
    """
    steps = round((lease.init_s + lease.seconds) * 1000 / price.round_up_ms, 6)
    return math.ceil(steps) * price.round_up_ms


def charge(meter: Meter, rates: Rates) -> Bill:
    """The bill for what was used."""
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
    """V = 1 / (time x cost), as Dorylus has it: twice as fast for the same money is twice the value."""
    return 1 / (seconds * dollars) if seconds > 0 and dollars > 0 else math.inf


def read_prices(own: Path | None = None) -> Prices:
    """The table of this package, with a user's own entries over it; a ValueError says what is wrong with them."""
    known = _read(_OWN)
    if own is None:
        return known
    given = _read(own)
    return Prices(
        instances={**known.instances, **given.instances},
        functions={**known.functions, **given.functions},
        bytes={**known.bytes, **given.bytes},
    )


_Entry = TypeVar("_Entry", Instance, Function, Bytes)
_KINDS = ("instances", "functions", "bytes")


def _read(path: Path) -> Prices:
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror}); expected a TOML file of prices"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from error
    _check_keys(given, _KINDS, f"{path}")
    return Prices(
        instances=_entries(path, given, "instances", Instance),
        functions=_entries(path, given, "functions", Function),
        bytes=_entries(path, given, "bytes", Bytes),
    )


def _entries(
    path: Path, given: Mapping[str, Any], kind: str, make: Callable[..., _Entry]
) -> dict[str, _Entry]:
    return {
        name: _entry(f"{path}: {kind}.{name}", table, make)
        for name, table in _table(given.get(kind, {}), f"{path}: {kind}").items()
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


def _named(known: Mapping[str, _Entry], name: str, what: str) -> _Entry:
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
