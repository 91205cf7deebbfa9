"""The ranks of a group find each other: each listens, calls the ranks below it, and is called by those above it.

A connection from anybody else is dropped: at most so many at once, each for a few seconds.
"""

import socket
import threading
import time
from contextlib import suppress
from typing import NamedTuple

from siafu.comm.errors import PeerLost, PeerMismatch
from siafu.comm.identity import Identity, Mismatch, shake_hands
from siafu.comm.network import PHASE, Absent, ManyHosts, Network, OneHost
from siafu.comm.rendezvous import Group, Meet
from siafu.wire.handshake import HandshakeError, HandshakeUnanswered

_HANDSHAKE_S = 10.0
_TELL_S = 5.0  # to tell other ranks that this one does not fit
_STRANGERS = 32  # connections at once, beyond one for each rank


class Acquaintance(NamedTuple):
    """A connection to a rank that has proved who it is."""

    sock: socket.socket
    identity: Identity


def gather(group: Group, meet: Meet | None, *, patience_s: float) -> dict[int, Acquaintance]:
    """Connections to all other ranks; raises PeerLost where one does not come, PeerMismatch where one does not fit.

    Without a board all ranks are on this host.
    """
    until = time.monotonic() + patience_s
    network = OneHost(group) if meet is None else ManyHosts(group, meet)
    listener = _Listener(group, network, until=until)
    known: dict[int, Acquaintance] = {}
    try:
        _call_all(group, network, known, until=until)
        known.update(listener.wait(patience_s=patience_s))
    except BaseException:
        for acquaintance in known.values():
            acquaintance.sock.close()
        listener.close(keep=False)
        raise
    listener.close(keep=True)
    return known


class _Listener:
    """Waits for the ranks above this one to call."""

    def __init__(self, group: Group, network: Network, *, until: float) -> None:
        self._group = group
        self._network = network
        self._until = until
        self._changed = threading.Condition()
        self._known: dict[int, Acquaintance] = {}
        self._refused = ""
        self._error: Mismatch | None = None
        self._shaking: dict[socket.socket, threading.Thread] = {}
        self._sock, self._place = network.listen()
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="siafu-comm listener", daemon=True)
        self._thread.start()

    def wait(self, *, patience_s: float) -> dict[int, Acquaintance]:
        wanted = self._group.world_size - 1 - self._group.rank
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or len(self._known) == wanted, max(0.0, self._until - time.monotonic())
            )
            if self._error is not None:
                raise _mismatch(str(self._error))
            if len(self._known) < wanted:
                raise self._missing(patience_s)
            return dict(self._known)

    def close(self, *, keep: bool) -> None:
        with self._changed:
            self._closing = True
            shaking = dict(self._shaking)
            known = {acquaintance.sock for acquaintance in self._known.values()}
        for sock in {self._sock, *shaking} - known if keep else {self._sock, *shaking, *known}:
            _shut(sock)
        for thread in (self._thread, *shaking.values()):
            thread.join(_HANDSHAKE_S)

    def _missing(self, patience_s: float) -> PeerLost:
        group = self._group
        missing = [rank for rank in range(group.rank + 1, group.world_size) if rank not in self._known]
        names = ", ".join(f"rank {rank}" for rank in missing)
        refused = f" (the last connection that was refused: {self._refused})" if self._refused else ""
        text = (
            f"{names} did not call rank {group.rank} on {group.name} at {self._place} "
            f"within {patience_s:g} s{refused}; look whether it started and whether its host reaches this one"
        )
        return PeerLost(text, peer=missing[0], host="unknown", phase=PHASE)

    def _accept(self) -> None:
        while True:
            try:
                raw, address = self._sock.accept()
            except OSError:  # closed
                return
            caller = address[0] if address else "this host"
            thread = threading.Thread(
                target=self._meet, args=(raw, caller), name="siafu-comm handshake", daemon=True
            )
            with self._changed:
                full = self._closing or len(self._shaking) >= self._group.world_size + _STRANGERS
                if not full:
                    self._shaking[raw] = thread
                    thread.start()
            if full:
                raw.close()

    def _meet(self, sock: socket.socket, address: str) -> None:
        keep = False
        try:
            until = min(self._until, time.monotonic() + _HANDSHAKE_S)
            if self._network.begins_tls(sock, until=until):
                sock = self._wrap(sock)
            binding, suits = self._network.greet(sock, until=until), self._network.suits(sock)
            identity = shake_hands(
                sock, self._group, listening=True, until=until, binding=binding, suits=suits
            )
            keep = self._welcome(Acquaintance(sock, identity))
        except HandshakeError as stranger:
            self._note(refused=f"from {address}: {stranger}")
        except Mismatch as error:
            self._note(error=error)
        finally:
            if not keep:
                _shut(sock)
            with self._changed:
                if not self._closing:
                    del self._shaking[sock]

    def _wrap(self, raw: socket.socket) -> socket.socket:
        """TLS around an accepted connection; :meth:`close` finds it in the place of the plain one."""
        with self._changed:
            try:
                sock = self._network.wrap(raw)
            except OSError:
                raise HandshakeError("it closed the connection") from None
            if not self._closing:
                self._shaking[sock] = self._shaking.pop(raw)
            else:
                _shut(sock)
            return sock

    def _welcome(self, acquaintance: Acquaintance) -> bool:
        with self._changed:
            if self._closing:
                return False
            rank = acquaintance.identity.rank
            if rank in self._known:
                first = self._known[rank].identity.name
                self._error = Mismatch(
                    f"two processes, on {first} and on {acquaintance.identity.name}, both say that they are "
                    f"rank {rank}; start each rank once"
                )
            else:
                self._known[rank] = acquaintance
            self._changed.notify_all()
            return self._known[rank] is acquaintance

    def _note(self, *, refused: str = "", error: Mismatch | None = None) -> None:
        with self._changed:
            self._refused = refused or self._refused
            self._error = self._error or error
            self._changed.notify_all()


