"""What a message is, by its label, and whether a site lets it out. An unknown label never passes."""

from typing import Literal

from siafu.launch.sites.config import Policy

What = Literal["features", "labels", "embeddings", "structure", "ids", "parameters", "totals", "control"]

_LABELS: dict[str, What] = {
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
_BY_STAGE = ("halo", "gradients", "weights")  # labels that the number of a stage of lazy training may follow


class Refused(ValueError):
    """A site does not send what it was asked for; the text holds no data, so that it may be told to others."""


def what_of(label: str) -> What:
    """What messages of a label carry; raises Refused for a label that is not known."""
    name, _, stage = label.rpartition(" ")
    if name in _BY_STAGE and stage.isascii() and stage.isdigit():
        later = name == "halo" and int(stage) > 1  # what the first stage reads are inputs
        return "embeddings" if later else _LABELS[name]
    if label not in _LABELS:
        raise Refused(f"nothing is known of messages that are called {label!r}, so none is sent")
    return _LABELS[label]


def check(policy: Policy, label: str) -> What:
    """What a message is, where the policy lets it out; raises Refused where it does not."""
    what = what_of(label)
    allowed = {
        "features": policy.features != "never",
        "embeddings": policy.embeddings != "never",
        "labels": False,
        "structure": policy.structure == "sampled",
    }
    if not allowed.get(what, True):
        wanted = "sampled" if what == "structure" else "boundary"
        advice = "labels never leave" if what == "labels" else f"set policy.{what} to {wanted} to allow it"
        raise Refused(f"the policy lets no {what} out, but {label!r} would send some; {advice}")
    return what
