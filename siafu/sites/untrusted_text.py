"""What another party said, as it may be shown: in one line, of bounded length, without what a terminal obeys."""

_MOST_LETTERS = 300


def printable(text: str) -> str:
    """Some words of others, for a log or a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MOST_LETTERS])
