"""Notices at once that another rank is lost, while this one waits for whatever comes first."""

import threading
from queue import SimpleQueue
from typing import Any

from siafu.comm import Comm


class Watcher:
    """Waits, in a thread of its own, for the end of all peers, so that the loss of one is noticed at once."""

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
