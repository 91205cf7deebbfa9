"""A worker reads and writes no file that a server names: it ends with the reason, and leaves no thread."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hostile_server import HostileServer, attacks, task
from stub_tasks import LONG_S, computing
from test_lambda_and_http import Request

from siafu.workers.handler import handler, serve_http
from siafu.workers.shared_memory import DescriptorSender, MemoryUse, SealedMemory
from siafu.workers.signing import LeaseRefused, sign
from siafu.workers.task_frames import Frame, FrameKind
from siafu.workers.worker import CannotServe, InheritedSockets, serve

NAMES = list(attacks("", ""))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A secret and a script of the user; the worker must touch neither."""
    secret, script = tmp_path / "secret", tmp_path / "script.sh"
    secret.write_text("s3cret")
    script.write_text("echo hello\n" + "#" * 100)
    yield str(secret), str(script)
    assert secret.read_text() == "s3cret"
    assert script.read_text() == "echo hello\n" + "#" * 100


def assert_ended_with_a_reason(frames: list[Frame]) -> str:
    """Check that the worker revealed nothing, and gave the reason of its end."""
    assert [frame.kind for frame in frames] == [FrameKind.READY, FrameKind.CLOSE]
    for frame in frames:
        assert not frame.arrays
        assert "s3cret" not in json.dumps(frame.head)
    assert frames[-1].head["failed"] is True
    reason = str(frames[-1].head["reason"])
    assert reason.startswith("the graph server sent what this worker cannot use: ")
    return reason


def assert_no_thread_left() -> None:
    assert not [thread for thread in threading.enumerate() if thread.name == "siafu-worker"]


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_server_learns_nothing_from_a_worker(name: str, files: tuple[str, str]) -> None:
    with closing(HostileServer(*attacks(*files)[name])) as server:
        with pytest.raises(CannotServe, match="the graph server sent what this worker cannot use"):
            serve(server.lease(), computing())
        assert_no_thread_left()
    assert_ended_with_a_reason(server.frames)


def test_a_worker_that_a_person_starts_ends_with_the_reason(files: tuple[str, str], tmp_path: Path) -> None:
    with closing(HostileServer(*attacks(*files)["a segment by its path"])) as server:
        (tmp_path / "lease.json").write_text(server.lease().to_json())
        command = [
            sys.executable,
            "-c",
            "from siafu.cli import main; main()",
            "worker",
            tmp_path / "lease.json",
        ]
        worker = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S)
    assert_ended_with_a_reason(server.frames)
    assert worker.returncode != 0
    assert "is named in shared memory, which this worker has none of" in worker.stderr
    assert "s3cret" not in worker.stdout + worker.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_function_does_no_more_for_a_server_whose_lease_is_signed(
    name: str, files: tuple[str, str], key: bytes
) -> None:
    with closing(HostileServer(*attacks(*files)[name])) as server:
        with pytest.raises(CannotServe, match="the graph server sent what this worker cannot use"):
            serve_http(Request(sign(server.lease(), key).encode()))
        assert_no_thread_left()
    assert_ended_with_a_reason(server.frames)


class Context:
    aws_request_id = "request"

    def get_remaining_time_in_millis(self) -> int:
        return 60_000


def posts(server: HostileServer, key: bytes) -> dict[str, tuple[str, str]]:
    """Requests that a function must refuse, each with the reason."""
    signed = json.loads(sign(server.lease(), key))
    foreign = sign(server.lease(), b"another key of the issuer, quite")
    changed = {**signed, "lease": signed["lease"].replace("127.0.0.1", "127.0.0.2")}
    return {
        "a bare lease": (server.lease().to_json(), "is no signed lease"),
        "no signature": (json.dumps({"lease": signed["lease"]}), "is no signed lease"),
        "an empty signature": (
            json.dumps({**signed, "signature": ""}),
            "the signature of the lease is wrong",
        ),
        "another key": (foreign, "the signature of the lease is wrong"),
        "changed since": (json.dumps(changed), "the signature of the lease is wrong"),
        "expired": (sign(server.lease(deadline_s=1.0), key), "the lease has expired"),
        "no JSON": ("lease", "is no JSON|is no signed lease"),
        "too large": (json.dumps({**signed, "more": "x" * 5000}), "a request of .* bytes|is no signed lease"),
    }


def refused(body: str, reason: str) -> None:
    answer = serve_http(Request(body.encode()))
    assert isinstance(answer, tuple)
    assert answer[1] == 403
    with pytest.raises(LeaseRefused, match=reason) as caught:
        handler(_event(body), Context())
    assert set(answer[0]) == {"error"}
    assert "ab" * 32 not in str(caught.value) + str(answer)


