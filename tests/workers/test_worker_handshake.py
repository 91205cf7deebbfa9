"""Who holds a lease of this run is let in; who does not is told why, and the door stays open."""

import json
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from known_tasks import LONG_S, SETUP, computing, expected, task_at, until, weights_at

from siafu.workers import certificate as certificate_module
from siafu.workers import handshake as handshake_module
from siafu.workers import worker as worker_module
from siafu.workers.frames import Kind
from siafu.workers.lease import MAX_BYTES, Lease
from siafu.workers.link import Link
from siafu.workers.pool import Pool
from siafu.workers.tasks import Tasks
from siafu.workers.worker import CannotServe, serve


@pytest.fixture(params=["plain", "tls"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    tasks = Tasks(lambda _: None)
    with Pool(tasks, SETUP, run="a run", tls=request.param == "tls") as pool:
        yield pool
    tasks.close()


def assert_open(pool: Pool) -> None:
    """The door still lets workers in: one whose lease ends at once leaves by itself."""
    assert serve(pool.lease(seconds=0.0), computing()).reason == "the lease ended"


def test_a_lease_is_short_and_comes_back_from_its_text(pool: Pool) -> None:
    lease = pool.lease(seconds=60)
    assert len(lease.to_json()) < MAX_BYTES
    assert Lease.from_json(lease.to_json()) == lease
    assert Lease.from_dict(json.loads(lease.to_json())) == lease
    assert lease.token not in repr(lease)
    assert pool.lease(seconds=60).worker != lease.worker


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"port": "http"}, "a lease's port is 'http', expected int"),
        ({"compute": "cuda"}, "a lease's compute is 'cuda', expected twin or torch"),
        ({"more": 1}, r"a lease of \['compute', 'deadline_s'.*, expected .*: is it of another siafu\?"),
    ],
)
def test_what_is_no_lease_is_refused_with_the_reason(change: dict[str, object], reason: str) -> None:
    lease = Lease("run", "worker-1", "127.0.0.1", 1, "00", 0.0)
    with pytest.raises(ValueError, match=reason):
        Lease.from_json(json.dumps({**lease.to_dict(), **change}))
    with pytest.raises(ValueError, match="a lease is no JSON: it begins with 'lease'"):
        Lease.from_json("lease")
    with pytest.raises(ValueError, match="a lease of list, expected"):
        Lease.from_json("[]")
    with pytest.raises(ValueError, match="give a shorter run name"):
        replace(lease, run="x" * 1000).to_json()


def test_a_worker_with_another_token_is_told_so_and_the_door_stays_open(pool: Pool) -> None:
    lease = replace(pool.lease(seconds=60), token="00" * 32)
    with pytest.raises(
        CannotServe, match="worker 'worker-1' holds another token: its lease is of another run"
    ):
        serve(lease, computing())
    assert_open(pool)
    assert len(pool.refused) == 1
    assert "another token" in pool.refused[0]


def enter_as_old(link: Link, lease: Lease, *, wait_s: float) -> None:
    """What a worker of an older siafu does."""
    until_s = time.monotonic() + wait_s
    theirs = handshake_module._receive(link, Kind.CHALLENGE, until_s).head["nonce"]
    proof = handshake_module._proof(lease.token, "worker", theirs, "00", "0.0.9", lease.worker)
    link.send(Kind.ANSWER, {"nonce": "00", "version": "0.0.9", "worker": lease.worker, "proof": proof})
    handshake_module._receive(link, Kind.WELCOME, until_s)


def test_a_worker_of_another_version_is_told_so(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(worker_module, "enter", enter_as_old)
        with pytest.raises(CannotServe, match=r"runs siafu 0\.0\.9, this run .*; install the same version"):
            serve(pool.lease(seconds=60), computing())
    assert_open(pool)


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n" + b" " * 20, b"\x00" * 64, b"SIAW"], ids=["http", "zeros", "half"]
)
def test_strangers_are_dropped_and_the_door_stays_open(pool: Pool, said: bytes) -> None:
    stranger = socket.create_connection(("127.0.0.1", pool.port), timeout=LONG_S)
    with stranger, suppress(OSError):  # it may be dropped at the first byte
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass
    assert_open(pool)
    until(lambda: len(pool.refused) == 1)


def test_a_large_frame_of_a_stranger_is_refused_unread() -> None:
    tasks = Tasks(lambda _: None)
    with (
        Pool(tasks, SETUP) as pool,
        socket.create_connection(("127.0.0.1", pool.port), timeout=LONG_S) as sock,
    ):
        link = Link(sock)
        assert link.receive(silence_s=LONG_S).kind == Kind.CHALLENGE
        link.send(Kind.ANSWER, {"nonce": "x" * 2000})
        frame = link.receive(silence_s=LONG_S)
    assert frame.kind == Kind.REFUSED
    assert re.fullmatch(r"a ANSWER frame has \d+ bytes, expected at most 1024", frame.head["reason"])


def test_a_server_that_does_not_hold_the_token_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(lambda _: None)
    with Pool(tasks, SETUP) as pool:
        lease = pool.lease(seconds=60)
        proof = handshake_module._proof

        def forged(token: str, side: str, *said: str) -> str:
            return "00" if side == "server" and forging.pop() else proof(token, side, *said)

        forging = [False, True]  # the server's own proof is made first
        monkeypatch.setattr(handshake_module, "_proof", forged)
        with pytest.raises(CannotServe, match="does not hold this lease's token"):
            serve(lease, computing())


def test_a_worker_does_not_talk_to_a_server_with_another_certificate() -> None:
    tasks = Tasks(lambda _: None)
    with Pool(tasks, SETUP, tls=True) as pool:
        lease = replace(pool.lease(seconds=60), fingerprint="00" * 32)
        with pytest.raises(CannotServe, match="shows another certificate than this lease names"):
            serve(lease, computing())


def test_tls_is_used_where_the_pool_is_not_on_loopback() -> None:
    tasks = Tasks(lambda _: None)
    with Pool(tasks, SETUP) as pool:
        assert pool.lease(seconds=1).fingerprint is None
    with Pool(tasks, SETUP, host="0.0.0.0", address="127.0.0.1") as pool:
        assert pool.lease(seconds=1).fingerprint is not None
        assert_open(pool)


def test_a_certificate_can_be_made_by_openssl_too() -> None:
    made = certificate_module._by_openssl()
    assert len(made.fingerprint) == 64
    assert isinstance(made.server_context(), ssl.SSLContext)


def test_when_nobody_listens_the_worker_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    lease = Lease("run", "worker-1", "127.0.0.1", port, "00", time.time() + 60)
    with pytest.raises(CannotServe, match=rf"the graph server at 127\.0\.0\.1:{port}: .*refused"):
        serve(lease, computing())


def test_known_tasks_are_computed_as_expected() -> None:
    assert (expected(task_at(3)).arrays["z"] == 12).all()
    assert set(weights_at(0)) == {"layers.0.weight", "layers.1.weight"}
