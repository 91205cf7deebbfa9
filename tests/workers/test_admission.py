"""Workers with a lease of this run are admitted; others are refused with the reason, and the listener goes on."""

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from stub_tasks import LONG_S, SETUP, computing, expected, task_at, until, weights_at

from siafu import __version__
from siafu.wire.certificates import self_signed
from siafu.wire.handshake import HandshakeError, authenticate
from siafu.wire.tls import dial
from siafu.workers.admission import AdmissionRefused, join_run
from siafu.workers.lease import MAX_BYTES, Lease
from siafu.workers.listener import WorkerListener
from siafu.workers.task_queue import TaskQueue
from siafu.workers.worker import CannotServe, serve


@pytest.fixture(params=["plain", "tls"])
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerListener]:
    tasks = TaskQueue(lambda _: None)
    with WorkerListener(tasks, SETUP, run="a run", tls=request.param == "tls") as pool:
        yield pool
    tasks.close()


def assert_open(pool: WorkerListener) -> None:
    """Check that the listener still admits workers. One whose lease ends at once leaves by itself."""
    assert serve(pool.issue_lease(seconds=0.0), computing()).reason == "the lease ended"


def test_a_lease_is_short_and_survives_a_round_trip(pool: WorkerListener) -> None:
    lease = pool.issue_lease(seconds=60)
    assert len(lease.to_json()) < MAX_BYTES
    assert Lease.from_json(lease.to_json()) == lease
    assert Lease.from_dict(json.loads(lease.to_json())) == lease
    assert lease.token not in repr(lease)
    assert pool.issue_lease(seconds=60).worker != lease.worker


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"port": "http"}, "a lease's port is 'http', expected int"),
        ({"backend": "cuda"}, "a lease's backend is 'cuda', expected numpy or torch"),
        ({"more": 1}, r"a lease of \['backend', 'deadline_s'.*, expected .*: is it of another siafu\?"),
    ],
)
def test_an_invalid_lease_is_refused_with_the_reason(change: dict[str, object], reason: str) -> None:
    lease = Lease("run", "worker-1", "127.0.0.1", 1, "00", 0.0)
    with pytest.raises(ValueError, match=reason):
        Lease.from_json(json.dumps({**lease.to_dict(), **change}))
    with pytest.raises(ValueError, match="a lease is no JSON: it begins with 'lease'"):
        Lease.from_json("lease")
    with pytest.raises(ValueError, match="a lease of list, expected"):
        Lease.from_json("[]")
    with pytest.raises(ValueError, match="give a shorter run name"):
        replace(lease, run="x" * 1000).to_json()


def test_a_worker_with_another_token_is_refused_and_the_listener_goes_on(pool: WorkerListener) -> None:
    lease = replace(pool.issue_lease(seconds=60), token="00" * 32)
    with pytest.raises(CannotServe, match=r"it holds another secret.*is the lease of another run"):
        serve(lease, computing())
    assert_open(pool)
    assert len(pool.refusals) == 1
    assert "it is no worker of this run: it holds another secret" in pool.refusals[0]


def test_a_worker_of_another_version_is_refused_with_what_to_do(pool: WorkerListener) -> None:
    lease = pool.issue_lease(seconds=60)
    old = {"worker": lease.worker, "version": "0.0.9"}
    binding = bytes.fromhex(lease.fingerprint or "")
    sock = socket.create_connection((lease.host, lease.port), timeout=LONG_S)
    if lease.fingerprint is not None:
        sock, _ = dial(sock, fingerprint=binding)
    with sock:
        until_s = time.monotonic() + LONG_S
        said = authenticate(sock, lease.token.encode(), old, listening=False, until=until_s, binding=binding)
        assert sock.recv(1) == b""
    until(lambda: len(pool.refusals) == 1)
    message = r"worker 'worker-1' runs siafu 0\.0\.9, this run .*; install the same version on both sides"
    assert re.search(message, pool.refusals[0])
    assert said["version"] == __version__
    assert_open(pool)