def _call_all(group: Group, network: Network, known: dict[int, Acquaintance], *, until: float) -> None:
    """Connect to all ranks below this one; where one does not fit, the others learn it too, and need not wait."""
    refused: PeerMismatch | None = None
    for peer in range(group.rank):
        try:
            known[peer] = _call(group, network, peer, until=until)
        except PeerMismatch as error:
            if refused is None:
                refused, until = error, min(until, time.monotonic() + _TELL_S)
        except PeerLost:
            if refused is None:
                raise
    if refused is not None:
        raise refused


def _call(group: Group, network: Network, peer: int, *, until: float) -> Acquaintance:
    """Connect to a rank below this one."""
    began, me, where = time.monotonic(), f"rank {group.rank} on {group.name}", f"rank {peer}"
    while True:
        try:
            where = f"rank {peer} on {network.name(peer, until=until)}"
            return _connect(group, network, peer, until=until)
        except Absent:
            text = (
                f"rank {peer} did not come within {until - began:.3g} s to meet {me}; look whether it started"
            )
            raise PeerLost(text, peer=peer, host="unknown", phase=PHASE) from None
        except Mismatch as error:
            raise _mismatch(str(error), peer=peer) from None
        except (OSError, HandshakeUnanswered) as error:
            if time.monotonic() + 0.1 < until and isinstance(error, HandshakeUnanswered):
                time.sleep(0.1)  # its listener was busy with strangers
                continue
            text = f"{me} cannot reach {where}: {error}; look whether it still runs, and at the firewall between them"
            raise PeerLost(text, peer=peer, host="unknown", phase=PHASE) from None
        except HandshakeError as error:
            text = f"{me} called {where}, but what answered is no rank of this group: {error}"
            raise _mismatch(text, peer=peer) from None


def _connect(group: Group, network: Network, peer: int, *, until: float) -> Acquaintance:
    limit = min(until, time.monotonic() + _HANDSHAKE_S)
    sock, binding = network.dial(peer, limit=limit, until=until)
    try:
        limit = min(until, time.monotonic() + _HANDSHAKE_S)
        identity = shake_hands(sock, group, listening=False, until=limit, binding=binding)
        if identity.rank != peer:
            raise Mismatch(f"{identity} answered where rank {peer} was called; start the run again")
    except BaseException:
        sock.close()
        raise
    return Acquaintance(sock, identity)


def _mismatch(text: str, *, peer: int = -1, host: str = "unknown") -> PeerMismatch:
    return PeerMismatch(text, peer=peer, host=host, phase=PHASE)


def _shut(sock: socket.socket) -> None:
    """Close, and wake a thread that reads from it."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # SSLSocket's own would drop its state
    sock.close()
