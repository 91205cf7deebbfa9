"""Write one HTML file that shows one run, or several side by side. It needs no network and no other file."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import siafu
from siafu.files import write_atomically
from siafu.results.record import RunRecord
from siafu.results.report.comparison import comparison
from siafu.results.report.page import Html, element, page
from siafu.results.report.run import run_page
from siafu.results.report.search import search_page
from siafu.results.search import SearchRecord

__all__ = ["write_report", "write_search_report"]


def write_report(records: Sequence[RunRecord], out: Path) -> None:
    """Write the report of one or more runs to ``out``, which is replaced atomically."""
    if not records:
        raise ValueError("a report needs at least one run; name the folder of one")
    if len(records) == 1:
        title, body = records[0].name, run_page(records[0])
    else:
        title, body = f"{len(records)} runs", comparison(records)
    _write(title, body, out)


def write_search_report(record: SearchRecord, out: Path) -> None:
    """Write the report of a search to ``out``, which is replaced atomically."""
    _write(record.path.resolve().name, search_page(record), out)


def _write(title: str, body: Html, out: Path) -> None:
    if out.is_dir():
        raise ValueError(f"{out}: is a folder; expected the name of an HTML file to write")
    if not out.parent.is_dir():
        raise ValueError(f"{out}: there is no folder {out.parent}; make it first, or name another file")
    content = page(f"siafu report: {title}", element("main", body, _footer()))
    write_atomically(out, content.encode())


def _footer() -> Html:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return element("footer", f"Written by siafu {siafu.__version__}, {made}")
