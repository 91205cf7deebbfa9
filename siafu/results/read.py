"""Read the folder of a run: config, events, metrics. Nothing here trains, draws or writes."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from siafu.checksums import FIRST_SEAL, is_seal_valid, read_seal, verify_fields_checksum, verify_text_checksum
from siafu.results.record import ConfusionMatrix, Epochs, Event, RunRecord, flatten

TRACED = frozenset({"task", "graph"})  # phases of which a pipeline writes very many events
_MOST_RANGES = 20  # of damaged lines, each with a sentence of its own
_NOT_MEASURED = frozenset({"seed", "ranks", "at_k"})
_NOT_CHOSEN = frozenset({"seed", "seeds", "run", "out", "directory"})


class Summary(NamedTuple):
    """One run as one row of a table; unknown fields are None."""

    name: str
    data: str
    model: str
    method: str | None
    seed: int | None
    metric: str
    test_score: float | None
    val_score: float | None
    baseline_score: float | None
    best_epoch: int | None
    epochs: int
    seconds: float | None
    epoch_seconds: float | None
    peak_rss_bytes: float | None
    bytes_sent: float | None
    dollars: float | None
    value: float | None
    stopped: str
    damaged: bool


class MeanStd(NamedTuple):
    """Mean and sample standard deviation; the deviation of one value is 0."""

    mean: float
    std: float


def read_run(path: Path | str) -> RunRecord:
    """Read a run's folder; damaged parts are left out and listed in ``damage``.

    A ValueError names a missing file, or an event that siafu cannot have written although its checksum is right.
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path}: no such folder; expected the folder of a run, such as runs/<name>")
    missing = [name for name in ("config.toml", "events.jsonl") if not (path / name).is_file()]
    if missing:
        raise ValueError(f"{path}: no {' and no '.join(missing)}; this is not the folder of a run")
    problems = LogProblems()
    events, traced = _read_events(path / "events.jsonl", problems)
    damage: list[str] = []
    config = _read_config(path / "config.toml", damage)
    metrics = _read_metrics(path / "metrics.json", damage)
    finished = (path / "metrics.json").is_file()
    if not finished:
        problems.notes.append('metrics.json is not there: the run is unfinished; "siafu resume" continues it')
    damage += problems.damage("events.jsonl")
    if finished and not any(event["phase"] == "end" for event in events):
        damage.append("events.jsonl: the end of the run is missing; its last events were cut off or damaged")
    result = next((event for event in reversed(events) if event["phase"] == "result"), None)
    return RunRecord(
        path=path,
        config=config,
        events=tuple(events),
        metrics=metrics,
        epochs=_epochs(events, path / "events.jsonl"),
        result=None if result is None else _result(result, path / "events.jsonl"),
        notes=tuple(problems.notes),
        damage=tuple(damage),
        traced=traced,
    )


def summaries(records: Iterable[RunRecord]) -> list[Summary]:
    """Summarize each run, in the given order."""
    return [_summary(record) for record in records]


def group_by_seed(records: Iterable[RunRecord]) -> list[list[RunRecord]]:
    """Group the runs that differ in their seed alone; groups and members keep the given order."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        flat = {key: value for key, value in flatten(record.config).items() if _chosen(key)}
        named = {key: record.metrics.get(key) for key in ("model", "method", "ranks")}
        key = json.dumps([record.data_name, named, flat], sort_keys=True, default=str)
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def across_seeds(metrics: Sequence[Mapping[str, Any]]) -> dict[str, MeanStd]:
    """Compute mean and standard deviation of each number that all of ``metrics`` have, except seed and ranks."""
    if not metrics:
        return {}
    shared = [
        key for key in metrics[0] if key not in _NOT_MEASURED and all(_is_number(m.get(key)) for m in metrics)
    ]
    return {key: _spread([float(m[key]) for m in metrics]) for key in shared}


def _spread(values: list[float]) -> MeanStd:
    with np.errstate(all="ignore"):  # infinite metrics give an infinite mean, no warning
        return MeanStd(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)


def _chosen(key: str) -> bool:
    return key.rpartition(".")[2] not in _NOT_CHOSEN


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _summary(record: RunRecord) -> Summary:
    metrics, baseline = record.metrics, record.metrics.get("baseline")
    without = baseline.get("test_score") if isinstance(baseline, dict) else None
    number = {key: value for key, value in metrics.items() if _is_number(value)}
    return Summary(
        name=record.name,
        data=record.data_name,
        model=record.model_name,
        method=metrics.get("method"),
        seed=metrics.get("seed", flatten(record.config).get("train.seed", record.config.get("seed"))),
        metric=record.metric,
        test_score=number.get("test_score", number.get("test_accuracy")),
        val_score=number.get("val_score", number.get("val_accuracy")),
        baseline_score=without if _is_number(without) else None,
        best_epoch=record.best_epoch,
        epochs=int(record.epochs.epoch[-1] if len(record.epochs) else number.get("epochs", 0)),
        seconds=number.get("seconds"),
        epoch_seconds=number.get("epoch_seconds", _median(record.epochs.seconds)),
        peak_rss_bytes=number.get("peak_rss_bytes", _largest(record.epochs.rss_bytes)),
        bytes_sent=number.get("bytes_sent"),
        dollars=number.get("dollars"),
        value=_median(record.epochs.value),
        stopped=record.stopped,
        damaged=bool(record.damage),
    )


def _median(column: NDArray[np.float64]) -> float | None:
    return float(np.nanmedian(column)) if np.isfinite(column).any() else None


def _largest(column: NDArray[np.float64]) -> float | None:
    return float(np.nanmax(column)) if np.isfinite(column).any() else None


def _read_config(path: Path, damage: list[str]) -> dict[str, Any]:
    text = verify_text_checksum(path.read_bytes())
    if text is None:
        damage.append("config.toml: changed or damaged since the run began; its settings are left out")
        return {}
    return tomllib.loads(text)


def _read_metrics(path: Path, damage: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    metrics = verify_fields_checksum(path.read_bytes())
    if metrics is None:
        damage.append(
            "metrics.json: changed or damaged since it was written; its numbers are left out; delete it and "
            '"siafu resume" writes it again'
        )
    return metrics or {}


class LogProblems:
    """The lines of an event log that cannot be read.

    Attributes:
        notes: one note for each line that a kill cut off, which is no damage.
        damaged: the first and last line number, from 1, of each range of damaged lines.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.damaged: list[tuple[int, int]] = []

    def add_damaged(self, number: int) -> None:
        """Add a damaged line; it comes after all lines added so far."""
        first = number
        if self.damaged and self.damaged[-1][1] == number - 1:
            first, _ = self.damaged.pop()
        self.damaged.append((first, number))

    def damage(self, name: str) -> list[str]:
        """Describe each range of damaged lines of the file ``name``, or the first ranges of very many."""
        texts = [
            f"{name}, {_lines(first, last)}: changed, damaged or out of place; left out here"
            for first, last in self.damaged[:_MOST_RANGES]
        ]
        more = len(self.damaged) - len(texts)
        return [*texts, f"{name}: {more} more places are damaged"] if more else texts


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def stream_events(path: Path, problems: LogProblems) -> Iterator[Event]:
    """Yield each event whose checksum is right; all other lines are added to ``problems``."""
    before = FIRST_SEAL
    with path.open("rb") as file:
        number, line = 1, file.readline()
        while line:
            ahead = file.readline()
            content = line.removesuffix(b"\n")
            event = _parse(content) if is_seal_valid(content, before) else None
            before = read_seal(content) or before
            if event is not None:
                yield event
            elif content.strip() and not (line == content or _begins_anew(ahead, before)):
                problems.add_damaged(number)
            elif content.strip():
                _add_torn(problems, path, number, content)
            number, line = number + 1, ahead


