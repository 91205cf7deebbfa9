"""Notices at once that another rank is lost, while this one waits for the next event."""

import threading
from queue import SimpleQueue
from typing import Any

from siafu.comm import Comm


class PeerWatcher:
    """A thread that waits for the end message of every peer, and reports the loss of one to the inbox at once."""

    def __init__(self, comm: Comm, peers: list[int], inbox: "SimpleQueue[tuple[Any, ...]]") -> None:
        self.ended = not peers
        self._comm, self._peers, self._inbox = comm, peers, inbox
        if peers:
            threading.Thread(target=self._wait, name="siafu pipeline watcher", daemon=True).start()

    def _wait(self) -> None:
        try:
            for peer in self._peers:
                self._comm.receive(peer, label="pipeline end")
        except Exception as error:
            self._inbox.put(("lost", error))
            return
        self.ended = True
        self._inbox.put(("end",))
