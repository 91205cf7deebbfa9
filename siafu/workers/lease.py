"""Leases: a few hundred bytes of JSON with which a worker finds its graph server and authenticates."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from siafu import __version__

MAX_BYTES = 1024
Backend = Literal["numpy", "torch"]
_FINGERPRINT = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Lease:
    """The right to work for a graph server until a deadline.

    Attributes:
        run: the run's name, for people.
        worker: the worker's name in events and traces.
        host, port: where the graph server listens.
        token: the run's secret, in hexadecimal digits. It is never sent over the connection.
        deadline_s: when the lease ends, in seconds since the epoch.
        backend: the library that computes tasks, ``numpy`` or ``torch``.
        fingerprint: SHA-256 of the server's certificate, in hexadecimal digits; None for a connection without TLS.
        version: of siafu, which must be the same on both sides.
    """

    run: str
    worker: str
    host: str
    port: int
    token: str
    deadline_s: float
    backend: Backend = "numpy"
    fingerprint: str | None = None
    version: str = __version__

    def __post_init__(self) -> None:
        for item in fields(self):
            kind = {"port": int, "deadline_s": float}.get(item.name, str)
            value = getattr(self, item.name)
            if type(value) is not kind and not (item.name == "fingerprint" and value is None):
                raise ValueError(f"a lease's {item.name} is {value!r:.60}, expected {kind.__name__}")
        if self.backend not in get_args(Backend):
            raise ValueError(
                f"a lease's backend is {self.backend!r:.60}, expected {' or '.join(get_args(Backend))}"
            )
        if not 0 < self.port < 1 << 16:
            raise ValueError(f"a lease's port is {self.port}, expected 1 to 65535")
        if not 0 <= self.deadline_s < 1e11:
            raise ValueError(f"a lease's deadline_s is {self.deadline_s}, expected seconds since the epoch")
        if not self.token:
            raise ValueError("a lease's token is empty, expected the run's secret")
        if self.fingerprint is not None and not _FINGERPRINT.fullmatch(self.fingerprint):
            raise ValueError(
                f"a lease's fingerprint is {self.fingerprint!r:.60}, expected 64 hexadecimal digits"
            )

    def __repr__(self) -> str:  # without the token, which must not end in a log
        return f"Lease({self.run!r}, {self.worker!r}, {self.host!r}, {self.port})"

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, for :meth:`from_dict`."""
        return asdict(self)

    def to_json(self) -> str:
        """Convert to text under 1 KB, for :meth:`from_json`."""
        text = json.dumps(self.to_dict())
        if len(text) >= MAX_BYTES:
            raise ValueError(
                f"a lease has {len(text)} bytes, expected fewer than {MAX_BYTES}: give a shorter run name"
            )
        return text

    @classmethod
    def from_json(cls, text: str | bytes) -> "Lease":
        """Parse the text of :meth:`to_json`; raises ValueError for any other text."""
        if len(text) > 2 * MAX_BYTES:
            raise ValueError(f"a lease of {len(text)} bytes, expected fewer than {MAX_BYTES}")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError(f"a lease is no JSON: it begins with {text[:40]!r}") from None
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: object) -> "Lease":
        """Read the values of :meth:`to_dict`; raises ValueError for anything else."""
        names = {item.name for item in fields(cls)}
        if not isinstance(values, Mapping) or set(values) != names:
            found = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(
                f"a lease of {str(found)[:200]}, expected {sorted(names)}: is it of another siafu?"
            )
        try:
            deadline_s = float(values["deadline_s"])
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"a lease's deadline_s is {values['deadline_s']!r:.60}, expected a time"
            ) from None
        return cls(**{**values, "deadline_s": deadline_s})