def _event(body: str) -> Any:
    try:
        return {name: value for name, value in json.loads(body).items() if name != "more"} | (
            {"signature": 1} if "more" in body else {}
        )
    except ValueError:
        return body


@pytest.mark.parametrize("name", ["a bare lease", "no signature", "an empty signature", "another key", "changed since",
                                  "expired", "no JSON", "too large"])  # fmt: skip
def test_a_function_refuses_a_lease_that_its_issuer_did_not_sign(name: str, key: bytes) -> None:
    with closing(HostileServer({}, task())) as server:
        refused(*posts(server, key)[name])
    assert not server.frames  # nobody dialled


@pytest.mark.parametrize(
    ("listed", "dials"),
    [
        ("10.0.0.0/8", False),
        ("127.0.0.1:1-2", False),
        ("graph.internal", False),
        ("127.0.0.0/8, 10.1.2.3", True),
        ("127.0.0.1", True),
        ("*", True),
    ],
)
def test_a_function_dials_only_the_addresses_that_it_was_deployed_for(
    listed: str, dials: bool, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIAFU_LEASE_ADDRESSES", listed)
    with closing(HostileServer({}, task(slot=1))) as server:
        body = sign(server.lease(), key)
        if dials:
            with pytest.raises(CannotServe):
                serve_http(Request(body.encode()))
        else:
            refused(
                body, r"not among the addresses that this function was deployed to dial \(SIAFU_LEASE_ADDR"
            )
    assert bool(server.frames) == dials


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("SIAFU_LEASE_KEY", "", "there is no key to sign and check leases.*openssl rand -hex 32"),
        (
            "SIAFU_LEASE_KEY",
            "password",
            "SIAFU_LEASE_KEY: not a key of leases, expected 64 hexadecimal digits",
        ),
        ("SIAFU_LEASE_KEY_FILE", "/nonesuch", "/nonesuch: No such file"),
        ("SIAFU_LEASE_ADDRESSES", "", "SIAFU_LEASE_ADDRESSES is not set; list the hosts"),
        ("SIAFU_LEASE_ADDRESSES", "10.0.0.0/77", "which is no network"),
        ("SIAFU_LEASE_ADDRESSES", "a:b:c", "expected HOST, NETWORK/BITS"),
    ],
)
def test_a_function_that_was_deployed_without_a_key_or_addresses_serves_nobody(
    name: str, value: str, reason: str, key: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with closing(HostileServer({}, task())) as server:
        refused(sign(server.lease(), key), f"this function serves no lease: .*{reason}")
    assert not server.frames


# A worker process and the rank that started it


def handed(to: socket.socket, kind: str) -> None:
    """Hand over memory that does not fit the array that a task names."""
    sender = DescriptorSender(to)
    if kind == "beyond":
        sender.send(MemoryUse.SEGMENT, 0, SealedMemory(5, read_only=True))
    elif kind == "unsealed":
        descriptor = os.memfd_create("rows", os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, 4096)
        socket.send_fds(to, [b"\0" * 12], [descriptor])
        os.close(descriptor)
    elif kind == "a file":
        with Path(__file__).open("rb") as file:
            socket.send_fds(to, [b"\0" * 12], [file.fileno()])
    elif kind == "cut off":
        socket.send_fds(to, [b"\0" * 7], [0])


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nothing", "segment 0 is named, which was not handed over"),
        ("beyond", "an array of 6 uint8 at 0 is named, in memory of 5 bytes"),
        ("unsealed", "whose size could change"),
        ("a file", "Invalid argument"),
        ("cut off", "in a form that no graph server uses"),
    ],
)
def test_memory_that_a_worker_process_cannot_use_ends_its_session_with_the_reason(
    kind: str, reason: str
) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    (near, connection), (handing, memory) = pairs
    server = HostileServer({}, task(shared={"rows/x": [0, 0, "uint8", [6, 1]]}))
    with closing(server), near, handing, ThreadPoolExecutor(1) as pool:
        attacking = pool.submit(server.attack, near, lambda: handed(handing, kind))
        with pytest.raises(CannotServe, match=reason):
            serve(server.lease(), computing(), inherited=InheritedSockets(connection, memory))
        attacking.result(LONG_S)
    assert_no_thread_left()
    assert reason in assert_ended_with_a_reason(server.frames)


def test_memory_for_reading_cannot_be_written_or_cut_by_the_process_it_is_handed_to() -> None:
    import mmap

    memory = SealedMemory(4096, read_only=True)
    with pytest.raises(PermissionError):
        mmap.mmap(memory.descriptor, 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, 10)
    with pytest.raises(PermissionError):
        os.pwrite(memory.descriptor, b"x", 0)
    memory.map[0] = 7
    assert os.pread(memory.descriptor, 1, 0) == b"\x07"
    memory.close()
