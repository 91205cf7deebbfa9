"""Who may go on: those whose sources are new enough. It knows no clock, no array but its own counts."""

import numpy as np


class Gate:
    """Readers wait here for rows of an epoch, each from the sources that it reads.

    A source's rows have a version, the epoch they are of. A reader that waits for epoch e may go on once every source
    that it reads has a version of at least e, less the source's slack, but no earlier than ``first``.

    A reader watches one source that it lacks, the last one: it is looked at again only when that one advances, so that
    most advances cost next to nothing however many readers there are.
    """

    def __init__(self, reads: np.ndarray, *, slack: np.ndarray | None = None, first: int = 1) -> None:
        """``reads`` is (readers, sources) bool, ``slack`` (sources,) int, ``first`` the first epoch of any rows."""
        num_readers, num_sources = reads.shape
        self._reads = [np.flatnonzero(each) for each in reads]  # sources, by reader
        self._last = [int(each[-1]) if each.size else -1 for each in self._reads]
        self._slack = slack if slack is not None and slack.any() else None
        self._first = first
        self.version = np.zeros(num_sources, dtype=np.int64)
        self._versions = [0] * num_sources  # the same: one of them is read in less time
        self._wanted = [0] * num_readers  # the epoch that each waits for; 0: does not wait
        self._watchers: list[list[int]] = [[] for _ in range(num_sources)]

    def wait(self, reader: int, epoch: int) -> bool:
        """Whether a reader may go on with an epoch at once; else :meth:`advance` says when."""
        source = self._lacking(reader, epoch)
        if source is None:
            self._wanted[reader] = 0
            return True
        self._wanted[reader] = epoch
        self._watchers[source].append(reader)
        return False

    def advance(self, source: int, version: int) -> list[tuple[int, int]]:
        """A source has rows of a version; returns those who may go on now, and with which epoch."""
        if version <= self._versions[source]:
            return []
        self.version[source] = self._versions[source] = version
        watchers, self._watchers[source] = self._watchers[source], []
        wanted = [(reader, self._wanted[reader]) for reader in watchers]
        return [(reader, epoch) for reader, epoch in wanted if epoch and self.wait(reader, epoch)]

    def _lacking(self, reader: int, epoch: int) -> int | None:
        """The last of a reader's sources that are too old."""
        sources, last = self._reads[reader], self._last[reader]
        if last < 0:
            return None
        needed: int | np.ndarray = max(self._first, epoch)
        if self._slack is not None:
            needed = np.maximum(self._first, epoch - self._slack[sources])
        elif self._versions[last] < needed:  # as for most that come to wait: none of the others is looked at
            return last
        lacking = (self.version.take(sources) < needed).nonzero()[0]
        return int(sources[lacking[-1]]) if lacking.size else None
