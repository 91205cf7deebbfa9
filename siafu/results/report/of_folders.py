"""Write the report of runs or of a search that are given by their folders: ``siafu.report`` and ``siafu report``."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from siafu.results.read import read_run
from siafu.results.report import write_report, write_search_report
from siafu.results.search import is_search, read_search


class HasDirectory(Protocol):
    """A value that knows its folder, such as a ``siafu.Run`` or the result of ``siafu.tune``."""

    @property
    def directory(self) -> Path:
        """The folder."""


class Reported(NamedTuple):
    """The contents of a report.

    Attributes:
        runs: the folders of its runs; of a run with several seeds, one for each seed.
        search: the folder of the search, or None.
        damaged: sentences about damaged files, by the folder of the run.
    """

    runs: tuple[Path, ...]
    search: Path | None
    damaged: dict[str, list[str]]


def report(*runs: HasDirectory | Path | str, out: Path | str = "report.html") -> Path:
    """Write a self-contained HTML page about one run, several side by side, or one search.

    Args:
        runs: runs, results of ``siafu.tune``, or their folders.
        out: the HTML file to write, which is replaced.

    Returns the path of the file.
    """
    write_report_of([_folder(run) for run in runs], Path(out))
    return Path(out)


def write_report_of(folders: Sequence[Path], out: Path) -> Reported:
    """Write the report of runs, or of a search, by their folders."""
    if search := next(filter(is_search, folders), None):
        if len(folders) > 1:
            raise ValueError(f"{search}: a search, which has a report of its own; give it alone")
        write_search_report(read_search(search), out)
        return Reported((), search, {})
    runs = [each for path in folders for each in sorted(path.glob("seed-[0-9]*"), key=_seed_number) or [path]]
    records = [read_run(path) for path in runs]
    write_report(records, out)
    damaged = {str(record.path): list(record.damage) for record in records if record.damage}
    return Reported(tuple(runs), None, damaged)


def _folder(run: HasDirectory | Path | str) -> Path:
    if isinstance(run, str | Path):
        return Path(run)
    folder = getattr(run, "directory", None)
    if not isinstance(folder, Path):
        raise ValueError(f"run is a {type(run).__name__}; expected a run, a search, or the folder of one")
    return folder


def _seed_number(path: Path) -> int:
    """Return the number at the end of a folder's name."""
    return int(path.name.rpartition("-")[2])
