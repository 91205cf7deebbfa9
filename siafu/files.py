"""Create, append, replace and lock files in folders that other users may write to.

An attacker may have planted a symbolic link under any name in such a folder. So links are never followed, existing
files are never opened for writing under a guessable name, and nothing is truncated. Only the standard library is used:
the package of a serverless worker contains this file.
"""

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_SAFE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO would block for ever


def open_append(path: Path, *, mode: int = 0o666, buffering: int = -1) -> BinaryIO:
    """Open a file for appending; create it with ``mode`` if it does not exist."""
    descriptor = _open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    return os.fdopen(descriptor, "ab", buffering)


def read_private(path: Path, *, max_bytes: int) -> bytes:
    """Read at most ``max_bytes`` of a file that only its owner can read or change; raises ValueError.

    The owner is the user of this process or the superuser. Links are followed, since secrets are often mounted as
    links.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ValueError(f"{path}: not a file")
            if found.st_mode & 0o077 or found.st_uid not in (os.geteuid(), 0):
                raise ValueError(
                    f"{path}: belongs to user {found.st_uid} with mode {found.st_mode & 0o777:04o}; expected user "
                    f"{os.geteuid()} with mode 0600, so that nobody else reads or changes it: chmod 600 {path}, and "
                    "replace what is in it if others could read it"
                )
            return file.read(max_bytes)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


@contextmanager
def lock_file(path: Path, *, refusal: str, wait_s: float = 0) -> Iterator[None]:
    """Hold an exclusive lock on ``path``, readable by its owner only; the lock ends with the process.

    Raises ValueError with the text ``refusal`` if another process holds the lock, also after ``wait_s`` seconds.
    """
    with os.fdopen(_open_regular(path, os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
        until = time.monotonic() + wait_s
        while not _try_lock(file):
            if time.monotonic() >= until:
                raise ValueError(refusal)
            time.sleep(0.005)
        yield


def _try_lock(file: BinaryIO) -> bool:
    """Lock an open file unless another process holds its lock; returns whether it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def make_folder(path: Path) -> None:
    """Create a folder if there is none; refuse a symbolic link."""
    path.mkdir(exist_ok=True)
    if path.is_symlink():
        raise ValueError(f"{path}: is a symbolic link; expected a folder or none; delete it")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see all of it or nothing, and sync it before the name appears."""
    with atomic_writer(path) as file:
        file.write(data)


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file that replaces ``path`` when the context ends, or is deleted if it ends with an error.

    Temporary names are random. The next writer of ``path`` deletes a temporary file that a killed writer left behind.
    """
    _delete_leftovers(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with os.fdopen(_create(temporary), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)  # before the lock on it ends
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)  # a failed write does not say where
            error.filename2 = None
        raise


def _create(temporary: Path) -> int:
    """Create a file under a new name, with a lock that shows that its writer is alive."""
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o666)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _delete_leftovers(path: Path) -> None:
    """Delete the temporary files of killed writers of ``path``: no lock is held on those."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")
    try:
        left = [name for name in os.listdir(path.parent) if pattern.fullmatch(name)]  # noqa: PTH208 (names alone)
    except PermissionError:  # a folder that may be written, but not listed
        return
    for name in left:
        with suppress(OSError, ValueError):
            descriptor = _open_regular(path.with_name(name), os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.with_name(name).unlink()
            finally:
                os.close(descriptor)


def _open_regular(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file; refuse links, FIFOs and devices."""
    try:
        descriptor = os.open(path, flags | _SAFE_FLAGS, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        found = "a symbolic link" if error.errno == errno.ELOOP else "no regular file"
        raise ValueError(_refusal(path, found)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(_refusal(path, "no regular file"))
    return descriptor


def _refusal(path: Path, found: str) -> str:
    return f"{path}: is {found}; expected a regular file or none; delete it, or choose another folder"
