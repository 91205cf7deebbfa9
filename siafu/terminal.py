"""Text that is safe to print: control characters in names from files and other hosts are escaped."""

import unicodedata

_CONTROL_CATEGORIES = frozenset(
    {"Cc", "Cs", "Zl", "Zp"}
)  # controls, lone surrogates, separators of lines and paragraphs
_BIDI_CONTROLS = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)  # of directions


def escape_control_chars(text: str) -> str:
    """Escape control characters as Python writes them; newlines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(_escape(letter) if _is_control(letter) else letter for letter in text)


def _is_control(letter: str) -> bool:
    return letter not in "\n\t" and (
        unicodedata.category(letter) in _CONTROL_CATEGORIES or letter in _BIDI_CONTROLS
    )


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
