"""The race of a run: the validation score of each candidate at the end of each round."""

from typing import Any

from siafu.results.format import fmt_metric, fmt_score, fmt_seconds
from siafu.results.record import RunRecord
from siafu.results.report.page import Html, element, section, table


def race(record: RunRecord) -> Html:
    """Show the candidates of the race, if the run had one, and which of them was trained to the end."""
    event = record.last("race")
    names, rounds, chosen = event.get("names"), event.get("rounds"), event.get("chosen")
    if not isinstance(names, list) or not isinstance(rounds, list) or not isinstance(chosen, int):
        return Html()
    head = ["recipe", *(f"after {each.get('epoch')} epochs" for each in rounds)]
    rows = [
        [
            f"{name} (chosen)" if place == chosen else str(name),
            *(_score(each, place, record.metric) for each in rounds),
        ]
        for place, name in enumerate(names)
    ]
    seconds = event.get("seconds")
    took = f", in {fmt_seconds(seconds)}" if isinstance(seconds, int | float) else ""
    by = f"their best {fmt_metric(record.metric)} on the validation nodes"
    note = element("p", f"{len(names)} recipes were compared by {by}{took}.")
    return section("Race of recipes", table(head, rows, numbers=True), note)


def _score(of_round: dict[str, Any], place: int, metric: str) -> str:
    """Format the score of a candidate in a round; empty if it had left."""
    places, scores = of_round.get("places", []), of_round.get("scores", [])
    if place not in places:
        return ""
    score = scores[places.index(place)]
    return "diverged" if score is None else fmt_score(score, metric)
