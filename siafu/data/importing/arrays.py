"""Read NumPy's files a range of rows at a time; nothing in them is ever unpickled."""

import re
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

_T = TypeVar("_T")


@dataclass(frozen=True)
class NpyFile:
    """A ``.npy`` file of numbers.

    Attributes:
        path: where it lies.
        shown: how to name it in messages.
        shape, dtype: of the array.
    """

    path: Path
    shown: Path
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    def read(self, *index: slice | int) -> np.ndarray:
        """Read a part; the file is mapped only meanwhile, so that what was read does not stay in memory."""
        return np.array(_load(self.path, self.shown)[index])


def open_npy(path: Path, *, shown: Path | None = None) -> NpyFile:
    """Open a ``.npy`` file and check that it holds numbers."""
    shown = path if shown is None else shown
    array = _load(path, shown)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{shown} is an array of {array.dtype}; expected numbers")
    return NpyFile(path, shown, array.shape, array.dtype)


def unpack_npz(path: Path, folder: Path) -> dict[str, NpyFile]:
    """Unpack the arrays of numbers of an ``.npz`` file into a folder, in pieces; their CRC is checked."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for place, name in enumerate(_members(path)):
        unpacked = folder / f"{place}.npy"
        _telling(path, partial(_unpack, path, name, unpacked))
        shown = path / name.removesuffix(".npy")
        if _load(unpacked, shown).dtype.kind in "biuf":
            arrays[name.removesuffix(".npy")] = open_npy(unpacked, shown=shown)
    return arrays


def text_in_npz(path: Path, name: str) -> str | None:
    """Read a short text from an ``.npz`` file, None where there is none."""
    with np.load(path, allow_pickle=False) as arrays:
        if name not in arrays.files:
            return None
        value = arrays[name].reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)


def _members(path: Path) -> list[str]:
    def names() -> list[str]:
        with zipfile.ZipFile(path) as archive:
            return [name for name in archive.namelist() if name.endswith(".npy")]

    return _telling(path, names)


def _unpack(path: Path, name: str, unpacked: Path) -> None:
    with zipfile.ZipFile(path) as archive, archive.open(name) as packed, unpacked.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 22)


def _telling(path: Path, read: Callable[[], _T]) -> _T:
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
