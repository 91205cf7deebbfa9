"""Pieces of an HTML page. Every text goes through :func:`text`; values of type :class:`Html` are escaped already."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
_HERE = Path(__file__).parent


class Html(str):
    """Markup whose parts are escaped."""

    __slots__ = ()


def text(value: Any) -> Html:
    """Escape a text; markup is returned as it is."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def element(tag: str, *children: Any, **attributes: str) -> Html:
    """Make an element with its children; ``class_`` stands for class, ``_`` in names for ``-``."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items()
    )
    return Html(f"<{tag}{given}>{''.join(text(child) for child in children)}</{tag}>")


def join(parts: Iterable[Html]) -> Html:
    """Join pieces in order."""
    return Html("\n".join(parts))


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]], *, numbers: bool = False) -> Html:
    """Make a table that scrolls sideways if it is too wide; a table of ``numbers`` takes the whole width."""
    body = join(_row(row) for row in rows)
    top = (
        element("thead", element("tr", *(element("th", cell, scope="col") for cell in head)))
        if head
        else Html()
    )
    kind = "numbers" if numbers else "pairs"
    return element("div", element("table", top, element("tbody", body), class_=kind), class_="scroll")


def section(heading: str, *parts: Html) -> Html:
    """Put parts under a heading."""
    return element("section", element("h2", heading), *parts)


def figure(identifier: str, content: dict[str, Any], caption: str, note: str = "") -> Html:
    """Make a place for a figure, with the description from which the page's script draws it."""
    style = f"height:{content['layout']['height']}px"
    style += f";min-width:{content['min_width']}px" if "min_width" in content else ""
    place = element("div", id=identifier, class_="plot", role="img", aria_label=caption, style=style)
    data = Html(f'<script type="application/json" data-for="{escape(identifier)}">{_embed(content)}</script>')
    explained = element("figcaption", element("b", caption), " ", element("span", note))
    kind = {"class_": "wide"} if content.get("wide") else {}
    return element("figure", explained, element("div", place, class_="scroll"), data, **kind)


def page(title: str, body: Html) -> str:
    """Return the whole file, with style and scripts inside."""
    from plotly.offline import get_plotlyjs

    head = join(
        [
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            element("title", title),
            element("style", Html(_own("page.css"))),
        ]
    )
    scripts = element("script", Html(get_plotlyjs())) + "\n" + element("script", Html(_own("page.js")))
    top = Html(f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>')
    return f"{top}\n<body>\n{body}\n{scripts}\n</body>\n</html>\n"


def _row(cells: Sequence[Any]) -> Html:
    return element("tr", element("th", cells[0], scope="row"), *(element("td", cell) for cell in cells[1:]))


def _embed(content: dict[str, Any]) -> str:
    """Serialize JSON that cannot end its script element, whatever the strings are."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _own(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
