"""Frames between sites: the frames of ranks, each as one gRPC message."""

from torch import Tensor

from siafu.comm.chunks import MessageAssembler, MessageSplitter
from siafu.comm.message_frames import CHUNK_BYTES, MAX_HEAD_BYTES, FrameKind, pack_control_head
from siafu.comm.receive_queue import ReceiveQueue
from siafu.comm.transport import Envelope
from siafu.wire.frames import HEADER_BYTES, FrameError, Header, check_head, pack, unpack_header

_MESSAGES = (FrameKind.COLLECTIVE, FrameKind.DIRECT)  # sites send no posts
_FAREWELLS = (FrameKind.ABORT, FrameKind.CLOSE)
_RECORD = 1 << 14  # of TLS, and of a data frame of HTTP/2
_RECORD_BYTES, _PREFIX_BYTES = 22 + 9, 5


class FrameEncoder:
    """Encodes the messages of one connection into numbered frames."""

    def __init__(self) -> None:
        self._sequence = 0

    def message(self, envelope: Envelope, values: Tensor) -> list[bytes]:
        """Encode a message into frames; its bytes are copied."""
        splitter, frames = MessageSplitter(envelope, values), list[bytes]()
        while not splitter.is_at_end:
            frames.append(b"".join(splitter.next_frame(self._next())))
        return frames

    def control(self, kind: FrameKind) -> bytes:
        """Encode a control frame: this side failed (ABORT), or ends in good order (BYE)."""
        return pack(kind, self._next(), pack_control_head(0, ""))

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence - 1


class FrameDecoder:
    """Decodes the frames of one connection into messages."""

    def __init__(self, peer: int, inbox: ReceiveQueue) -> None:
        self._assembler = MessageAssembler(peer, inbox, kinds=_MESSAGES)
        self._sequence = 0
        self._over = False

    def take(self, data: bytes) -> FrameKind | None:
        """Decode a frame; returns its kind if it is a control frame, else None. Raises FrameError."""
        header, head, payload = split_frame(data)
        check_head(data, head, sequence=self._sequence)
        self._sequence += 1
        if self._over:
            raise FrameError("a frame after the one that said farewell")
        if header.kind not in _FAREWELLS:
            self._assembler.take(header, head, payload)
            return None
        if payload:
            raise FrameError(f"a farewell with a payload of {len(payload)} bytes; expected none")
        self._over = True
        return FrameKind(header.kind)


def split_frame(data: bytes) -> tuple[Header, bytes, memoryview]:
    """Split exactly one frame into header, head and payload; raises FrameError."""
    if len(data) < HEADER_BYTES:
        raise FrameError(f"{len(data)} bytes that are no frame; expected at least {HEADER_BYTES}")
    header = unpack_header(data, max_head=MAX_HEAD_BYTES, max_payload=CHUNK_BYTES)
    begin = HEADER_BYTES + header.head_bytes
    if len(data) != begin + header.payload_bytes:
        raise FrameError(f"a frame in {len(data)} bytes; its header says {begin + header.payload_bytes}")
    return header, data[HEADER_BYTES:begin], memoryview(data)[begin:]


def wire_bytes(message: bytes) -> int:
    """Count the bytes of a message above TCP: payload, gRPC prefix, and the headers of HTTP/2 and TLS."""
    whole = len(message) + _PREFIX_BYTES
    return whole + -(-whole // _RECORD) * _RECORD_BYTES
