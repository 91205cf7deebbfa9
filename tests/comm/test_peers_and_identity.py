"""Ranks that connect: members of the group are accepted, misfits get an error, strangers are dropped."""

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch
from groups import LONG_S, group_of

from siafu.comm import (
    Comm,
    CommError,
    LocalRendezvousStore,
    PeerLost,
    PeerMismatch,
    PeerProtocolError,
    connect_sockets,
    peers,
)

SHORT_S = 1.5


def join(rank: int, store: Any, *, timeout_s: float = LONG_S, world_size: int = 2, **changes: Any) -> Comm:
    return Comm(connect_sockets(group_of(rank, world_size, **changes), store, timeout_s=timeout_s))


def connect_both(
    store: LocalRendezvousStore, *, timeout_s: float = LONG_S, **changes_of_one: Any
) -> list[BaseException | None]:
    """Return the error that each of two ranks raises while they connect, or None."""

    def main(rank: int) -> BaseException | None:
        try:
            comm = join(rank, store, timeout_s=timeout_s, **(changes_of_one if rank else {}))
        except (CommError, ValueError) as error:
            return error
        comm.close()
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(main, range(2)))
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("siafu-comm")]
    assert not left
    return errors


def test_ranks_of_one_group_connect() -> None:
    assert connect_both(LocalRendezvousStore()) == [None, None]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"version": "0.2.0"},
            r"rank 1 on host1 runs siafu 0.2.0 \(protocol 3\), rank 0 on host0 0.1.0 .*; install the same version",
        ),
        (
            {"settings": "other"},
            "rank 1 on host1 has settings 'other', rank 0 on host0 'settings'; start all ranks",
        ),
        ({"world_size": 3}, "rank 1 on host1 belongs to a group of 3 ranks, rank 0 on host0 to one of 2"),
    ],
)
def test_ranks_that_cannot_train_together_say_so_on_both_sides(changes: dict[str, Any], reason: str) -> None:
    first, second = connect_both(LocalRendezvousStore(), **changes)
    assert isinstance(first, PeerMismatch)
    assert isinstance(second, PeerMismatch)
    assert pytest.raises(PeerMismatch, match=reason).matches(first)
    assert "rank 0 on host0" in str(second)
    assert "rank 1 on host1" in str(second)


def test_a_rank_with_another_secret_is_refused() -> None:
    first, second = connect_both(LocalRendezvousStore(), timeout_s=SHORT_S, secret=b"another secret")
    assert isinstance(first, PeerLost)  # it might be anybody; the listener goes on waiting for its rank
    assert "rank 1 did not call rank 0 on host0" in str(first)
    assert "from 127.0.0.1: it holds another secret" in str(first)
    assert isinstance(second, PeerMismatch)
    assert "rank 1 on host1 called rank 0 on host0" in str(second)
    assert "it holds another secret" in str(second)


def test_a_missing_rank_is_named() -> None:
    with pytest.raises(
        PeerLost, match=r"rank 1, rank 2 did not call rank 0 on host0 at 127.0.0.1 port \d+ within 0.2 s"
    ):
        join(0, LocalRendezvousStore(), timeout_s=0.2, world_size=3)
    with pytest.raises(PeerLost, match=r"rank 0 did not come within 0.\d+ s to meet rank 1 on host1"):
        join(1, LocalRendezvousStore(), timeout_s=0.2)


def test_two_processes_of_one_rank_are_refused() -> None:
    store = LocalRendezvousStore()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, 0, store, world_size=4)
        others = [ThreadPoolExecutor(1) for _ in range(2)]
        doubles = [one.submit(join, 1, store, world_size=4, timeout_s=SHORT_S) for one in others]
        with pytest.raises(PeerMismatch, match=r"both say that they are rank 1; start each rank once"):
            first.result()
        for double in doubles:
            assert isinstance(double.exception(), CommError)
        for one in others:
            one.shutdown()


@contextmanager
def rank_zero_waiting(
    store: LocalRendezvousStore, **changes: Any
) -> Iterator[tuple[Future[Comm], tuple[str, int]]]:
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(join, 0, store, **changes)
        address, port, _ = json.loads(store.get("siafu/comm/0", timeout_s=LONG_S))
        yield future, (address, port)


