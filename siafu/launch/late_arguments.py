"""Arguments for rank processes that were started before the arguments were known, in a private file for each rank.

A rank imports its modules while the launcher still loads the graph. It deletes its file, so that a launcher that is
killed later leaves none.
"""

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from siafu.files import write_atomically

ARGUMENTS = "SIAFU_RANK_ARGUMENTS"
_POLL_S = 0.01


def arguments_file(folder: Path, rank: int) -> Path:
    """Return the path of a rank's file."""
    return folder / f"arguments-{rank}.json"


def send_arguments(folder: Path, arguments: Sequence[str], *, ranks: int) -> None:
    """Write the file of each rank. The folder must have a name that nobody can guess."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for rank in range(ranks):
        write_atomically(arguments_file(folder, rank), json.dumps(arguments).encode())


def wait_for_arguments(environ: Mapping[str, str]) -> list[str]:
    """Wait for this rank's arguments. The wait ends with the launcher at the latest, which kills its ranks."""
    path = Path(environ[ARGUMENTS])
    while not path.exists():
        time.sleep(_POLL_S)
    arguments = list[str](json.loads(path.read_text("utf-8")))
    path.unlink()
    with suppress(OSError):  # other ranks have not read theirs
        path.parent.rmdir()
    return arguments
