"""Read the folder of a search (``siafu tune``): its trials, as values. Nothing here trains, draws or writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siafu.checksums import verify_fields_checksum

SEARCH, TRIALS = "search.json", "trials.json"


@dataclass(frozen=True)
class SearchRecord:
    """The trials of a search.

    Attributes:
        path: the folder.
        data, method, metric: the names of the graph, the method and the metric.
        higher_is_better: whether larger scores are better.
        fixed: the settings that the user gave.
        space: of each searched setting its key, its values and the kinds of models it holds for.
        trials: the fields of each trial, by its number; see ``siafu.tuning.Trial``.
        best: the number of the best trial, or None.
        test_score: the test score of the best trial; None until the search has ended.
        importance: the importance of each searched setting; empty with few trials.
        seconds: the time during which trials ran.
    """

    path: Path
    data: str
    method: str
    metric: str
    higher_is_better: bool
    fixed: dict[str, Any]
    space: list[Any]
    trials: list[dict[str, Any]]
    best: int | None
    test_score: float | None
    importance: dict[str, float]
    seconds: float


def is_search(path: Path) -> bool:
    """Return whether a folder is that of a search."""
    return (path / SEARCH).is_file()


def read_search(path: Path) -> SearchRecord:
    """Read the trials of a search; a file that was changed or damaged is refused."""
    file = path / TRIALS
    if not file.is_file():
        raise ValueError(
            f'{path}: no trial of this search has ended; go on with it by "siafu tune … --out {path}"'
        )
    fields = verify_fields_checksum(file.read_bytes())
    if fields is None:
        raise ValueError(f'{file}: changed or damaged; "siafu tune … --out {path}" writes it again')
    return SearchRecord(path=path, **fields)
