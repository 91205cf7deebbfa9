"""Attackers between ranks: other users of the host, false addresses, a man in the middle."""

import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from groups import LONG_S, group_of

from siafu.comm import Comm, CommError, LocalRendezvousStore, PeerLost, PeerMismatch, connect_sockets
from siafu.comm.identity import Identity, IdentityMismatch, exchange_identities
from siafu.comm.network import SingleHostNetwork, read_address
from siafu.wire import tls
from siafu.wire.certificates import self_signed
from siafu.wire.handshake import HandshakeError, authenticate
from siafu.wire.socket_stream import SocketStream

SHORT_S = 1.5
NOBODY = 65534


def exchange(rank: int, store: Any, *, timeout_s: float = LONG_S, world_size: int = 2, **changes: Any) -> Any:
    """What a rank ends with: the sum of an exchange, or its error."""
    try:
        comm = Comm(connect_sockets(group_of(rank, world_size, **changes), store, timeout_s=timeout_s))
    except CommError as error:
        return error
    try:
        return float(comm.all_reduce(torch.full((1000,), 7.0), label="sum")[0])
    finally:
        comm.close()


def both(store: Any, *, timeout_s: float = LONG_S, **changes: Any) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(exchange, rank, store, timeout_s=timeout_s, **changes) for rank in range(2)]
        return [end.result() for end in ends]


@pytest.fixture
def secret() -> bytes:
    return os.urandom(32)


# One host.


def test_ranks_of_one_host_connect_without_a_store(secret: bytes) -> None:
    assert both(None, secret=secret) == [14.0, 14.0]


def test_a_missing_rank_of_one_host_is_named(secret: bytes) -> None:
    end = exchange(1, None, secret=secret, timeout_s=0.2)
    assert isinstance(end, PeerLost)
    assert re.search(r"rank 0 did not come within 0\.\d+ s to meet rank 1 on host1", str(end))
    end = exchange(0, None, secret=secret, timeout_s=0.2)
    assert isinstance(end, PeerLost)
    assert "rank 1 did not call rank 0 on host0 at its Unix socket" in str(end)


def test_a_socket_held_by_another_process_is_an_error(secret: bytes) -> None:
    held, _ = SingleHostNetwork(group_of(0, 2, secret=secret)).listen()
    with held:
        end = exchange(0, None, secret=secret)
    assert isinstance(end, CommError)
    assert "cannot listen at its Unix socket (Address already in use)" in str(end)


_BECOME_NOBODY = f"""
import os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
_CALL = """
sock = socket.socket(socket.AF_UNIX)
sock.connect(bytes.fromhex(sys.argv[1]))
sock.settimeout(60)
try:
    sock.sendall(b"siafu peer\\n\\x00\\r\\n\\xff\\x00" + b"x" * 32)
    sys.exit(len(sock.recv(100)))
except OSError:
    sys.exit(0)
