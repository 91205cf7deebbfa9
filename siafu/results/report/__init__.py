"""Write one HTML file that shows one run, or several side by side. It needs no network and no other file."""

import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import siafu
from siafu.results.record import RunRecord
from siafu.results.report.comparison import comparison
from siafu.results.report.page import Html, element, page
from siafu.results.report.run import run_page

__all__ = ["write_report"]


def write_report(records: Sequence[RunRecord], out: Path) -> None:
    """Write the report of one or more runs to ``out``, which is replaced at once or not at all."""
    if not records:
        raise ValueError("a report needs at least one run; name the folder of one")
    if out.is_dir():
        raise ValueError(f"{out}: is a folder; expected the name of an HTML file to write")
    if len(records) == 1:
        title, body = records[0].name, run_page(records[0])
    else:
        title, body = f"{len(records)} runs", comparison(records)
    _write(out, page(f"siafu report: {title}", element("main", body, _footer())))


def _write(out: Path, content: str) -> None:
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        Path(name).chmod(0o644)  # mkstemp lets nobody else read it
        Path(name).replace(out)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _footer() -> Html:
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return element("footer", f"Written by siafu {siafu.__version__}, {made}")
