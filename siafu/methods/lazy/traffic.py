"""Split byte counts into those of rows and those of parameters, by their labels."""

from collections.abc import Mapping

MESSAGES, PARAMETERS = "halo", ("gradients", "weights")  # prefixes of their labels


def message_bytes(sent: Mapping[str, int]) -> int:
    """Sum the bytes of rows."""
    return sum(count for label, count in sent.items() if label.startswith(MESSAGES))


def parameter_bytes(sent: Mapping[str, int]) -> int:
    """Sum the bytes of gradients and weights."""
    return sum(count for label, count in sent.items() if label.startswith(PARAMETERS))