"""
_SQUAT = """
sock = socket.socket(socket.AF_UNIX)
sock.bind(bytes.fromhex(sys.argv[1]))
sock.listen()
print("there", flush=True)
sys.stdin.read()
"""


def as_nobody(script: str, address: bytes) -> "subprocess.Popen[str]":
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _BECOME_NOBODY + script, address.hex()],
        stdin=pipe,
        stdout=pipe,
        text=True,
    )


def test_another_user_who_knows_the_address_of_a_rank_gets_no_answer(secret: bytes) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(exchange, 0, None, secret=secret, timeout_s=60)
        address = SingleHostNetwork(group_of(0, 2, secret=secret))._address(0)
        while address.decode()[1:] not in Path("/proc/net/unix").read_text():
            time.sleep(0.01)
        with as_nobody(_CALL, address) as stranger:
            stranger.communicate(timeout=LONG_S)
        assert stranger.returncode == 0, "not a byte came back"
        assert exchange(1, None, secret=secret) == 14.0
        assert first.result() == 14.0


def test_another_user_who_took_the_address_of_a_rank_is_refused(secret: bytes) -> None:
    address = SingleHostNetwork(group_of(0, 2, secret=secret))._address(0)
    with as_nobody(_SQUAT, address) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline()
        end = exchange(1, None, secret=secret)
        stranger.communicate("", timeout=LONG_S)
    assert isinstance(end, PeerMismatch)
    assert f"belongs to user {NOBODY}, expected user 0" in str(end)


# Several hosts.


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"{}", b"null", b"\xff", b"[" * 5000, b'["127.0.0.1", 0, "a"]', b'["127.0.0.1", 65536, "a"]',
        b'["127.0.0.1", true, "a"]', b'["127.0.0.1", "80", "a"]', b'[5, 80, "a"]', b'["example.org", 80, "a"]',
        b'["/run/socket", 80, "a"]', b'["127.0.0.1", 80, "\\u001b[31m"]', b'["127.0.0.1", 80, ["a"]]',
        b'["127.0.0.1", 80, "a", 1]', json.dumps(["127.0.0.1", 80, "a" * 256]).encode(),
    ],
)  # fmt: skip
def test_an_invalid_address_in_the_store_is_refused(value: bytes) -> None:
    with pytest.raises(HandshakeError, match="where the address of rank 3 was expected"):
        read_address(value, 3)
    store = LocalRendezvousStore()
    store.set("siafu/comm/0", value)
    end = exchange(1, store)
    assert isinstance(end, PeerMismatch)
    assert "somebody else writes there" in str(end)


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize("encrypt", [True, False], ids=["encrypted", "plain"])
def test_ranks_that_differ_in_encryption_fail_at_once(odd: int, encrypt: bool) -> None:
    store, timeout_s = LocalRendezvousStore(), 60.0
    began = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        ends = [
            pool.submit(
                exchange, rank, store, timeout_s=timeout_s, world_size=3, encrypt=encrypt == (rank == odd)
            )
            for rank in range(3)
        ]
        errors = [end.result() for end in ends]
    assert time.monotonic() - began < timeout_s / 2
    assert all(isinstance(error, CommError) for error in errors)
    pattern = r"comm.encrypt is (true at rank .*, but false|false at rank .*, but true) at rank .*; set it to the same"
    told = [error for error in errors if re.search(pattern, str(error))]
    assert len(told) >= 2, "the one that differs, and one that met it before that one ended"
    assert all(isinstance(error, PeerMismatch) for error in told)


@pytest.mark.parametrize("listener_encrypts", [True, False])
def test_a_rank_that_encrypts_names_neither_itself_nor_its_settings_to_a_plain_one(
    listener_encrypts: bool,
) -> None:
    with relayed(lambda sock, _: sock) as relay, ThreadPoolExecutor(2) as pool:
        ends = [
            pool.submit(
                exchange, rank, relay, settings=f"of {rank}", encrypt=listener_encrypts == (rank == 0)
            )
            for rank in range(2)
        ]
        errors = [end.result() for end in ends]
    assert all("comm.encrypt is" in str(error) for error in errors)
    secretive = 0 if listener_encrypts else 1
    assert b"host%d" % secretive not in relay.seen
    assert b"of %d" % secretive not in relay.seen


def test_a_peer_that_calls_a_plain_connection_encrypted_is_refused() -> None:
    """It has the secret, and says that it encrypts, but does not."""
    ours, theirs = socket.socketpair()
    group, until = group_of(0, 2, encrypt=True), time.monotonic() + LONG_S
    lie = asdict(Identity.of(group_of(1, 2, encrypt=True)))
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        pool.submit(authenticate, theirs, group.secret, lie, listening=False, until=until)
        with pytest.raises(
            IdentityMismatch, match=r"comm.encrypt is false at rank 1 on host1, but true at rank 0"
        ):
            exchange_identities(ours, group, listening=True, until=until, encryption_matches=False)


class Relay:
    """A store that leads rank 1 to rank 0 through somebody who sees every byte, and may end TLS itself."""

    def __init__(self, wrap: Callable[[socket.socket, bool], socket.socket]) -> None:
        self._store, self._wrap = LocalRendezvousStore(), wrap
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self.seen = bytearray()

    def set(self, key: str, value: bytes) -> None:
        if key.endswith("/0"):
            address, port, name = json.loads(value)
            self._target = (address, port)
            value = json.dumps([*self._server.getsockname(), name]).encode()
            self._thread.start()
        self._store.set(key, value)

    def get(self, key: str, *, timeout_s: float) -> bytes:
        return self._store.get(key, timeout_s=timeout_s)

    def _accept(self) -> None:
        near, _ = self._server.accept()
        far = socket.create_connection(self._target)
        with suppress(OSError):
            near, far = self._wrap(near, True), self._wrap(far, False)
            ends = (
                SocketStream(near, tick_s=0.1),
                SocketStream(far, tick_s=0.1),
            )  # read and written at the same time
            back = threading.Thread(target=self._pump, args=ends[::-1], daemon=True)
            back.start()
            self._pump(*ends)
            back.join()
        for sock in (near, far, self._server):
            sock.close()

    def _pump(self, source: SocketStream, target: SocketStream) -> None:
        buffer = memoryview(bytearray(1 << 16))
        with suppress(OSError):
            while count := source.recv_into(buffer):
                self.seen += buffer[:count]
                sent = 0
                while sent < count:
                    sent += target.send([buffer[sent:count]])
        source.shutdown()
        target.shutdown()

    def join(self) -> None:
        self._thread.join(LONG_S)


@contextmanager
def relayed(wrap: Callable[[socket.socket, bool], socket.socket]) -> Iterator[Relay]:
    relay = Relay(wrap)
    yield relay
    relay.join()


PAYLOAD = torch.full((4,), 7.0).numpy().tobytes()


@pytest.mark.parametrize("encrypt", [True, False])
def test_a_relay_between_encrypted_ranks_sees_no_frame(encrypt: bool) -> None:
    with relayed(lambda sock, _: sock) as relay:
        assert both(relay, encrypt=encrypt) == [14.0, 14.0]
    assert (PAYLOAD in relay.seen) is not encrypt
    assert (b"host1" in relay.seen) is not encrypt, "names travel encrypted too"


def test_a_man_in_the_middle_with_a_certificate_of_his_own_is_refused() -> None:
    context = self_signed("relay").server_context()

    def wrap(sock: socket.socket, near: bool) -> socket.socket:
        if near:
            return context.wrap_socket(sock, server_side=True)
        return tls.dial(sock)[0]

    with relayed(wrap) as relay:
        first, second = both(relay, encrypt=True, timeout_s=2 * SHORT_S)
    assert isinstance(first, PeerLost)
    assert isinstance(second, PeerMismatch)
    assert "somebody stands between the two" in f"{first} {second}", "who sees it first hangs up"
    assert b"host0" not in relay.seen
    assert b"host1" not in relay.seen, "no rank named itself before the proof"


def test_a_slow_tls_handshake_ends_in_time() -> None:
    ours, theirs = socket.socketpair()
    with theirs, tls.accept(ours, self_signed().server_context()) as secure:
        assert isinstance(secure, ssl.SSLSocket)
        with pytest.raises(TimeoutError):
            tls.do_handshake(secure, until=time.monotonic() + 0.1)
