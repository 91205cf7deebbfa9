"""The place of rows in a user's file, for messages; and the format of a file, by its name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Format = Literal["parquet", "csv", "npy", "npz", "ogb"]
_SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".npy": "npy",
    ".npz": "npz",
}


@dataclass(frozen=True)
class FileLocation:
    """The place of some rows in a file.

    Attributes:
        file: as the user gave it.
        unit: the word for a row there: ``line`` in text, ``row`` elsewhere.
        first: the number of the first row.
    """

    file: Path
    unit: str = "row"
    first: int = 0

    def at(self, row: int) -> str:
        """Format the place of a row, counted from the first."""
        return f"{self.file}: {self.unit} {self.first + row}"


def format_of(path: Path, field: str) -> Format:
    """Return the format of an existing file or folder; ``field`` is the option that named it."""
    if not path.exists():
        raise FileNotFoundError(f"{field}: {path} does not exist")
    if path.is_dir():
        return _format_of_folder(path, field)
    name = path.name.lower()
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix):
            if path.stat().st_size == 0:
                raise ValueError(f"{field}: {path} is empty (0 bytes)")
            return kind
    known = ", ".join(_SUFFIXES)
    raise ValueError(f"{field}: {path} has an unknown suffix; expected one of {known}, or a folder")


def parquet_files(path: Path) -> list[Path]:
    """List the Parquet files of a folder by name; for a file, list the file itself."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix.lower() in (".parquet", ".pq"))


def _format_of_folder(path: Path, field: str) -> Format:
    if (path / "raw").is_dir():
        return "ogb"
    if parquet_files(path):
        return "parquet"
    raise ValueError(
        f"{field}: the folder {path} holds no .parquet file and no raw/ folder; expected Parquet files or "
        "the layout of an OGB node-property data set"
    )
