"""The loss of any peer is noticed, whichever the others are waited for."""

import threading
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from siafu.methods.pipeline.peer_watcher import PeerWatcher


class Peers:
    """Ends or loses each peer when it is told to."""

    def __init__(self, count: int) -> None:
        self.told = {peer: SimpleQueue[Exception | None]() for peer in range(count)}

    def receive(self, peer: int, *, label: str) -> Tensor:
        error = self.told[peer].get()
        if error is not None:
            raise error
        return torch.zeros(1)


def test_the_loss_of_the_last_peer_is_reported_while_the_first_still_trains() -> None:
    comm, inbox = Peers(3), SimpleQueue[tuple[Any, ...]]()
    watcher = PeerWatcher(comm, [1, 2], inbox)  # type: ignore[arg-type]
    lost = ConnectionError("rank 2 was silent")
    comm.told[2].put(lost)
    assert inbox.get(timeout=10) == ("lost", lost)
    assert not watcher.ended
    comm.told[1].put(None)


def test_the_end_is_reported_once_when_all_peers_have_ended() -> None:
    comm, inbox = Peers(3), SimpleQueue[tuple[Any, ...]]()
    watcher = PeerWatcher(comm, [0, 2], inbox)  # type: ignore[arg-type]
    comm.told[2].put(None)
    assert not watcher.ended
    comm.told[0].put(None)
    assert inbox.get(timeout=10) == ("end",)
    assert watcher.ended
    for thread in threading.enumerate():
        if thread.name.startswith("siafu pipeline watcher"):
            thread.join(10)
    assert inbox.empty()


def test_without_peers_nothing_is_waited_for() -> None:
    assert PeerWatcher(Peers(1), [], SimpleQueue()).ended  # type: ignore[arg-type]
