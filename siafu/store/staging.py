"""Staging folders: a store is written beside its final path, under a lock, and renamed at the end.

The lock ends with its process, so a staging folder without a lock belongs to a killed writer and is removed.
"""

import fcntl
import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

_TOKEN_BYTES = 6


class StagingFolder:
    """A new folder beside ``path``, locked by its writer until :meth:`release`.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        remove_abandoned(path)
        while True:
            self.path = path.parent / f".{path.name}.partial-{secrets.token_hex(_TOKEN_BYTES)}"
            self.path.mkdir()
            with suppress(FileNotFoundError):
                self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                if _lock(self._lock) is not False and self.path.is_dir():
                    return
                os.close(self._lock)  # another writer took it for abandoned and removes it

    def release(self) -> None:
        """Remove the folder, unless it was renamed to its final path, and release the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(path: Path) -> None:
    """Remove staging folders that killed writers of ``path`` left behind; folders in use stay."""
    name = re.compile(re.escape(f".{path.name}.partial-") + f"[0-9a-f]{{{2 * _TOKEN_BYTES}}}")
    for folder in [each for each in path.parent.iterdir() if name.fullmatch(each.name)]:
        with suppress(OSError):  # gone by now, a link, or another user's
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid() and _lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(folder: int) -> bool | None:
    """Lock a folder; return False if another process holds it, None if the file system has no locks."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
