"""Read NumPy files a range of rows at a time; nothing in them is ever unpickled."""

import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from siafu.data.importing.limits import Limits

_T = TypeVar("_T")
_TEXT_BYTES = 1 << 12


@dataclass(frozen=True)
class NpyFile:
    """A ``.npy`` file of numbers.

    Attributes:
        path: of the file.
        shown: its name in messages.
        shape, dtype: of the array.
    """

    path: Path
    shown: Path
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    def read(self, *index: slice | int) -> np.ndarray:
        """Read a part of the array; the file is mapped only meanwhile, so that its pages do not stay in memory."""
        return np.array(_load(self.path, self.shown)[index])


def open_npy(path: Path, *, shown: Path | None = None) -> NpyFile:
    """Open a ``.npy`` file and check that it holds numbers."""
    shown = path if shown is None else shown
    array = _load(path, shown)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{shown} is an array of {array.dtype}; expected numbers")
    return NpyFile(path, shown, array.shape, array.dtype)


def unpack_npz(path: Path, folder: Path, names: Collection[str], limits: Limits) -> dict[str, NpyFile]:
    """Unpack those of the named numeric arrays that an ``.npz`` file has into a folder; CRCs are checked.

    No other member is unpacked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    members = {name: size for name, size in names_in_npz(path).items() if name in names}
    limits.check_unpacked(f"{path} ({', '.join(members)})", sum(members.values()), path.stat().st_size)
    arrays = {}
    for place, name in enumerate(members):
        unpacked, shown = folder / f"{place}.npy", path / name
        _naming_file(path, partial(_unpack, path, f"{name}.npy", unpacked))
        if _load(unpacked, shown).dtype.kind in "biuf":
            arrays[name] = open_npy(unpacked, shown=shown)
    return arrays


def text_in_npz(path: Path, name: str) -> str | None:
    """Read a short text from an ``.npz`` file; None if it is missing or long."""
    if names_in_npz(path).get(name, _TEXT_BYTES) >= _TEXT_BYTES:
        return None
    with np.load(path, allow_pickle=False) as arrays:
        value = arrays[name].reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)


def names_in_npz(path: Path) -> dict[str, int]:
    """List the arrays of an ``.npz`` file with their unpacked sizes, without unpacking."""

    def read() -> dict[str, int]:
        with zipfile.ZipFile(path) as archive:
            there = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            return {entry.filename.removesuffix(".npy"): entry.file_size for entry in there}

    return _naming_file(path, read)


def _unpack(path: Path, name: str, unpacked: Path) -> None:
    with zipfile.ZipFile(path) as archive, archive.open(name) as packed, unpacked.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 22)


def _naming_file(path: Path, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path} is not an .npz file, or is damaged: {error}") from None


def _load(path: Path, shown: Path) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, SyntaxError) as error:
        message = (
            "it holds Python objects, which are never read"
            if re.search("pickle|Python objects", str(error))
            else str(error)
        )
        raise ValueError(f"{shown} is not a .npy file of numbers, or is cut off: {message}") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{shown} is an .npz file; expected a .npy file")
    return array
