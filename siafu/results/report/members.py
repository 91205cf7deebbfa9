"""The members of an ensemble: the score, the best epoch and the folder of each."""

from typing import Any

from siafu.results.format import fmt_metric, fmt_score, fmt_value
from siafu.results.record import RunRecord
from siafu.results.report.page import Html, element, section, table

_FIGURES = ("run", "seed", "epochs", "best_epoch", "val_score", "test_score")


def members(record: RunRecord) -> Html:
    """Show the members, if the run is an ensemble that has ended, and the scores of their average."""
    found = members_of(record)
    if not found:
        return Html()
    metric = fmt_metric(record.metric)
    head = ["member", "seed", "epochs", "best epoch", f"validation {metric}", f"test {metric}"]
    rows = [[each["run"], *_numbers(each), *_scores(each, record.metric)] for each in found]
    rows.append(["the average of their outputs", "", "", "", *_scores(record.metrics, record.metric)])
    note = element(
        "p", "Each member is a run of its own, with its own curves: “siafu report” shows its folder."
    )
    return section("Members", table(head, rows, numbers=True), note)


def members_of(record: RunRecord) -> list[dict[str, Any]]:
    """Return the figures of each member; none for a run that is no ensemble."""
    found = record.metrics.get("members")
    found = found if isinstance(found, list) else []
    return [each for each in found if isinstance(each, dict) and each.keys() >= set(_FIGURES)]


def _numbers(figures: dict[str, Any]) -> list[str]:
    return [fmt_value(figures[key], key) for key in ("seed", "epochs", "best_epoch")]


def _scores(figures: dict[str, Any], metric: str) -> list[str]:
    scores = (figures.get(f"{split}_score") for split in ("val", "test"))
    return [fmt_score(score if isinstance(score, int | float) else None, metric) for score in scores]
