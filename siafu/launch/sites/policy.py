"""The kind of data in a message, by its label, and whether a site's policy lets it out. Unknown labels never pass."""

from typing import Literal

from siafu.launch.sites.config import SitePolicy

DataKind = Literal["features", "labels", "embeddings", "structure", "ids", "parameters", "totals", "control"]

_LABELS: dict[str, DataKind] = {
    "halo": "features",  # end to end: inputs, hidden rows and their gradients alike
    "evaluate halo": "features",
    "fetch": "features",
    "halo features": "features",
    "halo degrees": "embeddings",
    "halo scores": "embeddings",
    "halo smoothing": "embeddings",
    "halo asks": "ids",
    "ids": "ids",
    "sample": "structure",
    "labels": "labels",
    "gradients": "parameters",
    "gradients ridge": "parameters",
    "weights": "parameters",
    "checkpoint": "parameters",
    "model": "parameters",
    "moments": "totals",
    "scores": "totals",
    "scores confident": "totals",
    "scores degrees": "totals",
    "task": "totals",
    "events": "totals",
    "control": "control",
    "report": "control",
    "about": "control",
}
_BY_STAGE = ("halo", "gradients", "weights")  # labels that a stage number of lazy training may follow


class EgressRefused(ValueError):
    """A message that must not leave the site; the text holds no data, so that others may read it."""


def kind_of_label(label: str) -> DataKind:
    """Return the kind of data that messages of a label hold; raises EgressRefused for an unknown label."""
    name, _, stage = label.rpartition(" ")
    if name in _BY_STAGE and stage.isascii() and stage.isdigit():
        later = name == "halo" and int(stage) > 1  # the first stage reads inputs
        return "embeddings" if later else _LABELS[name]
    if label not in _LABELS:
        raise EgressRefused(f"messages labelled {label!r} are unknown, so none is sent")
    return _LABELS[label]


def check_label(policy: SitePolicy, label: str) -> DataKind:
    """Return the kind of data in a message that may leave; raises EgressRefused if the policy forbids it."""
    kind = kind_of_label(label)
    allowed = {
        "features": policy.features != "never",
        "embeddings": policy.embeddings != "never",
        "labels": False,
        "structure": policy.structure == "sampled",
    }
    if not allowed.get(kind, True):
        wanted = "sampled" if kind == "structure" else "boundary"
        advice = "labels never leave" if kind == "labels" else f"set policy.{kind} to {wanted} to allow it"
        raise EgressRefused(f"the policy lets no {kind} out, but {label!r} would send some; {advice}")
    return kind
