"""Write the events of a pipeline's tasks, as a run does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from siafu.event_log import EventLog


def tasks(
    *, ranks: int = 2, epochs: int = 2, intervals: int = 4, workers: int = 3, begin: float = 0.5
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Phase and fields of tasks: on each rank two gathers an interval on a graph thread, and stages on workers."""
    for rank in range(ranks):
        server, free = begin, [begin] * workers
        for epoch in range(1, epochs + 1):
            for name, back in (("gather 1", "stage 1"), ("gather 2", "stage 2 backward")):
                server = max(server, max(free))
                for interval in range(intervals):
                    shared = {"rank": rank, "epoch": epoch, "interval": interval}
                    yield "graph", {**shared, "lane": "graph", "name": name, "start": server, "seconds": 0.01}
                    server += 0.01
                    worker = min(range(workers), key=free.__getitem__)
                    start = max(free[worker], server)
                    free[worker] = start + 0.02 + 0.002 * interval
                    lane = {"lane": f"worker {worker}", "name": back, "start": start}
                    yield "task", {**shared, **lane, "seconds": free[worker] - start}


def add_tasks(folder: Path, **changes: Any) -> int:
    """Append them to the events of a run; returns how many."""
    made = list(tasks(**changes))
    events = EventLog(folder / "events.jsonl")
    for phase, fields in made:
        events.write(phase, **fields)
    events.close()
    return len(made)
