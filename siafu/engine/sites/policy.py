"""What a message is, by its label, and whether a site lets it out. An unknown label never passes."""

from typing import Literal

from siafu.engine.sites.config import Policy

What = Literal["features", "labels", "embeddings", "structure", "ids", "parameters", "totals", "control"]

# How labels begin, the longer ones first; what all sites send each other has one of these.
_LABELS: tuple[tuple[str, What], ...] = (
    ("halo degrees", "embeddings"),
    ("halo asks", "ids"),
    ("halo features", "features"),
    ("halo scores", "embeddings"),
    ("halo smoothing", "embeddings"),
    ("halo 1", "features"),  # what the first stage of lazy training reads are inputs
    ("halo ", "embeddings"),
    ("halo", "features"),  # end to end: inputs, hidden rows and their gradients alike
    ("evaluate halo", "features"),
    ("fetch", "features"),
    ("sample", "structure"),
    ("labels", "labels"),
    ("gradients", "parameters"),
    ("weights", "parameters"),
    ("checkpoint", "parameters"),
    ("model", "parameters"),
    ("moments", "totals"),
    ("scores", "totals"),
    ("task", "totals"),
    ("events", "totals"),
    ("ids", "ids"),
    ("control", "control"),
    ("report", "control"),
    ("about", "control"),
)


class Refused(ValueError):
    """A site does not send what it was asked for; the text holds no data, so that it may be told to others."""


def what_of(label: str) -> What:
    """What messages of a label carry; raises Refused for a label that is not known."""
    if _is_later_stage(label):
        return "embeddings"
    for begins, what in _LABELS:
        if label.startswith(begins):
            return what
    raise Refused(f"nothing is known of messages that are called {label!r}, so none is sent")


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


def _is_later_stage(label: str) -> bool:
    """Whether these are rows of a stage of lazy training after the first."""
    number = label.removeprefix("halo ")
    return label != number and number.isdigit() and int(number) > 1
