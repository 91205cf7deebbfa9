"""The settings as ``help(siafu.train)`` lists them: read from ``settings.md``, the page of the documentation.

``siafu/settings.md`` is a link to ``docs/settings.md``, so that their meanings are written once.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).with_name("settings.md")
_WIDTH = 100  # columns
_TABLE = re.compile(r"^## `\[(\w+)\]`$")
_ROW = re.compile(r"^\| (`[\w`, ]+`) \| (.*?) \| (.*) \|$")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Setting(NamedTuple):
    """A setting, or several that are explained together.

    Attributes:
        table: its table; empty for settings without one.
        keys: their keys.
        default: the default, as text.
        meaning: the meaning, as plain text.
    """

    table: str
    keys: tuple[str, ...]
    default: str
    meaning: str


def read_settings() -> Iterator[Setting]:
    """Read all settings, in the order of the page."""
    table = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if found := _TABLE.match(line):
            table = found[1]
        elif found := _ROW.match(line):
            yield Setting(table, tuple(re.findall(r"\w+", found[1])), _plain(found[2]), _plain(found[3]))


def settings_help() -> str:
    """Format all settings as a section of a docstring."""
    lines, table = ["Settings, their defaults in brackets:"], ""
    for setting in read_settings():
        if setting.table != table:
            table = setting.table
            lines += ["", f"    Table {table}:"]
        default = f" ({setting.default})" if setting.default not in ("", "–") else ""
        text = f"{', '.join(setting.keys)}{default}: {setting.meaning}"
        lines += textwrap.wrap(
            text, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False
        )
    return "\n".join(lines)


def _plain(markdown: str) -> str:
    """Remove the marks of code and links."""
    return _LINK.sub(r"\1", markdown).replace("`", "").strip()
