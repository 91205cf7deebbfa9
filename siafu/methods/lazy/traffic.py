"""Which bytes are rows and which are parameters, by the labels under which they were sent."""

from collections.abc import Mapping

MESSAGES, PARAMETERS = "halo", ("gradients", "weights")  # how labels of the two begin


def message_bytes(sent: Mapping[str, int]) -> int:
    """Bytes of rows."""
    return sum(count for label, count in sent.items() if label.startswith(MESSAGES))


def parameter_bytes(sent: Mapping[str, int]) -> int:
    """Bytes of gradients and weights."""
    return sum(count for label, count in sent.items() if label.startswith(PARAMETERS))
