"""Collectives between ranks (Comm) and the transports that implement them. It knows no graph and no training.

Reading order: ``comm`` (the collectives), ``transport`` (the protocol below them), ``thread_transport`` and
``socket_transport`` (its two implementations), ``rendezvous``, ``network`` and ``peers`` (how ranks connect),
``message_frames`` and ``identity`` (the wire format), ``liveness`` (lost ranks), ``halo`` (halo exchange),
``quantization`` and ``compression`` (rows in fewer bytes).
"""

from siafu.comm.comm import Comm, Pending
from siafu.comm.config import CommConfig
from siafu.comm.errors import (
    CollectiveMismatch,
    CommError,
    PeerFailed,
    PeerLost,
    PeerMismatch,
    PeerProtocolError,
)
from siafu.comm.meter import ByteMeter
from siafu.comm.rendezvous import GroupConfig, LocalRendezvousStore, RendezvousStore
from siafu.comm.socket_transport import SocketTransport, connect_sockets
from siafu.comm.thread_transport import connect_threads, single_rank_comm

__all__ = [
    "ByteMeter",
    "CollectiveMismatch",
    "Comm",
    "CommConfig",
    "CommError",
    "GroupConfig",
    "LocalRendezvousStore",
    "PeerFailed",
    "PeerLost",
    "PeerMismatch",
    "PeerProtocolError",
    "Pending",
    "RendezvousStore",
    "SocketTransport",
    "connect_sockets",
    "connect_threads",
    "single_rank_comm",
]
