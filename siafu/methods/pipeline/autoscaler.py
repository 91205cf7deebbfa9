"""Chooses the number of leases of each rank from one scored epoch to the next, if leases are paid by their time."""

from siafu.workers.autoscaling import (
    EpochCost,
    HillClimb,
    HillClimbConfig,
    QueueStats,
    begin_climb,
    follow_queue,
)


class Autoscaler:
    """Maximises the value of a run over its leases, then follows the queue up to the number that was best.

    Attributes:
        leases: of each rank, from now on.
        announcement: the reason for that number, if it was just settled; else empty.
    """

    def __init__(self, intervals: int, *, max_leases: int) -> None:
        self._climb: HillClimb = begin_climb(HillClimbConfig(max_leases=max_leases), intervals)
        self.leases, self.announcement = self._climb.leases, ""

    def after(self, seconds: float, dollars: float, stats: QueueStats) -> None:
        """Update the number of leases after an epoch of so many seconds and dollars."""
        before = self._climb
        self._climb = before.after(EpochCost(self.leases, seconds, dollars))
        self.announcement = self._climb.reason if self._climb.settled and not before.settled else ""
        self.leases = self._climb.leases
        if self._climb.settled and before.settled:
            self.leases = follow_queue(stats, self._climb.leases)
