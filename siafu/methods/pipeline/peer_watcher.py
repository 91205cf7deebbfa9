"""Notices at once that another rank is lost, while this one waits for the next event."""

import threading
from queue import SimpleQueue
from typing import Any

from siafu.comm import Comm


class PeerWatcher:
    """A thread for each peer, which waits for the peer's end message and reports its loss to the inbox at once.

    Attributes:
        ended: whether the end message of every peer has arrived.
    """

    def __init__(self, comm: Comm, peers: list[int], inbox: "SimpleQueue[tuple[Any, ...]]") -> None:
        self.ended = not peers
        self._comm, self._inbox = comm, inbox
        self._lock, self._left = threading.Lock(), len(peers)
        for peer in peers:
            threading.Thread(
                target=self._wait, args=(peer,), name=f"siafu pipeline watcher of rank {peer}", daemon=True
            ).start()

    def _wait(self, peer: int) -> None:
        try:
            self._comm.receive(peer, label="pipeline end")
        except Exception as error:
            self._inbox.put(("lost", error))
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
            self.ended = True
        self._inbox.put(("end",))
