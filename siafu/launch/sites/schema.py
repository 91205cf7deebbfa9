"""Protobuf messages between coordinator and sites, and the greeting between sites, built at import without protoc.

Tensors travel as frames (``frame_stream``). A message is parsed only after TLS has authenticated its sender, and only
if it is within the size limit. Fields 30 to 39 of ``Order`` are reserved for secure aggregation and differential
privacy; a version that does not know a field refuses the message instead of ignoring the field.
"""

from typing import Any

from siafu.extras import require_extra

with require_extra("training among sites", "google.protobuf"):
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

from siafu.comm.message_frames import CHUNK_BYTES
from siafu.wire.frames import FrameError

PROTOCOL = 2
MAX_MESSAGE_BYTES = CHUNK_BYTES + (1 << 16)  # of one message of gRPC, header included

_ROOM, _WITH_ROOM = range(30, 40), ("Order",)  # reserved for later versions

_KINDS = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "bytes": _KINDS.TYPE_BYTES,
    "string": _KINDS.TYPE_STRING,
    "bool": _KINDS.TYPE_BOOL,
    "uint32": _KINDS.TYPE_UINT32,
    "int64": _KINDS.TYPE_INT64,
    "uint64": _KINDS.TYPE_UINT64,
    "fixed64": _KINDS.TYPE_FIXED64,
    "double": _KINDS.TYPE_DOUBLE,
}

# The fields of each message, numbered from 1 in this order; "*" marks a repeated field.
_MESSAGES: dict[str, tuple[str, ...]] = {
    "Hello": ("uint32 protocol", "string version", "bytes attempt"),
    "Ask": ("uint32 protocol", "string version", "double time"),
    "About": (
        "string name",
        "string version",
        "double time",
        "uint64 nodes",
        "uint64 edges",
        "uint64 cross_edges",
        "uint32 features",
        "string task",
        "uint32 outputs",
        "*string classes",
        "bool counts",
        "string fingerprint",
        "*string names",
        "string may_features",
        "string may_embeddings",
        "string may_structure",
        "double expires",
        "string state",
        "uint64 ledger_bytes",
        "*uint64 split",
        "uint32 fold",
    ),
    "Member": ("string name", "string address"),
    "Piece": ("string file", "uint64 offset", "uint64 total", "bytes data", "fixed64 data_sum"),
    "Order": (
        "bytes attempt",
        "string run",
        "string config",
        "*Member members",
        "*string away",
        "bool resumed",
        "bool checkpointed",
        "bool same_group",
        "Piece piece",
    ),
    "Count": ("string label", "uint64 bytes"),
    "Report": (
        "string state",
        "string kind",
        "string text",
        "string blames",
        "string waits_for",
        "double waited",
        "string phase",
        "uint64 ledger_bytes",
        "*Count meter",
        "string measured",
        "Piece piece",
        "uint64 run_bytes",
    ),
    "Stop": ("bytes attempt", "string reason", "bool at_once"),
    "Empty": (),
}


class BadMessage(FrameError):
    """Bytes that are not a message of the schema."""


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="siafu/sites.proto", package="siafu.sites", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _WITH_ROOM:
            message.reserved_range.add(start=_ROOM.start, end=_ROOM.stop)
        for number, text in enumerate(fields, 1):
            kind, field = text.removeprefix("*").split()
            label = _KINDS.LABEL_REPEATED if text.startswith("*") else _KINDS.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label)
            if kind in _TYPES:
                made.type = _TYPES[kind]
            else:
                made.type, made.type_name = _KINDS.TYPE_MESSAGE, f".siafu.sites.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"siafu.sites.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(kind) for name, kind in found.items()}


_CLASSES = _classes()


def make(name: str, /, **fields: Any) -> Any:
    """Make a message of the schema."""
    return _CLASSES[name](**fields)


def pack(message: Any) -> bytes:
    """Serialise a message."""
    return message.SerializeToString()


def unpack(name: str, data: bytes) -> Any:
    """Parse a message; raises BadMessage for other bytes, or for fields that this version does not know."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"a message of {len(data)} bytes; expected at most {MAX_MESSAGE_BYTES}")
    try:
        message = _CLASSES[name].FromString(data)
    except DecodeError:
        raise BadMessage(f"{len(data)} bytes that are no {name}") from None
    known = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != known:
        raise BadMessage(
            f"a {name} with fields that this version does not know; use the same siafu everywhere"
        )
    return message
