"""Frames on a connection: every one that is not as it should be is refused with a reason."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from xxhash import xxh3_64_intdigest

from siafu.comm.frames import (
    CHUNK_BYTES,
    MAX_BYTES,
    BadFrame,
    FrameKind,
    Header,
    pack,
    pack_extra,
    wire_bytes,
)
from siafu.comm.inbox import Inbox
from siafu.comm.incoming import Incoming
from siafu.comm.memory import DTYPES, bytes_of
from siafu.comm.outbox import Outbox
from siafu.comm.transport import Envelope, Kind, Ticket

ENVELOPE = Envelope(Kind.DIRECT, 7, 0, "test")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def sent_bytes(values: Tensor, *, envelope: Envelope = ENVELOPE) -> bytes:
    """What an outbox writes for a message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox = Outbox(
            ours, tick_s=1, stalled=lambda seconds: None, broke=lambda error: None, sent=lambda count, is_data: None  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        thread = threading.Thread(target=outbox.run)
        thread.start()
        ticket = Ticket(0)
        outbox.put(envelope, values, ticket)
        size = wire_bytes(values.nbytes, values.dim(), envelope.label)
        got = b""
        while len(got) < size:
            got += theirs.recv(1 << 20)
        assert ticket.done.wait(60)
        outbox.stop()
        thread.join()
    return got


def take_in(pair: tuple[socket.socket, socket.socket], data: bytes) -> Inbox:
    """Feed bytes to a receiver until it raises."""
    ours, theirs = pair
    inbox = Inbox()

    def feed() -> None:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        Incoming(ours, 1, inbox, control=lambda header, label, payload: None, moved=lambda count: None).run()
    except EOFError:
        return inbox
    finally:
        ours.close()
        thread.join()
    raise AssertionError("a receiver ends with its connection alone")


def received(inbox: Inbox, number: int = 0) -> Tensor:
    arrival = inbox.expect(1, ENVELOPE._replace(number=number), None)
    assert arrival.whole
    assert arrival.values is not None
    return arrival.values


@pytest.mark.parametrize("size", [0, 1, 3, 16_000, 262_143, 262_144, 262_145, 700_000])
def test_a_message_of_any_size_arrives_in_the_bytes_that_the_meter_counts(
    pair: tuple[socket.socket, socket.socket], size: int
) -> None:
    values = torch.arange(size, dtype=torch.int32)
    data = sent_bytes(values)
    assert len(data) == wire_bytes(values.nbytes, 1, "test")
    assert torch.equal(received(take_in(pair, data)), values)


def flip(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"HTTP/1.1 400 Bad Request\r\n" + data, r"begins with b'HTTP', expected b'SIAF'"),
        (flip(4), "a frame of protocol 5, expected 1"),
        (flip(6), "checksum of a frame's header"),
        (flip(17), "checksum of a frame's header"),
        (flip(50), "checksum of a frame's header|begins with"),
        (flip(75), "checksum of a frame's header"),
        (flip(-100), "checksum of a frame's payload"),
        (lambda data: data[1:], "begins with"),
        (lambda data: data + data, "frame 0 came where frame 1 was expected"),
    ],
)
def test_damage_is_noticed(
    pair: tuple[socket.socket, socket.socket], damage: Callable[[bytes], bytes], reason: str
) -> None:
    with pytest.raises(BadFrame, match=reason):
        take_in(pair, damage(sent_bytes(torch.arange(100))))


def test_every_single_flipped_bit_is_noticed() -> None:
    data = sent_bytes(torch.arange(2))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                inbox = take_in((ours, theirs), bytes(damaged))
            except BadFrame:
                continue
            # Only a header that claims to be longer than what came is left waiting, and then nothing was delivered.
            assert not inbox.expect(1, ENVELOPE, None).whole


@pytest.mark.parametrize("cut", [10, 73, 90, 500])
def test_a_truncated_frame_delivers_nothing(pair: tuple[socket.socket, socket.socket], cut: int) -> None:
    inbox = take_in(pair, sent_bytes(torch.arange(100))[:cut])
    assert not inbox.expect(1, ENVELOPE, None).whole


def handmade(payload: bytes = b"", shape: tuple[int, ...] = (0,), **changes: Any) -> bytes:
    extra = pack_extra(shape, "test")
    header = Header(
        kind=FrameKind.DIRECT, dtype=torch.uint8, channel=7, sequence=0, number=0, total=len(payload), offset=0,
        length=len(payload), extra=len(extra), dims=len(shape), payload_sum=xxh3_64_intdigest(payload),
    )  # fmt: skip
    return pack(header._replace(**changes), extra) + payload


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (handmade(total=MAX_BYTES + 1), "expected at most 1099511627776"),
        (handmade(length=CHUNK_BYTES + 1), "frames of at most 1048576"),
        (handmade(shape=(2**39, 2**39), total=8), "a message of shape .* in 8 bytes"),
        (handmade(b"abc", shape=(2,)), "in 3 bytes"),
        (handmade(b"abc", shape=(2,), total=2), "goes on to byte 3"),
        (handmade(b"abc", offset=5, total=9), "byte 5 of message 0 came out of its order"),
        (handmade(dims=60), "60 dimensions with"),
        (handmade(b"abc", kind=FrameKind.BEAT, total=5), "a frame of kind BEAT"),
        (handmade(b"a", shape=(1,)) + handmade(b"a", shape=(1,), sequence=1), "came twice"),
    ],
)
def test_a_frame_that_says_impossible_things_is_refused(
    pair: tuple[socket.socket, socket.socket], data: bytes, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        take_in(pair, data)


def test_bytes_of_every_dtype_are_the_tensors_own_memory() -> None:
    for dtype in DTYPES:
        values = torch.zeros(3, 2, dtype=dtype)
        view = bytes_of(values)
        assert len(view) == values.nbytes
        view[:] = b"\x01" * len(view)
        assert bool((values != 0).all())


def test_small_messages_to_a_slow_reader_arrive_whole_and_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000
    )  # less than a message: none is sent in one go
    outbox = Outbox(
        theirs, tick_s=0.01, stalled=lambda seconds: None, broke=lambda error: None, sent=lambda count, is_data: None  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    sender = threading.Thread(target=outbox.run)
    sender.start()
    tickets = [Ticket(0) for _ in range(20)]
    for number, ticket in enumerate(tickets):
        values = torch.full((15_000,), number, dtype=torch.int32)
        outbox.put(ENVELOPE._replace(number=number, channel=7 + number % 2), values, ticket)
    assert not tickets[-1].done.is_set()
    inbox = Inbox()
    incoming = Incoming(ours, 1, inbox, control=lambda header, label, payload: None, moved=lambda count: None)

    def read() -> None:
        with suppress(EOFError):
            incoming.run()

    reader = threading.Thread(target=read)
    reader.start()
    for ticket in tickets:
        assert ticket.done.wait(60)
    outbox.stop()
    sender.join()
    theirs.shutdown(socket.SHUT_WR)
    reader.join()
    for number in range(20):
        arrival = inbox.expect(1, ENVELOPE._replace(number=number, channel=7 + number % 2), None)
        assert arrival.values is not None
        assert arrival.whole
        assert bool((arrival.values == number).all())
