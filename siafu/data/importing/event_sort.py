"""Sort events by time step on disk, in bounded memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from siafu.data.importing.edges import EdgeBatch
from siafu.data.importing.external_sort import FLOAT, INT, TIME, DiskBuffer, KeyBuckets, Kind, Rows, by_key
from siafu.dynamic.steps import MOST_DISTINCT, Steps, cut_time, steps_of_distinct
from siafu.event_log import Progress
from siafu.store.manifest import DType
from siafu.store.writer import ArrayFolderWriter

_STORED: dict[str, tuple[str, DType]] = {
    "src": ("src", "int32"),
    "dst": ("dst", "int32"),
    "weight": ("weight", "float32"),
    "label": ("edge_y", "int64"),
}


class EventBuffer(DiskBuffer):
    """Events on disk, in the order of the input.

    Attributes:
        first, last: the earliest and the latest time.
        num_late: how many events come after one of a later time.
        distinct: the distinct times, sorted; None if there are too many to be steps.
    """

    what = "event"

    def __init__(self, folder: Path, *, weighted: bool, labelled: bool) -> None:
        more: dict[str, Kind] = {"weight": FLOAT} if weighted else {}
        more |= {"label": INT} if labelled else {}
        super().__init__(folder, {"src": INT, "dst": INT, "t": TIME, **more})
        self.first: float | None = None
        self.last: float = 0
        self.num_late = 0
        self.distinct: np.ndarray | None = np.empty(0)

    def cut(self, *, step: float | None, steps: int | None, name: str) -> Steps:
        """Cut the times into steps, after all events are written."""
        assert self.first is not None
        if step is not None or steps is not None:
            return cut_time(self.first, self.last, step=step, steps=steps, name=name)
        if self.distinct is None:
            raise ValueError(
                f"{name}: more than {MOST_DISTINCT} distinct times, from {self.first} to {self.last}; say how time is "
                "cut, by the length of a step (--step) or by the number of steps (--steps)"
            )
        return steps_of_distinct(torch.from_numpy(self.distinct), name=name)

    def number(self, cut: Steps) -> tuple[np.ndarray, bool]:
        """Replace times by steps; return the number of events of each step, and whether they are in order."""
        counts, in_order, last = np.zeros(cut.num_steps, np.int64), True, 0
        path = self.paths["t"].with_suffix(".step")
        with path.open("wb") as file:
            for rows in self.read("t"):
                steps = cut.of(torch.from_numpy(rows["t"])).numpy()
                counts += np.bincount(steps, minlength=cut.num_steps)
                in_order = in_order and bool(steps[0] >= last and (np.diff(steps) >= 0).all())
                last = int(steps[-1])
                file.write(steps.astype(INT).data)
        self.paths.pop("t").unlink()
        del self.fields["t"]
        self.paths["step"], self.fields["step"] = path, INT
        return counts, in_order

    def _rows(self, src: np.ndarray, dst: np.ndarray, batch: EdgeBatch) -> Rows:
        assert batch.time is not None
        label = {} if batch.label is None else {"label": batch.label}
        return super()._rows(src, dst, batch) | {"t": batch.time} | label

    def _append(self, rows: Rows) -> None:
        times = rows["t"]
        if times.size:
            self.fields["t"] = times.dtype.newbyteorder("<")
            self._watch(times)
        super()._append(rows)

    def _watch(self, times: np.ndarray) -> None:
        latest = np.maximum.accumulate(times)
        if self.first is not None:
            np.maximum(latest, self.last, out=latest)
        self.num_late += int((times < latest).sum())
        earliest = times.min().item()
        self.first = earliest if self.first is None else min(self.first, earliest)
        self.last = latest[-1].item()
        if self.distinct is not None:
            several = np.unique(times)
            self.distinct = np.union1d(self.distinct.astype(times.dtype), several)
            self.distinct = None if self.distinct.size > MOST_DISTINCT else self.distinct


def write_log(spool: EventBuffer, cut: Steps, store: ArrayFolderWriter, progress: Progress) -> np.ndarray:
    """Write ``src``, ``dst``, ``step_ptr`` and the other event arrays; return the number of events of each step."""
    counts, in_order = spool.number(cut)
    store.add("step_ptr", np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
    store.add("step_time", cut.begin)
    arrays = {name: store.array(*_STORED[name]) for name in spool.fields if name != "step"}
    for rows in spool.read() if in_order else _by_step(spool, counts, store.scratch, progress):
        for name, array in arrays.items():
            array.append(rows[name].astype(np.int64) if name == "label" else rows[name])
    return counts


def _by_step(spool: EventBuffer, counts: np.ndarray, folder: Path, progress: Progress) -> Iterator[Rows]:
    """Yield the events in the order of steps, stably."""
    ranges = KeyBuckets(np.cumsum(counts))
    ranges.distribute(spool.read(), "step", folder, progress)
    spool.remove()
    for first, last, rows in ranges.read(spool.fields, progress):
        order, _ = by_key(rows["step"] - np.int32(first), last - first)
        yield {name: values[order] for name, values in rows.items()}
