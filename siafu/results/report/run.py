"""Show one run, as a page or as a part of one: headline, curves, classes, time and memory, settings, machine."""

from itertools import pairwise
from typing import Any

import numpy as np

from siafu.results.format import fmt_bytes, fmt_dollars, fmt_metric, fmt_score, fmt_seconds, fmt_value
from siafu.results.read import Summary, summaries
from siafu.results.record import ConfusionMatrix, RunRecord, flatten
from siafu.results.report import classes, curves, frame
from siafu.results.report.members import members, members_of
from siafu.results.report.over_time import over_time
from siafu.results.report.page import Html, element, figure, join, section, table
from siafu.results.report.pipeline import pipeline
from siafu.results.report.positives import positives
from siafu.results.report.race import race
from siafu.results.report.stages import stages

_STOPPED = {
    "done": "all epochs were trained",
    "patience": "the validation score had stopped improving (train.patience)",
    "callback": "a callback stopped it; siafu.resume continues it",
    "SIGTERM": "it was told to end (SIGTERM); “siafu resume” continues it",
    "SIGINT": "it was interrupted (Ctrl-C); “siafu resume” continues it",
}

_MOST_BYTES = 2**80  # more is no count of bytes


def run_page(record: RunRecord) -> Html:
    """Show one run, from its headline to its machine."""
    summary = summaries([record])[0]
    name = element("p", record.name, class_="kicker")
    return join([name, element("h1", title(summary)), run_body(record, summary, "run")])


def run_body(record: RunRecord, summary: Summary, key: str) -> Html:
    """Show everything but the name; ``key`` makes the ids of its figures unique among several runs."""
    settings = [[name, fmt_value(value, name)] for name, value in flatten(record.config).items()]
    start = record.last("start")
    facts = element("div", _facts("Graph", start.get("graph")), _facts("Machine", machine(record)))
    tables = element("div", section("Configuration", table([], settings)), facts, class_="grid tables")
    parts = [
        members(record) or _training(record, key),
        race(record),
        stages(record, key),
        over_time(record, key),
        _classes(record.result, key),
        positives(record, key),
        _cost(record, key),
    ]
    parts.append(pipeline(record, key))
    return join([damage_of(record), _tiles(record, summary), _notes(record), *parts, tables])


def damage_of(record: RunRecord) -> Html:
    """List the damaged parts, if there are any."""
    if not record.damage:
        return Html()
    head = element("b", "This run is damaged. The page shows the parts of it that are as the run wrote them.")
    lines = element("ul", *(element("li", f"{text}.") for text in record.damage))
    return element("div", head, lines, class_="damage", role="alert")


def title(summary: Summary) -> str:
    """Name the model and the graph."""
    return summary.model.upper() + (f" on {summary.data}" if summary.data else "")


def machine(record: RunRecord) -> dict[str, Any]:
    """Return the machine and the versions of the run."""
    start = record.last("start")
    found = [part for part in (start.get("machine"), start.get("versions")) if isinstance(part, dict)]
    return {str(key): value for part in found for key, value in flatten(part).items()}


def _tiles(record: RunRecord, summary: Summary) -> Html:
    metric, best = summary.metric, summary.best_epoch
    tiles = [(f"test {fmt_metric(metric)}", fmt_score(summary.test_score, metric))]
    if summary.baseline_score is not None:
        model = str(record.metrics["baseline"].get("model", "model")).upper()
        tiles.append((f"{model}, without the graph", fmt_score(summary.baseline_score, metric)))
    without = record.metrics.get("unsmoothed_test_score")
    if isinstance(without, float):
        tiles.append(("test, without correct-and-smooth", fmt_score(without, metric)))
    epochs, count = str(summary.epochs), len(members_of(record))
    trained = ("epochs", epochs) if best is None else ("best epoch", f"{best} of {epochs}")
    tiles += [
        (f"validation {fmt_metric(metric)}", fmt_score(summary.val_score, metric)),
        ("members", str(count)) if count else trained,
        ("whole run", fmt_seconds(summary.seconds)),
        ("per epoch", fmt_seconds(summary.epoch_seconds)),
        ("peak memory", fmt_bytes(summary.peak_rss_bytes)),
    ]
    tiles += [("cost", fmt_dollars(summary.dollars))] if summary.dollars is not None else []
    tiles += [("value V", f"{summary.value:.4g}")] if summary.value is not None else []
    return element(
        "dl", *(element("div", element("dt", dt), element("dd", dd)) for dt, dd in tiles), class_="tiles"
    )


