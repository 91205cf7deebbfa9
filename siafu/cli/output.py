"""Output of commands: results on standard output, messages on standard error."""

import json
import sys
from typing import Annotated, Any

import typer

from siafu.terminal import escape_control_chars

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
]


def print_result(result: dict[str, Any], as_json: bool, text: str) -> None:
    """Print the result of a command: the object with ``--json``, else the text."""
    print(to_json(result) if as_json else escape_control_chars(text))


def say(text: str) -> None:
    """Print a message on standard error."""
    print(escape_control_chars(text), file=sys.stderr)


def to_json(result: dict[str, Any]) -> str:
    """Serialize a result; NaN and infinity are errors, as JSON has neither."""
    return json.dumps(result, allow_nan=False)


def aligned(fields: dict[str, Any]) -> list[str]:
    """Format fields as lines, with the values below each other."""
    return [f"{key:14} {format_value(value)}" for key, value in fields.items()]


def table(rows: list[dict[str, str]]) -> list[str]:
    """Format rows as a table; the first and the last column are aligned left, those between right."""
    cells = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *between, last in cells:
        middle = [text.rjust(width) for text, width in zip(between, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *middle, last]))
    return lines


def format_value(value: Any) -> str:
    """Format a value for a person to read."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{key} ({of})" for key, of in value.items())
    return str(value)
