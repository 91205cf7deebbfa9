"""Count the bytes that a rank sent, by label. It knows no clock and no peer."""

import threading

BEATS = "beats"  # what keeps a connection: handshakes, beats, farewells


class ByteMeter:
    """Bytes sent by this rank, frame headers included, by the label of the call that sent them.

    Bytes are counted when they are handed to the transport, so the figure at one place of a program is the same in
    every run and on every transport, apart from ``beats``, of which there are none between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, int] = {}

    def add(self, label: str, num_bytes: int) -> None:
        """Count bytes under a label."""
        with self._lock:
            self._sent[label] = self._sent.get(label, 0) + num_bytes

    @property
    def sent(self) -> dict[str, int]:
        """A copy of the counts so far."""
        with self._lock:
            return dict(self._sent)

    def total(self) -> int:
        """All bytes so far, ``beats`` included."""
        return sum(self.sent.values())
