"""How a worker and a graph server prove to each other that they hold the run's token, before anything else is read.

Each sends a random nonce, and answers with HMAC-SHA256 over both, so that no token travels and no answer serves twice.
"""

import hashlib
import hmac
import secrets
import time
from contextlib import suppress

from siafu import __version__
from siafu.workers.frames import Frame, FrameError, Kind
from siafu.workers.lease import Lease
from siafu.workers.link import Link, LinkLost

MAX_BYTES = 1024  # of a frame of somebody who has not proved anything


class Refused(Exception):
    """One side does not take the other: why, for people."""


def admit(link: Link, token: str, *, wait_s: float) -> str:
    """The server's side; returns the worker's name, or raises Refused, or FrameError: then :func:`refuse` it."""
    until_s = time.monotonic() + wait_s
    own = secrets.token_hex(32)
    link.send(Kind.CHALLENGE, {"nonce": own, "version": __version__})
    frame = _receive(link, Kind.ANSWER, until_s)
    nonce, version, name, proof = (_text(frame, item) for item in ("nonce", "version", "worker", "proof"))
    if not hmac.compare_digest(proof.encode(), _proof(token, "worker", own, nonce, version, name).encode()):
        raise Refused(f"worker {name[:60]!r} holds another token: its lease is of another run")
    if version != __version__:
        raise Refused(
            f"worker {name[:60]!r} runs siafu {version[:20]}, this run {__version__}; install the same version "
            "on both sides (for a function: deploy its package again)"
        )
    link.send(Kind.WELCOME, {"proof": _proof(token, "server", nonce, own, __version__, name)})
    return name


def refuse(link: Link, reason: str) -> None:
    """Tell somebody at the door why it is not let in."""
    with suppress(LinkLost):
        link.send(Kind.REFUSED, {"reason": reason})
        link.part()


def enter(link: Link, lease: Lease, *, wait_s: float) -> None:
    """The worker's side; raises Refused where either refuses the other."""
    until_s = time.monotonic() + wait_s
    asked = _receive(link, Kind.CHALLENGE, until_s)
    theirs, own = _text(asked, "nonce"), secrets.token_hex(32)
    proof = _proof(lease.token, "worker", theirs, own, __version__, lease.worker)
    link.send(Kind.ANSWER, {"nonce": own, "version": __version__, "worker": lease.worker, "proof": proof})
    frame = _receive(link, Kind.WELCOME, until_s)
    expected = _proof(lease.token, "server", own, theirs, _text(asked, "version"), lease.worker)
    if not hmac.compare_digest(_text(frame, "proof").encode(), expected.encode()):
        raise Refused(f"the server at {lease.host}:{lease.port} does not hold this lease's token")


def _receive(link: Link, kind: Kind, until_s: float) -> Frame:
    frame = link.receive(limit_bytes=MAX_BYTES, until_s=until_s)
    if frame.kind == Kind.REFUSED:
        raise Refused(_text(frame, "reason"))
    if frame.kind != kind or frame.arrays:
        raise FrameError(f"a {frame.kind.name} frame, expected {kind.name}")
    return frame


def _proof(token: str, *said: str) -> str:
    text = "".join(f"{len(item)}:{item}" for item in said)
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def _text(frame: Frame, name: str) -> str:
    value = frame.head.get(name)
    if not isinstance(value, str):
        raise FrameError(f"a {frame.kind.name} frame has {name} {value!r:.40}, expected text")
    return value
