"""Count the bytes that a rank sends, by label. It knows no clock and no peer."""

import threading

BEATS = "beats"  # label of frames that carry no data: heartbeats, aborts and closes


class ByteMeter:
    """Bytes sent by this rank, frame headers included, by the label of the call that sent them.

    Bytes are counted when a call hands them to the transport. At a given point of a program the counts are therefore
    the same in every run and on every transport, except for ``beats``, which threads do not send.
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
        """Return a copy of the counts so far."""
        with self._lock:
            return dict(self._sent)

    def total(self) -> int:
        """Return the sum of all labels so far, ``beats`` included."""
        return sum(self.sent.values())