def test_a_worker_finds_out_by_itself_that_the_run_is_of_another_version() -> None:
    lease = Lease("run", "worker-1", "127.0.0.1", 1, "ab" * 32, time.time() + 60)
    near, far = socket.socketpair()
    with near, far, ThreadPoolExecutor(1) as pool:
        until_s = time.monotonic() + LONG_S
        secret = lease.token.encode()
        server = pool.submit(authenticate, far, secret, {"version": "0.0.9"}, listening=True, until=until_s)
        with pytest.raises(
            AdmissionRefused, match=r"worker 'worker-1' runs siafu .*, this run 0\.0\.9; install the same"
        ):
            join_run(near, lease, binding=b"", wait_s=LONG_S)
        assert server.result(LONG_S)["worker"] == "worker-1"


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n" + b" " * 20, b"\x00" * 64, b"siafu peer"], ids=["http", "zeros", "half"]
)
def test_strangers_are_dropped_and_the_listener_goes_on(pool: WorkerListener, said: bytes) -> None:
    stranger = socket.create_connection(("127.0.0.1", pool.port), timeout=LONG_S)
    with stranger, suppress(OSError):  # it may be dropped at the first byte
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass
    assert_open(pool)
    until(lambda: len(pool.refusals) == 1)


def test_a_server_that_does_not_hold_the_token_is_not_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        lease = Lease("run", "worker-1", "127.0.0.1", listener.getsockname()[1], "ab" * 32, time.time() + 60)

        def forge() -> None:
            sock, _ = listener.accept()
            until_s = time.monotonic() + LONG_S
            with sock, pytest.raises(HandshakeError):
                authenticate(sock, b"another", {"version": __version__}, listening=True, until=until_s)

        forged = pool.submit(forge)
        with pytest.raises(CannotServe, match="it holds another secret"):
            serve(lease, computing())
        forged.result(LONG_S)


def test_a_man_in_the_middle_of_tls_is_refused_by_the_certificate_that_it_shows() -> None:
    tasks = TaskQueue(lambda _: None)
    with (
        WorkerListener(tasks, SETUP, tls=True) as pool,
        socket.create_server(("127.0.0.1", 0)) as middle,
        ThreadPoolExecutor(1) as threads,
    ):
        own, heard = self_signed().server_context(), []

        def stand_between() -> None:
            """Present another certificate, and relay the bytes that come."""
            sock, _ = middle.accept()
            with suppress(OSError), own.wrap_socket(sock, server_side=True) as secure:
                heard.append(secure.recv(4096))

        between = threads.submit(stand_between)
        lease = replace(pool.issue_lease(seconds=60), port=middle.getsockname()[1])
        with pytest.raises(CannotServe, match="shows another certificate than expected"):
            serve(lease, computing())
        between.result(LONG_S)
        assert not any(heard)  # not a byte, and so no proof that could be passed on
        assert_open(pool)


def test_a_worker_does_not_talk_to_a_server_with_another_certificate() -> None:
    tasks = TaskQueue(lambda _: None)
    with WorkerListener(tasks, SETUP, tls=True) as pool:
        lease = replace(pool.issue_lease(seconds=60), fingerprint="00" * 32)
        with pytest.raises(CannotServe, match="shows another certificate than expected"):
            serve(lease, computing())


def test_tls_is_used_unless_the_listener_is_on_loopback() -> None:
    tasks = TaskQueue(lambda _: None)
    with WorkerListener(tasks, SETUP) as pool:
        assert pool.issue_lease(seconds=1).fingerprint is None
    with WorkerListener(tasks, SETUP, host="0.0.0.0", address="127.0.0.1") as pool:
        assert pool.issue_lease(seconds=1).fingerprint is not None
        assert_open(pool)


def test_when_nobody_listens_the_worker_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    lease = Lease("run", "worker-1", "127.0.0.1", port, "00", time.time() + 60)
    with pytest.raises(CannotServe, match=rf"the graph server at 127\.0\.0\.1:{port}: .*refused"):
        serve(lease, computing())


def test_stub_tasks_are_computed_as_expected() -> None:
    assert (expected(task_at(3)).arrays["z"] == 12).all()
    assert set(weights_at(0)) == {"layers.0.weight", "layers.1.weight"}
