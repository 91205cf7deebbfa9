"""What ranks may ask of each other: Comm, and what carries it. It knows no graph and no training.

Reading order: ``comm`` (what may be asked), ``transport`` (what that asks of a carrier), ``threads`` and ``mesh`` (the
two carriers), ``frames`` and ``handshake`` (what is on the wire), ``liveness`` (who is lost), ``codec`` (narrow rows).
"""

from siafu.comm.comm import Comm, Pending
from siafu.comm.config import CommConfig
from siafu.comm.errors import CommError, OutOfStep, PeerFailed, PeerLost, PeerMismatch, PeerProtocolError
from siafu.comm.meter import ByteMeter
from siafu.comm.rendezvous import Board, Group, Meet
from siafu.comm.socket_transport import Mesh, connect
from siafu.comm.thread_transport import alone, connect_threads

__all__ = [
    "Board",
    "Comm",
    "CommConfig",
    "CommError",
    "FrameError",
    "Group",
    "Meet",
    "Mesh",
    "ByteMeter",
    "OutOfStep",
    "PeerFailed",
    "PeerLost",
    "PeerMismatch",
    "Pending",
    "alone",
    "connect",
    "connect_threads",
]
