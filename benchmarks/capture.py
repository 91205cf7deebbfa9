"""What crosses an interface: captured, put together by connection, opened with the secrets of TLS, cut into messages.

    python benchmarks/capture.py INTERFACE FILE        capture into a pcap file, until killed; needs root

The file opens in Wireshark too, with the secrets that ``relay.py`` writes. A packet that the capture lacks is an error
where its connection is put together, so what is found here is all that there was.
"""

import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1)
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FIN, _SYN = 1, 2
_BUFFER_FORCE = 33  # SO_RCVBUFFORCE

End = tuple[str, int]


def capture(interface: str, path: Path) -> None:
    """Write every packet that an interface sends or receives into a file."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.setsockopt(socket.SOL_SOCKET, _BUFFER_FORCE, 1 << 28)
    sock.bind((interface, 0))
    with path.open("wb", buffering=0) as file:
        file.write(_HEADER)
        print("capturing", flush=True)
        while True:
            packet, now = sock.recv(1 << 18), time.time()
            head = struct.pack("<IIII", int(now), int(now % 1 * 1e6), len(packet), len(packet))
            file.write(head + packet)


@dataclass
class Capture:
    """The packets of a file.

    Attributes:
        sent: of each direction of each TCP connection, the bytes from its first to its last.
        packets, num_bytes: by the host that sent them, of TCP, headers included.
        other_bytes: by the kind of an Ethernet frame, of all that is not TCP over IPv4.
    """

    sent: dict[tuple[End, End], bytes]
    packets: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    num_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    other_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def read(path: Path) -> Capture:
    """Read a file and put its connections together; raises ValueError where a packet is missing."""
    found, parts = Capture({}), defaultdict[tuple[End, End], dict[int, bytes]](dict)
    first: dict[tuple[End, End], int] = {}
    for packet in _packets(path.read_bytes()):
        kind = packet[12:14]
        if kind != b"\x08\x00" or packet[23] != socket.IPPROTO_TCP:
            found.other_bytes[kind.hex()] += len(packet)
            continue
        way, number, flags, payload = _segment(packet)
        found.packets[way[0][0]] += 1
        found.num_bytes[way[0][0]] += len(packet)
        if flags & _SYN:
            first[way] = number + 1
            parts[way] = {}
        elif payload and way in first:
            at = (number - first[way]) & 0xFFFFFFFF
            if len(payload) > len(parts[way].get(at, b"")):
                parts[way][at] = payload
    found.sent = {way: _whole(segments, way) for way, segments in parts.items()}
    return found


def _packets(data: bytes) -> Iterator[bytes]:
    at = len(_HEADER)
    while at + 16 <= len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        yield data[at + 16 : at + 16 + size]
        at += 16 + size


def _segment(packet: bytes) -> tuple[tuple[End, End], int, int, bytes]:
    """Both ends of a TCP packet, its number, flags and payload."""
    tcp = 14 + (packet[14] & 15) * 4
    end = 14 + struct.unpack_from(">H", packet, 16)[0]  # what lies behind it fills a short frame up
    source, target = socket.inet_ntoa(packet[26:30]), socket.inet_ntoa(packet[30:34])
    source_port, target_port, number = struct.unpack_from(">HHI", packet, tcp)
    way = (source, source_port), (target, target_port)
    return way, number, packet[tcp + 13], packet[tcp + (packet[tcp + 12] >> 4) * 4 : end]


def _whole(segments: dict[int, bytes], way: tuple[End, End]) -> bytes:
    whole = bytearray()
    for at, payload in sorted(segments.items()):
        if at > len(whole):
            raise ValueError(f"{way}: the capture lacks bytes {len(whole)} to {at}")
        whole += payload[len(whole) - at :]
    return bytes(whole)


def read_secrets(path: Path) -> dict[tuple[str, str], bytes]:
    """The secrets that TLS wrote, by their label and by the client's random bytes."""
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return {(label, random): bytes.fromhex(secret) for label, random, secret in lines}


def opened(hello: bytes, stream: bytes, secrets: dict[tuple[str, str], bytes], *, by_server: bool) -> bytes:
    """What one side of a TLS 1.3 connection said; ``hello`` are the client's bytes, ``stream`` that side's."""
    label = "SERVER_TRAFFIC_SECRET_0" if by_server else "CLIENT_TRAFFIC_SECRET_0"
    secret = secrets.get((label, hello[11:43].hex()))
    if secret is None:  # it was refused in the handshake, after which nothing is said
        return b""
    cipher, iv, said, number = _cipher(secret), _expand(secret, b"iv", 12), bytearray(), 0
    for header, body in _records(stream):
        nonce = (int.from_bytes(iv) ^ number).to_bytes(12)
        try:
            inner = cipher.decrypt(nonce, body, header).rstrip(b"\0")
        except InvalidTag:
            if number:
                raise ValueError("a record of TLS does not open with its secret") from None
            continue  # one of the handshake
        number += 1
        said += inner[:-1] if inner[-1] == 23 else b""
    return bytes(said)


def _records(stream: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Header and body of encrypted records."""
    at = 0
    while at + 5 <= len(stream):
        end = at + 5 + int.from_bytes(stream[at + 3 : at + 5])
        if stream[at] == 23 and end <= len(stream):
            yield stream[at : at + 5], stream[at + 5 : end]
        at = end


def _cipher(secret: bytes) -> Any:
    return AESGCM(_expand(secret, b"key", 16 if len(secret) == 32 else 32))


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    name = b"tls13 " + label
    info = size.to_bytes(2) + bytes([len(name)]) + name + b"\0"
    kind = hashes.SHA256() if len(secret) == 32 else hashes.SHA384()
    return HKDFExpand(kind, size, info).derive(secret)


def messages(said: bytes) -> dict[int, list[bytes]]:
    """The messages of gRPC in what one side said, by the number of the call."""
    at, calls = len(_PREFACE) if said.startswith(_PREFACE) else 0, defaultdict[int, bytearray](bytearray)
    while at + 9 <= len(said):
        size, kind, flags = int.from_bytes(said[at : at + 3]), said[at + 3], said[at + 4]
        if kind == 0:
            assert not flags & 8, "gRPC pads nothing"
            calls[int.from_bytes(said[at + 5 : at + 9])] += said[at + 9 : at + 9 + size]
        at += 9 + size
    return {call: list(_prefixed(bytes(data))) for call, data in calls.items()}


def _prefixed(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 5 <= len(data):
        assert not data[at], "nothing is compressed"
        end = at + 5 + int.from_bytes(data[at + 1 : at + 5])
        if end <= len(data):
            yield data[at + 5 : end]
        at = end


if __name__ == "__main__":
    capture(sys.argv[1], Path(sys.argv[2]))
