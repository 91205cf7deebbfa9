"""How many leases each rank has from one scored epoch to the next, where they are paid by their time."""

from siafu.workers.autoscaling import Climb, Epoch, Rules, Seen, begin_climb, follow_queue


class Tuned:
    """Climbs the value of a run over its leases, and then follows the queue up to the number that was found best.

    Attributes:
        leases: of each rank, from now on.
        news: why that number, where it was just settled; else empty.
    """

    def __init__(self, intervals: int, *, most: int) -> None:
        self._climb: Climb = begin_climb(Rules(most=most), intervals)
        self.leases, self.news = self._climb.leases, ""

    def after(self, seconds: float, dollars: float, seen: Seen) -> None:
        """An epoch took so long and cost so much."""
        before = self._climb
        self._climb = before.after(Epoch(self.leases, seconds, dollars))
        self.news = self._climb.reason if self._climb.settled and not before.settled else ""
        self.leases = self._climb.leases
        if self._climb.settled and before.settled:
            self.leases = follow_queue(seen, self._climb.leases)
