"""Text from other parties, made safe for logs and terminals: one line, bounded length, no control characters."""

_MAX_LENGTH = 300


def printable(text: str) -> str:
    """Replace control characters and cut the text to its maximum length."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_LENGTH])
