"""Download files and unpack archives without trusting them: sizes, paths and kinds of members are checked."""

import errno
import gzip
import hashlib
import shutil
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from siafu.event_log import Progress, no_progress

TIMEOUT_S = 30.0  # without a byte
_CHUNK = 1 << 20


def fetch(url: str, path: Path, *, limit_bytes: int, progress: Progress = no_progress) -> None:
    """Download a file over http(s); any failure raises a ConnectionError that names the address."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"{url}: expected an address that begins with http:// or https://")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, path.open("wb") as file:
            length = answer.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
            done = _copy(answer, file, url, limit_bytes=limit_bytes, total=total, progress=progress)
    except urllib.error.HTTPError as error:
        error.close()
        raise ConnectionError(f"{url}: the server answered {error.code} {error.reason}") from None
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        raise ConnectionError(f"{url}: {getattr(error, 'reason', None) or error}") from error
    if total is not None and done != total:
        raise ConnectionError(f"{url}: ended after {done} of {total} bytes")


def _copy(
    source: IO[bytes], out: IO[bytes], url: str, *, limit_bytes: int, total: int | None, progress: Progress
) -> int:
    if total is not None and total > limit_bytes:
        raise ValueError(f"{url}: has {total} bytes; expected at most {limit_bytes}: not what it should be")
    done = 0
    while chunk := source.read(_CHUNK):
        done += len(chunk)
        if done > limit_bytes:
            raise ValueError(f"{url}: has more than {limit_bytes} bytes; it is not what it should be")
        out.write(chunk)
        progress(f"download {PurePosixPath(urlsplit(url).path).name}", done, total)
    return done


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(archive: Path, folder: Path, *, limit_bytes: int) -> None:
    """Unpack a .zip or a .tar.gz into a folder.

    Links, devices, names that lead out of the folder, and more than ``limit_bytes`` in all are refused.
    """
    try:
        members = _zip_members(archive) if zipfile.is_zipfile(archive) else _tar_members(archive)
        for name, size, content in members:
            limit_bytes -= size
            if limit_bytes < 0:
                raise ValueError(f"{name} makes it larger than it should be")
            _write(folder, name, content)
    except (ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{archive.name}: cannot be unpacked: {error}; download it again") from error
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # these two are of a damaged archive, not of the disk
            raise
        raise ValueError(f"{archive.name}: cannot be unpacked: {error}; download it again") from error


def _write(folder: Path, name: str, content: IO[bytes]) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0].startswith("/") or ".." in parts or ":" in parts[0] or "\0" in name:
        raise ValueError(f"{name!r} leads out of its folder")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("wb") as file:
        shutil.copyfileobj(content, file)


def _zip_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and content of each file; no more is read of a member than its size says."""
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            kind = stat.S_IFMT(entry.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ValueError(f"{entry.filename} is neither a file nor a folder")
            if not entry.is_dir():
                yield entry.filename, entry.file_size, opened.open(entry)


def _tar_members(archive: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Yield name, size and content of each file; the archive is read to its end, where the checksum is."""
    with gzip.open(archive) as packed:
        with tarfile.open(fileobj=packed, mode="r|") as opened:
            for entry in opened:
                if entry.isdir():
                    continue
                content = opened.extractfile(entry) if entry.isreg() else None
                if content is None:
                    raise ValueError(f"{entry.name} is neither a file nor a folder")
                yield entry.name, entry.size, content
        if len(packed.read(_CHUNK)) == _CHUNK:
            raise ValueError("more follows after its end")