def _notes(record: RunRecord) -> Html:
    epoch = int(record.epochs.epoch[-1]) if len(record.epochs) else 0
    reason = _STOPPED.get(record.stopped, record.stopped)
    lines = [
        f"Stopped after epoch {epoch}: {reason}."
        if reason
        else f"At epoch {epoch}: still running, or killed."
    ]
    if count := len(members_of(record)):
        epochs = summaries([record])[0].epochs
        lines = [f"The outputs of {count} members, trained for {epochs} epochs in all, were averaged."]
    resumed = [
        str(event.get("epoch"))
        for before, event in pairwise(record.events)
        if event["phase"] == "resume" and before["phase"] != "race"  # after its race, a run goes on
    ]
    lines += [f"Resumed from epoch {', '.join(resumed)}."] if resumed else []
    lines += [f"Note: {note}." for note in record.notes]
    return element("ul", *(element("li", line) for line in lines), class_="notes")


def _training(record: RunRecord, key: str) -> Html:
    if not len(record.epochs):
        return section("Training", element("p", "No epoch was trained."))
    metric = fmt_metric(record.metric)
    caption = metric[:1].upper() + metric[1:]
    score = figure(f"{key}-score", curves.score_curves(record), caption, "of each split, by epoch")
    loss = figure(f"{key}-loss", curves.loss_curve(record), "Loss", "of the training nodes, by epoch")
    return section("Training", element("div", score, loss, *_money(record, key), class_="grid"))


def _money(record: RunRecord, key: str) -> list[Html]:
    """Show the cost and value of epochs, if they were metered."""
    parts = []
    if np.isfinite(record.epochs.dollars).any():
        note = "of each epoch: servers, functions, requests, bytes"
        parts.append(figure(f"{key}-dollars", curves.dollars_curve(record), "Dollars", note))
    if np.isfinite(record.epochs.value).any():
        note = "of each epoch: faster or cheaper is more"
        parts.append(figure(f"{key}-value", curves.value_curve(record), "Value", note))
    return parts


def _classes(result: ConfusionMatrix | None, key: str) -> Html:
    if result is None:
        return Html()
    note = "per cent of each true class, test nodes"
    confusion = figure(f"{key}-confusion", classes.confusion_map(result), "Confusion", note)
    found = figure(f"{key}-classes", classes.class_bars(result), "Accuracy by class", "of the test nodes")
    return section("Classes", element("div", confusion, found, class_="grid"), _class_table(result))


def _class_table(result: ConfusionMatrix) -> Html:
    confusion, names = result.confusion, result.class_names
    right, predicted, size = np.diag(confusion), confusion.sum(0), confusion.sum(1)
    wrong = confusion - np.diag(right)
    rows = []
    for i, name in enumerate(names):
        mistaken = names[int(wrong[i].argmax())] if wrong[i].any() else "–"
        recall, precision = (_percent(int(right[i]), int(whole[i])) for whole in (size, predicted))
        rows.append([name, fmt_value(int(size[i])), recall, precision, mistaken])
    head = [
        "class",
        "test nodes",
        "found (recall)",
        "right when predicted (precision)",
        "most often taken for",
    ]
    return element("details", element("summary", "Every class in numbers"), table(head, rows, numbers=True))


def _percent(part: int, whole: int) -> str:
    return fmt_score(part / whole if whole else None, "accuracy")


def _cost(record: RunRecord, key: str) -> Html:
    parts = []
    if np.isfinite(record.epochs.seconds).any():
        parts.append(
            figure(f"{key}-time", curves.time_curve(record), "Time", "of each epoch's training step")
        )
    if np.isfinite(record.epochs.rss_bytes).any():
        parts.append(
            figure(f"{key}-memory", curves.memory_curve(record), "Memory", "held by the process (RSS)")
        )
    sent = record.metrics.get("bytes_by_label")
    sent = sent if isinstance(sent, dict) else {}
    sent = {
        label: size
        for label, size in sent.items()
        if isinstance(size, int | float) and 0 < size < _MOST_BYTES
    }
    if sent:
        parts.append(figure(f"{key}-bytes", frame.bytes_bars(sent), "Bytes sent", "by all ranks, by label"))
    return section("Time and memory", element("div", *parts, class_="grid")) if parts else Html()


def _facts(heading: str, facts: Any) -> Html:
    if not isinstance(facts, dict) or not facts:
        return Html()
    flat = flatten(facts).items()
    return section(heading, table([], [[_words(name), fmt_value(value, name)] for name, value in flat]))


def _words(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")
