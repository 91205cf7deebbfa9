"""Frames of messages through send queue, frame reader and receive queue; invalid frames are refused with a reason."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from siafu.comm.errors import ErrorFactory
from siafu.comm.frame_reader import FrameReader
from siafu.comm.message_frames import (
    CHUNK_BYTES,
    MAX_BYTES,
    ChunkHead,
    FrameKind,
    MessageInfo,
    pack_chunk_head,
    pack_control_head,
    wire_bytes,
)
from siafu.comm.receive_queue import ReceiveQueue
from siafu.comm.send_queue import SendQueue
from siafu.comm.tensor_bytes import DTYPES, byte_view
from siafu.comm.transport import Envelope, MessageKind, Transfer
from siafu.wire.frames import FrameError, pack
from siafu.wire.socket_stream import SocketStream

ENVELOPE = Envelope(MessageKind.DIRECT, 7, 0, "test")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def send_queue_of(sock: socket.socket, *, tick_s: float) -> SendQueue:
    """An send_queue of a connection that never breaks."""

    def connection_error(error: OSError) -> ErrorFactory:
        raise AssertionError(error)

    return SendQueue(
        SocketStream(sock, tick_s=tick_s),
        tick_s=tick_s,
        check_stalled=lambda seconds: None,
        connection_error=connection_error,
        on_sent=lambda count, is_data: None,
    )


def sent_bytes(values: Tensor, *, envelope: Envelope = ENVELOPE) -> bytes:
    """What an send_queue writes for a message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_queue = send_queue_of(ours, tick_s=1)
        thread = threading.Thread(target=send_queue.run)
        thread.start()
        transfer = Transfer(0)
        send_queue.put(envelope, values, transfer)
        size = wire_bytes(values.nbytes, values.dim(), envelope.label)
        got = b""
        while len(got) < size:
            got += theirs.recv(1 << 20)
        assert transfer.done.wait(60)
        send_queue.stop()
        thread.join()
    return got


def take_in(pair: tuple[socket.socket, socket.socket], data: bytes) -> ReceiveQueue:
    """Feed bytes to a receiver until it raises."""
    ours, theirs = pair
    receive_queue = ReceiveQueue()

    def feed() -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused before the end
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        FrameReader(
            SocketStream(ours, tick_s=1),
            1,
            receive_queue,
            control=lambda *frame: None,
            moved=lambda count: None,
        ).run()
    except EOFError:
        return receive_queue
    finally:
        ours.close()
        thread.join()
    raise AssertionError("a receiver ends with its connection alone")


def received(receive_queue: ReceiveQueue, number: int = 0) -> Tensor:
    arrival = receive_queue.start_receive(1, ENVELOPE._replace(number=number), None)
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
        (lambda data: b"HTTP/1.1 400 Bad Request\r\n" + data, r"begins with b'HTTP', expected b'SF'"),
        (flip(2), "a frame of protocol 7, expected 3"),
        (flip(3), "checksum of a frame's header"),
        (flip(5), "checksum of a frame's header"),
        (flip(26), "checksum of a frame's header"),
        (flip(70), "checksum of a frame's header"),
        (flip(-100), "checksum of a frame's payload"),
        (lambda data: data[1:], "begins with"),
        (lambda data: data + data, "frame 0 came where frame 1 was expected"),
    ],
)
def test_damage_is_noticed(
    pair: tuple[socket.socket, socket.socket], damage: Callable[[bytes], bytes], reason: str
) -> None:
    with pytest.raises(FrameError, match=reason):
        take_in(pair, damage(sent_bytes(torch.arange(100))))


def test_every_single_flipped_bit_is_noticed() -> None:
    data = sent_bytes(torch.arange(2))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                receive_queue = take_in((ours, theirs), bytes(damaged))
            except FrameError:
                continue
            # Only a header that claims to be longer than what came is left waiting, and then nothing was delivered.
            assert not receive_queue.start_receive(1, ENVELOPE, None).whole


@pytest.mark.parametrize("cut", [10, 73, 90, 500])
def test_a_truncated_frame_delivers_nothing(pair: tuple[socket.socket, socket.socket], cut: int) -> None:
    receive_queue = take_in(pair, sent_bytes(torch.arange(100))[:cut])
    assert not receive_queue.start_receive(1, ENVELOPE, None).whole