def _add_torn(problems: LogProblems, path: Path, number: int, content: bytes) -> None:
    """Add the last line of a writer: cut off by a kill, or damaged if only its newline is missing."""
    if read_seal(content) is None:
        problems.notes.append(
            f"{path.name}, line {number}: cut off by a kill while writing; its event is left out"
        )
    else:
        problems.add_damaged(number)


def _read_events(path: Path, problems: LogProblems) -> tuple[list[Event], int]:
    """Read all events except the tasks of a pipeline, which may not fit into memory; also returns their number."""
    events: list[Event] = []
    traced = 0
    for event in stream_events(path, problems):
        if event["phase"] in TRACED:
            traced += 1
        else:
            events.append(event)
    return events, traced


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    good = isinstance(event, dict) and isinstance(event.get("phase"), str) and _is_number(event.get("time"))
    return event if good else None


def _begins_anew(line: bytes, before: str) -> bool:
    """Return whether this line is the first of a process that resumed the run, after a half-written line."""
    content = line.removesuffix(b"\n")
    event = _parse(content) if is_seal_valid(content, before) else None
    return event is not None and event["phase"] in ("start", "resume")


def _epochs(events: Iterable[Event], path: Path) -> Epochs:
    """Make columns of the epochs; epochs after a checkpoint are dropped where the run resumed from it."""
    rows: dict[int, Event] = {}
    for event in events:
        if event["phase"] == "resume" and isinstance(event.get("epoch"), int):
            rows = {epoch: row for epoch, row in rows.items() if epoch <= event["epoch"]}
        if event["phase"] == "epoch" and event.get("rank", 0) == 0:
            if not isinstance(event.get("epoch"), int):
                raise ValueError(
                    f"{path}: an epoch event has epoch = {event.get('epoch')!r}; expected a whole number"
                )
            rows[event["epoch"]] = event
    order = sorted(rows)
    names = [name for name in Epochs.__annotations__ if name != "epoch"]
    columns = {
        name: np.array([_number(rows[epoch], name, path) for epoch in order], np.float64) for name in names
    }
    return Epochs(epoch=np.array(order, np.int64), **columns)


def _number(event: Event, name: str, path: Path) -> float:
    value = event.get(name)
    if value is None:
        return float("nan")
    if not _is_number(value):
        raise ValueError(f"{path}: epoch {event['epoch']} has {name} = {value!r}; expected a number")
    return float(value)


def _result(event: Event, path: Path) -> ConfusionMatrix | None:
    if event.get("confusion") is None:
        return None
    try:
        confusion = np.array(event["confusion"], dtype=np.int64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{path}: the result's confusion matrix is not a table of whole numbers: {error}"
        ) from error
    if confusion.ndim != 2 or confusion.shape[0] != confusion.shape[1]:
        raise ValueError(f"{path}: the result's confusion matrix is {confusion.shape}; expected a square")
    if (confusion < 0).any():
        raise ValueError(
            f"{path}: the result's confusion matrix has counts below zero; expected counts of nodes"
        )
    names = tuple(str(name) for name in event.get("class_names") or range(len(confusion)))
    if len(names) != len(confusion):
        raise ValueError(f"{path}: the result has {len(names)} class names for {len(confusion)} classes")
    return ConfusionMatrix(confusion, names)
