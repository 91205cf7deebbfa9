"""Bounded staleness: a reader may go on once its sources are new enough. It knows no clock and no rows."""

import numpy as np


class StalenessGate:
    """Readers wait at the gate for rows of an epoch, each from the sources that it reads.

    The version of a source is the epoch of its rows. A reader that waits for epoch e may go on once every source that
    it reads has a version of at least e, less the source's slack, and at least ``first``.

    Each waiting reader is registered at one source that it lacks, the last one, and is checked again only when that
    source advances. So most advances cost next to nothing, however many readers there are.
    """

    def __init__(self, reads: np.ndarray, *, slack: np.ndarray | None = None, first: int = 1) -> None:
        """``reads`` is (readers, sources) bool, ``slack`` (sources,) int, ``first`` the first epoch of any rows."""
        num_readers, num_sources = reads.shape
        self._sources_of = [np.flatnonzero(each) for each in reads]  # by reader
        self._last_source = [int(each[-1]) if each.size else -1 for each in self._sources_of]
        self._slack = slack if slack is not None and slack.any() else None
        self._first = first
        self.version = np.zeros(num_sources, dtype=np.int64)
        self._version_list = [0] * num_sources  # the same as a list, which is faster to index
        self._awaited = [0] * num_readers  # the epoch that each waits for; 0: does not wait
        self._waiting: list[list[int]] = [[] for _ in range(num_sources)]  # readers, by the source they lack

    def wait(self, reader: int, epoch: int) -> bool:
        """Return True if a reader may go on with an epoch at once; else :meth:`advance` returns it later."""
        source = self._lacking(reader, epoch)
        if source is None:
            self._awaited[reader] = 0
            return True
        self._awaited[reader] = epoch
        self._waiting[source].append(reader)
        return False

    def advance(self, source: int, version: int) -> list[tuple[int, int]]:
        """Set the version of a source; returns the readers that may go on now, each with its epoch."""
        if version <= self._version_list[source]:
            return []
        self.version[source] = self._version_list[source] = version
        readers, self._waiting[source] = self._waiting[source], []
        awaited = [(reader, self._awaited[reader]) for reader in readers]
        return [(reader, epoch) for reader, epoch in awaited if epoch and self.wait(reader, epoch)]

    def _lacking(self, reader: int, epoch: int) -> int | None:
        """Return the last of a reader's sources that are too old; None if all are new enough."""
        sources, last = self._sources_of[reader], self._last_source[reader]
        if last < 0:
            return None
        needed: int | np.ndarray = max(self._first, epoch)
        if self._slack is not None:
            needed = np.maximum(self._first, epoch - self._slack[sources])
        elif self._version_list[last] < needed:  # the common case: the other sources need no look
            return last
        lacking = (self.version.take(sources) < needed).nonzero()[0]
        return int(sources[lacking[-1]]) if lacking.size else None
