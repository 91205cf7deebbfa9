"""Helpers for text archives: numbered lines, pairs to edges, and errors that name file and line."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def one_file(folder: Path, ending: str) -> Path:
    """Find the only file of an unpacked archive with this ending; hidden files don't count."""
    found = [p for p in sorted(folder.rglob(f"*{ending}")) if p.is_file() and not p.name.startswith(".")]
    if len(found) != 1:
        raise ValueError(f"the archive holds {len(found)} files that end in {ending}; expected one")
    return found[0]


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, with their numbers from 1."""
    with path.open(encoding="utf-8", newline=None) as file:
        try:
            for number, line in enumerate(file, 1):
                if line := line.rstrip("\n"):
                    yield number, line
        except UnicodeDecodeError as error:
            raise ValueError(f"{path.name}: not UTF-8 text ({error}); download it again") from None


def wrong(path: Path, number: int, expected: str) -> ValueError:
    """Return the error of a line that is not as expected."""
    return ValueError(
        f"{path.name}: line {number} is not {expected}; the file is damaged or of another layout"
    )


def both_directions(pairs: Iterable[tuple[int, int]]) -> NDArray[np.int32]:
    """Make (2, E) of pairs: each in both directions, once, without loops, by source and then target."""
    one = np.array(list(pairs), dtype=np.int64).reshape(-1, 2)
    both = np.concatenate([one, one[:, ::-1]])
    return np.unique(both[both[:, 0] != both[:, 1]], axis=0).T.astype(np.int32)
