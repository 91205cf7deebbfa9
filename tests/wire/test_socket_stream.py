"""One thread reads a connection while another one writes it, both ways, tens of megabytes, plain and TLS."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from connections import both, plain_pair, secure_pair

from siafu.wire.certificates import self_signed
from siafu.wire.socket_stream import SocketStream

MEGABYTES = 24


@contextmanager
def streams(kind: str) -> Iterator[tuple[SocketStream, SocketStream]]:
    """Both ends of a connection."""
    with plain_pair() if kind == "plain" else secure_pair(self_signed()) as pair:
        first, second = (SocketStream(sock, tick_s=0.05) for sock in pair)
        try:
            yield first, second
        finally:
            first.close()
            second.close()


def write(stream: SocketStream, data: bytes) -> int:
    """Send all of some bytes, in parts."""
    view, refused = memoryview(data), 0
    while view:
        middle = len(view) // 2
        sent = stream.send([view[:0], view[:middle], view[middle:]])
        refused += not sent
        view = view[sent:]
    return refused


def read(stream: SocketStream, count: int) -> bytes:
    """Read so many bytes."""
    data, at = memoryview(bytearray(count)), 0
    while at < count:
        got = stream.recv_into(data[at : at + 300_000])
        assert got, f"ended {count - at} bytes too early"
        at += got
    return bytes(data)


@pytest.mark.parametrize("kind", ["plain", "TLS"])
def test_both_ends_read_and_write_much_at_the_same_time(kind: str) -> None:
    rng = random.Random(0)
    there, back = rng.randbytes(MEGABYTES << 20), rng.randbytes(MEGABYTES << 20)
    with streams(kind) as (first, second):
        one, other = both(
            lambda: both(lambda: write(first, there), lambda: read(first, len(back))),
            lambda: both(lambda: write(second, back), lambda: read(second, len(there))),
        )
    for end in (one, other):
        assert isinstance(end, tuple), end
        assert not isinstance(end[0], BaseException), end[0]
    assert one[1] == back  # type: ignore[index]
    assert other[1] == there  # type: ignore[index]


@pytest.mark.parametrize("kind", ["plain", "TLS"])
def test_writing_to_a_peer_that_takes_nothing_ends_with_nothing_sent(kind: str) -> None:
    with streams(kind) as (first, _):
        data = memoryview(bytes(1 << 20))
        assert any(first.send([data]) == 0 for _ in range(1000))  # once all buffers between them are full


@pytest.mark.parametrize("kind", ["plain", "TLS"])
def test_a_reader_learns_at_once_that_the_connection_was_ended(kind: str) -> None:
    with streams(kind) as (first, second):
        found, _ = both(lambda: first.recv_into(memoryview(bytearray(10))), second.shutdown)
        assert found == 0 or isinstance(found, OSError)
        found, _ = both(lambda: second.recv_into(memoryview(bytearray(10))), lambda: None)
        assert found == 0 or isinstance(found, OSError)


def test_a_stream_over_a_unix_socket_works_too() -> None:
    first, second = (SocketStream(sock, tick_s=0.05) for sock in socket.socketpair())
    write(first, b"hello")
    assert read(second, 5) == b"hello"
    first.close()
    assert second.recv_into(memoryview(bytearray(1))) == 0
    second.close()
