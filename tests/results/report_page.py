"""A report as a browser would see it, and odd values of its files."""

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from siafu.results.read import read_run
from siafu.results.report import write_report

Make = Callable[..., Path]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


class Page(HTMLParser):
    """What a browser would see: tags, the text outside scripts, and the figures."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.figures: dict[str, Any] = {}
        self._inside = ("", "")
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = (tag, dict(attrs).get("data-for") or "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ("", "")

    def handle_data(self, data: str) -> None:
        tag, figure = self._inside
        if figure:
            self.figures[figure] = json.loads(data)
        elif tag not in ("script", "style"):
            self.text += data + " "


def report(*runs: Path) -> Page:
    out = runs[0].parent / "report.html"
    write_report([read_run(run) for run in runs], out)
    return Page(out)