def handmade(
    payload: bytes = b"",
    shape: tuple[int, ...] = (0,),
    *,
    kind: int = FrameKind.DIRECT,
    total: int | None = None,
    sequence: int = 0,
    offset: int = 0,
    head: Callable[[bytes], bytes] = bytes,
) -> bytes:
    info = MessageInfo(len(payload) if total is None else total, torch.uint8, shape, "test")
    packed = pack_chunk_head(ChunkHead(7, 0, offset, None if offset else info))
    return pack(kind, sequence, head(packed), (payload,)) + payload


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (handmade(shape=(MAX_BYTES + 1,), total=MAX_BYTES + 1), "expected at most 1099511627776"),
        (handmade(bytes(CHUNK_BYTES + 1), shape=(CHUNK_BYTES + 1,)), r"expected at most \d+ \+ 1048576"),
        (handmade(shape=(2**39, 2**39), total=8), "a message of shape .* in 8 bytes"),
        (handmade(b"abc", shape=(2,)), "in 3 bytes"),
        (handmade(b"abc", shape=(2,), total=2), "goes on to byte 3"),
        (handmade(b"", shape=(2,), total=2), "a message of 2 bytes goes on to byte 0"),
        (handmade(b"abc", offset=5), "byte 5 of message 0 came out of its order"),
        (handmade(b"abc", offset=5, head=lambda head: head + b"x"), "begins a message"),
        (handmade(head=lambda head: head[:33] + b"<" + head[34:]), "60 dimensions described in"),
        (handmade(head=lambda head: head[:32] + b"\xff" + head[33:]), "a message of type 255"),
        (handmade(head=lambda head: head[:20]), "a chunk with a head of 20 bytes"),
        (handmade(head=lambda head: head[:30]), "described in 6 bytes"),
        (handmade(head=lambda head: head + b"x" * 200), "a label of 204"),
        (handmade(kind=99), "a frame of kind 99"),
        (
            pack(FrameKind.HEARTBEAT, 0, pack_control_head(0, ""), (b"x" * 70_000,)),
            "a frame of kind HEARTBEAT with 70000",
        ),
        (pack(FrameKind.CLOSE, 0, b"abc"), "a head of 3 bytes"),
        (handmade(b"a", shape=(1,)) + handmade(b"a", shape=(1,), sequence=1), "came twice"),
        (
            handmade(b"a", shape=(2,), total=2) + handmade(b"a", shape=(2,), total=2, sequence=1),
            'message "test" began before the one before it on its channel ended',
        ),
    ],
)
def test_a_frame_with_invalid_fields_is_refused(
    pair: tuple[socket.socket, socket.socket], data: bytes, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        take_in(pair, data)


def test_bytes_of_every_dtype_are_the_tensors_own_memory() -> None:
    for dtype in DTYPES:
        values = torch.zeros(3, 2, dtype=dtype)
        view = byte_view(values)
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
    send_queue = send_queue_of(theirs, tick_s=0.01)
    sender = threading.Thread(target=send_queue.run)
    sender.start()
    tickets = [Transfer(0) for _ in range(20)]
    for number, transfer in enumerate(tickets):
        values = torch.full((15_000,), number, dtype=torch.int32)
        send_queue.put(ENVELOPE._replace(number=number, channel=7 + number % 2), values, transfer)
    assert not tickets[-1].done.is_set()
    receive_queue = ReceiveQueue()
    frame_reader = FrameReader(
        SocketStream(ours, tick_s=1), 1, receive_queue, control=lambda *frame: None, moved=lambda count: None
    )

    def read() -> None:
        with suppress(EOFError):
            frame_reader.run()

    reader = threading.Thread(target=read)
    reader.start()
    for transfer in tickets:
        assert transfer.done.wait(60)
    send_queue.stop()
    sender.join()
    theirs.shutdown(socket.SHUT_WR)
    reader.join()
    for number in range(20):
        arrival = receive_queue.start_receive(
            1, ENVELOPE._replace(number=number, channel=7 + number % 2), None
        )
        assert arrival.values is not None
        assert arrival.whole
        assert bool((arrival.values == number).all())
