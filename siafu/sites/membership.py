"""Membership of a federation: checks that sites, as they describe themselves, can train together."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from siafu.config import Config
from siafu.training.scorer import NEED_ALL_ROWS
from siafu.wire.certificates import WARN_DAYS

MAX_CLOCK_SKEW_S = 300.0


def check_clock_skew(name: str, theirs: float, asked_at: float, answered_at: float) -> None:
    """Refuse a site whose clock is wrong; the validity of certificates depends on it."""
    ahead = theirs - (asked_at + answered_at) / 2
    if abs(ahead) > MAX_CLOCK_SKEW_S + (answered_at - asked_at):
        where = "ahead of" if ahead > 0 else "behind"
        raise ValueError(
            f"the clock of site {name} is {abs(ahead):.0f} s {where} the coordinator's; set both right, "
            "since certificates are valid by the clock"
        )


def check_compatible(descriptions: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse sites that cannot train together; ``names`` are all sites of the federation."""
    for name, about in descriptions.items():
        if about.name != name:
            raise ValueError(f"{about.name} answers where {name} is listed; correct federation.toml")
        if len(about.split) != 3:
            raise ValueError(
                f"site {name} describes its split by {len(about.split)} numbers; expected those of training, "
                "validation and test nodes"
            )
        unknown = sorted(set(about.names) - set(names))
        if unknown:
            raise ValueError(
                f"site {name} has cross edges from {', '.join(unknown)}, which federation.toml lacks; add it there, "
                "or take those edges out"
            )
    _check_same(descriptions, "features", "features", "give all stores features of the same columns")
    _check_same(descriptions, "task", "labels of kind", "give all stores labels of the same kind")
    classes = {name: tuple(about.classes) for name, about in descriptions.items()}
    if len(set(classes.values())) > 1:
        listing = "; ".join(f"{name} has {', '.join(each) or 'no names'}" for name, each in classes.items())
        raise ValueError(
            f"sites name different classes: {listing}; give all stores the same classes in the same order"
        )
    if {about.task for about in descriptions.values()} != {"class"}:
        _check_same(descriptions, "outputs", "outputs", "give all stores labels of the same width")
    if not sum(about.split[0] for about in descriptions.values()):
        raise ValueError("no site has training nodes; give some a split that has")


def check_policies(descriptions: Mapping[str, Any], config: Config) -> None:
    """Refuse a run that a site's policy forbids, before anything is sent; the site enforces its policy in any case."""
    never = [name for name, about in descriptions.items() if about.may_features == "never"]
    if never and (config.method != "lazy" or config.lazy.recipe == "published"):
        what = "lazy.recipe = published" if config.method == "lazy" else f"method {config.method}"
        raise ValueError(
            f"the policy of site {never[0]} lets no features out, but {what} sends those of boundary nodes; use "
            "lazy.recipe = logits or frugal"
        )
    if never and config.lazy.recipe == "frugal" and config.lazy.features:
        raise ValueError(
            f"the policy of site {never[0]} lets no features out, but the run began without it, and sends those of "
            "boundary nodes; let them out there, or begin anew with all sites, and nobody sends any"
        )
    if config.method == "sampled":
        for name, about in descriptions.items():
            if about.may_structure != "sampled":
                raise ValueError(
                    f"method sampled tells sites who neighbours whom, which the policy of site {name} forbids; set "
                    "policy.structure to sampled there, or use method lazy"
                )
    if config.method == "pipeline" or config.lazy.clients != "none":
        raise ValueError(
            "sites train by method lazy, full or sampled, without simulated clients; choose one of these"
        )
    if config.train.metric in NEED_ALL_ROWS:
        raise ValueError(
            f"train.metric is {config.train.metric}, which needs all labels in one place; choose accuracy or an F1"
        )
    if config.train.threshold in ("f1", "balanced_accuracy"):
        raise ValueError(
            f"train.threshold is {config.train.threshold}, which needs all labels in one place; set it to a "
            "probability or to none"
        )


def expiring_certificates(descriptions: Mapping[str, Any]) -> list[str]:
    """Return a warning for each certificate that expires soon."""
    now = time.time()
    soon = {
        name: about.expires for name, about in descriptions.items() if about.expires < now + WARN_DAYS * 86400
    }
    return [
        f"the certificate of site {name} expires on {datetime.fromtimestamp(end, UTC):%Y-%m-%d}; it should make a new "
        'one with "siafu site rotate"'
        for name, end in soon.items()
    ]


def _check_same(descriptions: Mapping[str, Any], field: str, what: str, advice: str) -> None:
    found = {name: getattr(about, field) for name, about in descriptions.items()}
    if len(set(found.values())) > 1:
        listing = ", ".join(f"{name} has {value}" for name, value in found.items())
        raise ValueError(f"sites differ in their {what}: {listing}; {advice}")
