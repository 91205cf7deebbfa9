"""Compare several runs: a table, their curves in one figure, their different settings, and then each run."""

from collections.abc import Sequence

import numpy as np

from siafu.results.format import fmt_bytes, fmt_dollars, fmt_metric, fmt_score, fmt_seconds, fmt_value
from siafu.results.read import Summary, across_seeds, group_by_seed, summaries
from siafu.results.record import RunRecord, flatten
from siafu.results.report import curves
from siafu.results.report.page import Html, element, figure, join, section, table
from siafu.results.report.run import machine, run_body, title

_HEAD = [
    "run",
    "data",
    "model",
    "method",
    "seed",
    "test",
    "without graph",
    "validation",
    "best epoch",
    "epochs",
]
_HEAD += ["whole run", "per epoch", "peak memory", "bytes sent", "cost", "value V", "stopped"]


def comparison(records: Sequence[RunRecord]) -> Html:
    """Show runs side by side; those that differ only in their seed are one group."""
    groups = group_by_seed(records)
    names = [_group_name(group) for group in groups]
    details = [_detail(record, f"run{index}") for index, record in enumerate(records)]
    return join(
        [
            element("p", "comparison", class_="kicker"),
            element("h1", _heading(summaries(records))),
            section("Results", _seed_table(groups, names), _run_table(records)),
            _overlays(groups, names),
            _settings(records),
            section("Each run", *details),
        ]
    )


def _heading(runs: Sequence[Summary]) -> str:
    models = list(dict.fromkeys(run.model.upper() for run in runs))
    graphs = list(dict.fromkeys(run.data for run in runs if run.data))
    return f"{len(runs)} runs of {', '.join(models)}" + (f" on {', '.join(graphs)}" if graphs else "")


def _group_name(group: Sequence[RunRecord]) -> str:
    """Name the model of several seeds, and the folder that they share, else the first and the last of them."""
    if len(group) == 1:
        return group[0].name
    folders = {record.path.resolve().parent for record in group}
    together = len(folders) == 1 and all(record.is_one_of_several for record in group)
    where = folders.pop().name if together else f"{group[0].name} … {group[-1].name}"
    return f"{group[0].model_name.upper()}, {where} ({len(group)} seeds)"


def _seed_table(groups: Sequence[Sequence[RunRecord]], names: Sequence[str]) -> Html:
    rows = []
    for name, group in zip(names, groups, strict=True):
        finished = [record.metrics for record in group if record.metrics]
        if len(finished) < 2:
            continue
        spread, metric = across_seeds(finished), group[0].metric
        scores = [spread.get(key) for key in ("test_score", "val_score")]
        shown = ["–" if score is None else fmt_score(score.mean, metric, std=score.std) for score in scores]
        seconds = spread.get("epoch_seconds")
        rows.append([name, str(len(finished)), *shown, fmt_seconds(seconds.mean if seconds else None)])
    if not rows:
        return Html()
    metric = fmt_metric(groups[0][0].metric)
    head = [
        "differing only in seed",
        "seeds",
        f"test {metric}, mean ± std",
        f"validation {metric}",
        "per epoch",
    ]
    return table(head, rows, numbers=True)


def _run_table(records: Sequence[RunRecord]) -> Html:
    """Make one row per run, without empty columns and those that the heading gives for all runs."""
    rows = [_run_row(summary) for summary in summaries(records)]
    values = {name: {row[i] for row in rows} for i, name in enumerate(_HEAD)}
    shared = {name for name in ("data", "model", "method") if len(values[name]) == 1}
    keep = [i for i, name in enumerate(_HEAD) if name not in shared and not values[name] <= {"–", ""}]
    return table([_HEAD[i] for i in keep], [[row[i] for i in keep] for row in rows], numbers=True)


def _run_row(run: Summary) -> list[str]:
    scores = [fmt_score(score, run.metric) for score in (run.test_score, run.baseline_score, run.val_score)]
    cells = [run.name, run.data, run.model, fmt_value(run.method), fmt_value(run.seed, "seed"), *scores]
    cells += [
        fmt_value(run.best_epoch),
        str(run.epochs),
        fmt_seconds(run.seconds),
        fmt_seconds(run.epoch_seconds),
    ]
    sent = fmt_bytes(run.bytes_sent) if run.bytes_sent else "–"
    cells += [fmt_bytes(run.peak_rss_bytes), sent, fmt_dollars(run.dollars)]
    stopped = (run.stopped or "unfinished") + (", damaged" if run.damaged else "")
    return [*cells, "–" if run.value is None else f"{run.value:.4g}", stopped]


def _overlays(groups: Sequence[Sequence[RunRecord]], names: Sequence[str]) -> Html:
    records = [record for group in groups for record in group]
    wanted = [("val_score", "Validation"), ("test_score", "Test"), ("loss", "Loss")]
    parts = [
        figure(f"all-{field}", curves.overlay(groups, field, names), caption, "by epoch")
        for field, caption in wanted
        if any(np.isfinite(getattr(record.epochs, field)).any() for record in records)
    ]
    sent = curves.bytes_and_scores(groups, names)
    parts += [] if sent is None else [figure("all-bytes", sent, "Bytes against accuracy", "of all ranks")]
    return section("Curves", element("div", *parts, class_="grid")) if parts else Html()


def _settings(records: Sequence[RunRecord]) -> Html:
    """Put settings and machines side by side: first those that differ, then those that are equal."""
    columns = [flatten({**record.config, "machine": machine(record)}) for record in records]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [[key, *(fmt_value(column.get(key), key) for column in columns)] for key in keys]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    shared = [row[:2] for row in rows if len(set(row[1:])) == 1]
    head = ["setting", *(record.name for record in records)]
    differ = table(head, differing) if differing else element("p", "The runs have the same settings.")
    rest = element("details", element("summary", "What they share"), table([], shared))
    return section("Configuration and machine", differ, rest)


def _detail(record: RunRecord, key: str) -> Html:
    summary = summaries([record])[0]
    score = fmt_score(summary.test_score, summary.metric)
    facts = f" {title(summary)}, test {fmt_metric(summary.metric)} {score}"
    head = element("summary", element("b", record.name), facts)
    return element("details", head, run_body(record, summary, key), class_="run")
