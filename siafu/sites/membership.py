"""Who is there: sites as they describe themselves, and whether they fit together."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from siafu.config import Config
from siafu.wire.certificates import WARN_DAYS

SKEW_S = 300.0  # by which clocks may disagree


def check_clock(name: str, theirs: float, asked_at: float, answered_at: float) -> None:
    """Refuse a site whose clock is wrong: certificates are valid by it."""
    ahead = theirs - (asked_at + answered_at) / 2
    if abs(ahead) > SKEW_S + (answered_at - asked_at):
        where = "ahead of" if ahead > 0 else "behind"
        raise ValueError(
            f"the clock of site {name} is {abs(ahead):.0f} s {where} the coordinator's; set both right, "
            "since certificates are valid by the clock"
        )


def check_together(abouts: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse sites that cannot train together; ``names`` are all that the federation has."""
    for name, about in abouts.items():
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
    _same(abouts, "features", "features", "give all stores features of the same columns")
    _same(abouts, "task", "labels of kind", "give all stores labels of the same kind")
    classes = {name: tuple(about.classes) for name, about in abouts.items()}
    if len(set(classes.values())) > 1:
        told = "; ".join(f"{name} has {', '.join(each) or 'no names'}" for name, each in classes.items())
        raise ValueError(
            f"sites name different classes: {told}; give all stores the same classes in the same order"
        )
    if {about.task for about in abouts.values()} != {"class"}:
        _same(abouts, "outputs", "outputs", "give all stores labels of the same width")
    if not sum(about.split[0] for about in abouts.values()):
        raise ValueError("no site has training nodes; give some a split that has")


def check_policies(abouts: Mapping[str, Any], tree: Config) -> None:
    """Refuse a run that a site's policy would end, before anything is sent; the site itself enforces it anyway."""
    never = [name for name, about in abouts.items() if about.may_features == "never"]
    if never and (tree.method != "lazy" or tree.lazy.recipe == "published"):
        what = "lazy.recipe = published" if tree.method == "lazy" else f"method {tree.method}"
        raise ValueError(
            f"the policy of site {never[0]} lets no features out, but {what} sends those of boundary nodes; use "
            "lazy.recipe = logits or frugal"
        )
    if never and tree.lazy.recipe == "frugal" and tree.lazy.features:
        raise ValueError(
            f"the policy of site {never[0]} lets no features out, but the run began without it, and sends those of "
            "boundary nodes; let them out there, or begin anew with all sites, and nobody sends any"
        )
    if tree.method == "sampled":
        for name, about in abouts.items():
            if about.may_structure != "sampled":
                raise ValueError(
                    f"method sampled tells sites who neighbours whom, which the policy of site {name} forbids; set "
                    "policy.structure to sampled there, or use method lazy"
                )
    if tree.method == "pipeline" or tree.lazy.clients != "none":
        raise ValueError(
            "sites train by method lazy, full or sampled, without simulated clients; choose one of these"
        )
    if tree.train.metric == "roc_auc":
        raise ValueError(
            "train.metric is roc_auc, which needs all labels in one place; choose accuracy or an F1"
        )


def expiring(abouts: Mapping[str, Any]) -> list[str]:
    """Which certificates end soon."""
    now = time.time()
    soon = {name: about.expires for name, about in abouts.items() if about.expires < now + WARN_DAYS * 86400}
    return [
        f"the certificate of site {name} expires on {datetime.fromtimestamp(end, UTC):%Y-%m-%d}; it should make a new "
        'one with "siafu site rotate"'
        for name, end in soon.items()
    ]


def _same(abouts: Mapping[str, Any], field: str, what: str, advice: str) -> None:
    found = {name: getattr(about, field) for name, about in abouts.items()}
    if len(set(found.values())) > 1:
        told = ", ".join(f"{name} has {value}" for name, value in found.items())
        raise ValueError(f"sites differ in their {what}: {told}; {advice}")
