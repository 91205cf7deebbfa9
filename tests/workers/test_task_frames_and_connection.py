"""Frames arrive as they were sent; damaged, truncated or oversize frames are refused."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from stub_tasks import LONG_S

from siafu.wire import frames as wire
from siafu.wire.certificates import self_signed
from siafu.wire.frames import HEADER_BYTES, MAX_HEAD_BYTES, FrameError
from siafu.wire.tls import dial
from siafu.workers.connection import ConnectionLost, FrameConnection
from siafu.workers.task import Arrays
from siafu.workers.task_frames import DTYPES, Frame, FrameKind, pack

NAMES = st.text(max_size=12)
ARRAYS = st.dictionaries(
    NAMES,
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda dtype: arrays_of.arrays(dtype, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=5))
    ),
    max_size=5,
)
HEADS = st.dictionaries(
    NAMES.filter(lambda name: name != "arrays"),
    st.integers(-(2**50), 2**50) | st.text(max_size=8),
    max_size=4,
)
EXAMPLE: Arrays = {"rows/m": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.empty((0, 4), np.int64)}


def packed(kind: FrameKind, head: dict[str, object], arrays: Arrays) -> bytes:
    return b"".join(pack(kind, 0, head, arrays))


def read(data: bytes, *, limit_bytes: int = 1 << 20) -> Frame:
    """Receive a frame from these bytes, after which the peer closes."""
    near, far = socket.socketpair()
    with closing(FrameConnection(near)) as connection, far:
        far.sendall(data)
        far.shutdown(socket.SHUT_WR)
        return connection.receive(limit_bytes=limit_bytes, silence_s=LONG_S)


def assert_same(found: Arrays, sent: Arrays) -> None:
    assert list(found) == list(sent)
    for name, array in sent.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@settings(max_examples=25)
@given(kind=st.sampled_from(FrameKind), head=HEADS, arrays=ARRAYS)
def test_a_frame_arrives_as_it_was_sent(kind: FrameKind, head: dict[str, object], arrays: Arrays) -> None:
    frame = read(packed(kind, head, arrays))
    assert frame.kind == kind
    assert frame.head == head
    assert_same(frame.arrays, arrays)
    assert all(array.flags.writeable and array.flags.c_contiguous for array in frame.arrays.values())


@pytest.mark.parametrize("place", range(len(packed(FrameKind.RESULT, {"key": [0, 1, 2, 3]}, EXAMPLE))))
def test_a_damaged_byte_anywhere_is_found(place: int) -> None:
    data = bytearray(packed(FrameKind.RESULT, {"key": [0, 1, 2, 3]}, EXAMPLE))
    for flip in (0x01, 0x80, 0xFF):
        damaged = bytearray(data)
        damaged[place] ^= flip
        with pytest.raises((FrameError, ConnectionLost)):  # a longer frame is announced: the rest never comes
            read(bytes(damaged))


@settings(max_examples=30)
@given(st.data())
def test_a_truncated_frame_is_refused(data: st.DataObject) -> None:
    whole = packed(FrameKind.TASK, {"key": [0, 0, 0, 0]}, EXAMPLE)
    with pytest.raises(ConnectionLost, match="it closed the connection"):
        read(whole[: data.draw(st.integers(0, len(whole) - 1))])


@settings(max_examples=30)
@given(st.binary(min_size=HEADER_BYTES, max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(FrameError, match="another protocol"):
        read(noise)


def test_a_frame_over_the_limit_is_refused_before_anything_is_read() -> None:
    big = packed(FrameKind.RESULT, {}, {"z": np.zeros(1000)})
    with pytest.raises(FrameError, match=r"a RESULT frame has 80[0-9]{2} bytes; expected at most 8000"):
        read(big[:HEADER_BYTES], limit_bytes=8000)


def header_of(head: bytes, array_bytes: int, *, kind: int = 7, sequence: int = 0) -> bytes:
    """Return a header with right checksums and any content."""
    return wire.pack(kind, sequence, head, [bytes(array_bytes)])[:HEADER_BYTES]


@pytest.mark.parametrize(
    ("head", "size", "reason"),
    [
        (b'{"arrays":[["z","object",[2]]]}', 16, "array 'z' is of 'object', expected one of bool, uint8"),
        (b'{"arrays":[["z","float64",[-2]]]}', 16, r"array 'z' has shape \[-2\], expected whole numbers"),
        (b'{"arrays":[["z","float64",[2.0]]]}', 16, r"array 'z' has shape \[2.0\]"),
        (b'{"arrays":[["z","float64",[true]]]}', 8, r"array 'z' has shape \[True\]"),
        (
            b'{"arrays":[["z","float64",[1000000000000]]]}',
            16,
            "names arrays of 8000000000000 bytes, but carries 16",
        ),
        (b'{"arrays":[["z","float64",[1,1,1,1,1,1,1,1,1]]]}', 8, r"expected \[name, dtype, shape\]"),
        (b'{"arrays":[["z","uint8",[1]],["z","uint8",[1]]]}', 2, "names an array twice"),
        (b'{"arrays":{"z":1}}', 0, "expected a list"),
        (b'{"arrays":[7]}', 0, r"an array is given as 7, expected \[name, dtype, shape\]"),
        (b"[1]", 0, "is a list, expected an object"),
        (b"{", 0, "is no JSON"),
        (b"[" * 100_000, 0, "is no JSON"),
        (b"\xff\xfe", 0, "is no JSON"),
    ],
)
def test_a_head_that_makes_no_sense_is_refused_with_the_reason(head: bytes, size: int, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        read(header_of(head, size) + head)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (
            header_of(b"{}", 0)[:2] + b"\x01" + header_of(b"{}", 0)[3:],
            "protocol 1, expected 3: install the same",
        ),
        (header_of(b"{}", 0, kind=99), "a frame of kind 99, which protocol 3 of workers has not"),
        (header_of(b"{}", 0, sequence=1) + b"{}", "frame 1 came where frame 0 was expected"),
        (
            header_of(b"", 0)[:8] + b"\x01\x00\x10\x00" + header_of(b"", 0)[12:],
            r"1048577 \+ 0 bytes; expected at most",
        ),
    ],
)
def test_a_header_that_is_not_allowed_is_refused(header: bytes, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        read(header)


def test_arrays_and_heads_that_do_not_fit_a_frame_are_not_sent() -> None:
    with pytest.raises(FrameError, match="array 'z' is of object"):
        pack(FrameKind.RESULT, 0, {}, {"z": np.array([None])})
    with pytest.raises(FrameError, match=r"has 10485[0-9]{2} bytes; expected at most 1048576"):
        pack(FrameKind.CLOSE, 0, {"reason": "x" * MAX_HEAD_BYTES + "  "}, {})


def test_arrays_in_another_order_or_of_the_other_endian_arrive_as_they_are() -> None:
    sent = {"t": np.arange(6.0).reshape(2, 3).T, "s": np.arange(10)[::3], "b": np.arange(3, dtype=">f4")}
    assert_same(
        read(packed(FrameKind.TASK, {}, sent)).arrays,
        {name: np.asarray(array, array.dtype.newbyteorder("<")) for name, array in sent.items()},
    )


# Links


@pytest.fixture(scope="module", params=["plain", "tls"])
def connections(request: pytest.FixtureRequest) -> Iterator[tuple[FrameConnection, FrameConnection]]:
    near, far = socket.socketpair()
    if request.param == "tls":
        certificate = self_signed()
        with ThreadPoolExecutor(1) as pool:
            server = pool.submit(certificate.server_context().wrap_socket, near, server_side=True)
            far, _ = dial(far, fingerprint=certificate.fingerprint)
            near = server.result(LONG_S)
    with closing(FrameConnection(near)) as one, closing(FrameConnection(far)) as other:
        yield one, other


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(head=HEADS, arrays=ARRAYS)
def test_connections_carry_frames(
    connections: tuple[FrameConnection, FrameConnection], head: dict[str, object], arrays: Arrays
) -> None:
    one, other = connections
    one.send(FrameKind.TASK, head, arrays)
    frame = other.receive(silence_s=LONG_S)
    assert frame.head == head
    assert_same(frame.arrays, arrays)


def test_large_frames_go_both_ways_at_once_while_others_write_too(
    connections: tuple[FrameConnection, FrameConnection],
) -> None:
    sent = {f"z{place}": np.full((250_000,), place, np.float64) for place in range(4)}  # 8 MB
    before = (connections[0].bytes_in, connections[0].bytes_out)

    def talk(connection: FrameConnection) -> None:
        for _ in range(5):
            connection.send(FrameKind.RESULT, {}, sent)

    def beat(connection: FrameConnection) -> None:
        for _ in range(200):
            connection.send(FrameKind.HEARTBEAT)

    talkers = [
        threading.Thread(target=act, args=(connection,)) for act in (talk, beat) for connection in connections
    ]
    for talker in talkers:
        talker.start()
    with ThreadPoolExecutor(2) as pool:

        def listen(connection: FrameConnection) -> int:
            results = 0
            for _ in range(205):
                frame = connection.receive(silence_s=LONG_S)
                results += frame.kind == FrameKind.RESULT
                if frame.kind == FrameKind.RESULT:
                    assert_same(frame.arrays, sent)
            return results

        assert list(pool.map(listen, connections)) == [5, 5]
    for talker in talkers:
        talker.join(LONG_S)
    moved = (connections[0].bytes_in - before[0], connections[0].bytes_out - before[1])
    assert moved[0] == moved[1] > 40_000_000


def test_a_silent_peer_and_one_that_takes_nothing_are_given_up() -> None:
    near, far = socket.socketpair()
    with closing(FrameConnection(near, send_wait_s=0.05)) as connection, far:
        with pytest.raises(ConnectionLost, match=r"it was silent for 0\.1 s"):
            connection.receive(silence_s=0.05)
        with pytest.raises(ConnectionLost, match="it was silent"):
            connection.send(FrameKind.TASK, {}, {"m": np.zeros(1_000_000)})


def test_a_reader_gets_an_error_at_once_when_the_connection_is_shut() -> None:
    near, far = socket.socketpair()
    with closing(FrameConnection(near)) as connection, far, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connection.receive)
        connection.shut()
        with pytest.raises(ConnectionLost):
            waiting.result(LONG_S)
