"""Text for a terminal. Names from files and from other hosts may hold characters that a terminal obeys."""

import unicodedata

_OBEYED = frozenset({"Cc", "Cs", "Zl", "Zp"})  # controls, lone surrogates, separators of lines and paragraphs
_TURNING = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)  # of directions


def escape_control_chars(text: str) -> str:
    """A text with control characters written out as Python writes them; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(_escape(letter) if _is_obeyed(letter) else letter for letter in text)


def _is_obeyed(letter: str) -> bool:
    return letter not in "\n\t" and (unicodedata.category(letter) in _OBEYED or letter in _TURNING)


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
