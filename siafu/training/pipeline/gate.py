"""Who may go on: those whose sources are new enough. It knows no clock, no array but its own counts."""

import numpy as np


class Gate:
    """Readers wait here for rows of an epoch, each from the sources that it reads.

    A source's rows have a version, the epoch they are of. A reader that waits for epoch e may go on once every source
    that it reads has a version of at least e, less the source's slack, but no earlier than ``first``.
    """

    def __init__(self, reads: np.ndarray, *, slack: np.ndarray | None = None, first: int = 1) -> None:
        """``reads`` is (readers, sources) bool, ``slack`` (sources,) int, ``first`` the first epoch of any rows."""
        num_readers, num_sources = reads.shape
        self._read_by = np.ascontiguousarray(reads.T)
        self._reads = reads
        self._slack = np.zeros(num_sources, dtype=np.int64) if slack is None else slack
        self._first = first
        self.version = np.zeros(num_sources, dtype=np.int64)
        self._wanted = np.zeros(num_readers, dtype=np.int64)
        self._lacking = np.zeros(num_readers, dtype=np.int64)  # sources that are too old; 0: does not wait

    def wait(self, reader: int, epoch: int) -> bool:
        """Whether a reader may go on with an epoch at once; else :meth:`advance` says when."""
        needed = np.maximum(self._first, epoch - self._slack)
        lacking = int(np.count_nonzero(self._reads[reader] & (self.version < needed)))
        self._wanted[reader], self._lacking[reader] = epoch, lacking
        return lacking == 0

    def advance(self, source: int, version: int) -> list[tuple[int, int]]:
        """A source has rows of a version; returns those who may go on now, and with which epoch."""
        before = self.version[source]
        if version <= before:
            return []
        self.version[source] = version
        needed = np.maximum(self._first, self._wanted - self._slack[source])
        freed = self._read_by[source] & (self._lacking > 0) & (before < needed) & (needed <= version)
        self._lacking[freed] -= 1
        passed = np.flatnonzero(freed & (self._lacking == 0))
        return [(int(reader), int(self._wanted[reader])) for reader in passed]