@pytest.mark.parametrize("encrypt", [False, True])
def test_strangers_are_dropped_and_ranks_still_connect(
    monkeypatch: pytest.MonkeyPatch, encrypt: bool
) -> None:
    monkeypatch.setattr(peers, "_HANDSHAKE_S", 2.0)
    store = LocalRendezvousStore()
    greetings = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 500,
        b"siafu peer\n",
        b"",
        b"siafu peer\n\x00\r\n\xff\x00" + b"x" * 64,
    ]
    with ExitStack() as strangers, rank_zero_waiting(store, encrypt=encrypt) as (future, address):
        for turn in range(60):  # more than are heard at once
            stranger = strangers.enter_context(socket.create_connection(address, timeout=LONG_S))
            stranger.sendall(greetings[turn % len(greetings)])
        second = join(1, store, encrypt=encrypt)
        first = future.result()
    with ThreadPoolExecutor(2) as pool:
        sums = list(pool.map(lambda comm: comm.all_reduce(torch.ones(1), label="x"), (first, second)))
    assert sums == [2, 2]
    list(ThreadPoolExecutor(2).map(Comm.close, (first, second)))
    with pytest.raises(OSError, match="refused"):  # the listener is closed
        socket.create_connection(address, timeout=LONG_S)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"siafu peer\n\x00\r\n\xff\x00" + b"x" * 64]
)
def test_a_peer_of_another_protocol_is_an_error(answer: bytes) -> None:
    store = LocalRendezvousStore()
    with socket.create_server(("127.0.0.1", 0)) as server:
        store.set("siafu/comm/0", json.dumps([*server.getsockname(), "elsewhere"]).encode())

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                sock.sendall(answer)
                sock.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(
            PeerMismatch, match=r"rank 1 on host1 called rank 0 on elsewhere .* no rank of this group: it"
        ):
            join(1, store)
        thread.join()


def test_an_address_without_a_listener_is_an_error() -> None:
    store = LocalRendezvousStore()
    with socket.create_server(("127.0.0.1", 0)) as server:
        store.set("siafu/comm/0", json.dumps([*server.getsockname(), "elsewhere"]).encode())
    with pytest.raises(PeerLost, match="rank 1 on host1 cannot reach rank 0 on elsewhere"):
        join(1, store)


@pytest.mark.parametrize(
    ("bind", "error"), [("0.0.0.0", ValueError), ("192.0.2.77", CommError), ("no.such.invalid", CommError)]
)
def test_an_address_of_another_host_cannot_be_bound(bind: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="cannot listen on"):
        join(0, LocalRendezvousStore(), bind=bind)


def test_an_invalid_group_config_is_refused() -> None:
    with pytest.raises(ValueError, match="rank is 2; expected one of 0 to 1"):
        group_of(2, 2)
    with pytest.raises(ValueError, match="secret is empty"):
        group_of(0, 1, secret=b"")
    with pytest.raises(ValueError, match="deadline_s is 0"):
        group_of(0, 1, deadline_s=0)
    assert "secret" not in repr(group_of(0, 1))


class Tampering:
    """A store that leads rank 1 to rank 0 through a line that damages what rank 1 sends after the handshake."""

    def __init__(self, how: str) -> None:
        self._store = LocalRendezvousStore()
        self._how = how
        self._server = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._socks: list[socket.socket] = []
        self.go = threading.Event()

    def set(self, key: str, value: bytes) -> None:
        if key.endswith("/0"):
            address, port, name = json.loads(value)
            self._start(self._accept, (address, port))
            value = json.dumps([*self._server.getsockname(), name]).encode()
        self._store.set(key, value)

    def get(self, key: str, *, timeout_s: float) -> bytes:
        return self._store.get(key, timeout_s=timeout_s)

    def _start(self, *call: Any) -> None:
        thread = threading.Thread(target=call[0], args=call[1:], daemon=True)
        thread.start()
        self._threads.append(thread)

    def _accept(self, address: tuple[str, int]) -> None:
        near, _ = self._server.accept()
        far = socket.create_connection(address)
        self._socks = [near, far]
        self._start(self._pump, near, far, True)
        self._start(self._pump, far, near, False)
        self._server.close()

    def _pump(self, source: socket.socket, target: socket.socket, tamper: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if tamper and self.go.is_set() and len(data) > 10_000:
                    if self._how == "cut":
                        target.sendall(data[:5000])
                        break
                    data = data[:9000] + bytes([data[9000] ^ 1]) + data[9001:]
                target.sendall(data)
        except OSError:
            pass
        for sock in (target, source):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(LONG_S)
        for sock in self._socks:
            sock.close()


@pytest.mark.parametrize(
    ("how", "error", "reason"),
    [
        (
            "flip",
            PeerProtocolError,
            "rank 0 on host0 cannot use what rank 1 on host1 sent: the checksum of a frame's payload",
        ),
        (
            "cut",
            PeerLost,
            r"rank 1 on host1 is gone \(.*\) while rank 0 on host0 waited in \"rows\"",
        ),
    ],
)
def test_damaged_data_is_detected_by_its_receiver(how: str, error: type[CommError], reason: str) -> None:
    line = Tampering(how)

    def main(rank: int) -> BaseException | None:
        comm = join(rank, line)
        line.go.set()
        try:
            comm.all_gather(torch.ones(100_000), label="rows")
            comm.barrier(label="after")
        except CommError as caught:
            comm.fail(str(caught))
            return caught
        finally:
            comm.close()
        return None

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(main, range(2))
    line.join()
    assert isinstance(first, error)
    assert pytest.raises(error, match=reason).matches(first)
    assert isinstance(second, CommError)
