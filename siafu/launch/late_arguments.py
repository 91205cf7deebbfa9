"""Arguments for rank processes that were started before the arguments were known, in memory of the launcher.

A rank imports its modules while the launcher still loads the graph. The memory has no name in any folder and ends with
the launcher, so that one that is killed leaves nothing. Ranks open it below ``/proc``, which lets only its user.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ARGUMENTS = "SIAFU_RANK_ARGUMENTS"
_POLL_S = 0.01
_END = b"\n"


class LateArguments:
    """The memory in which a launcher hands arguments to its ranks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        """The path by which ranks open it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def send(self, arguments: Sequence[str]) -> None:
        """Hand all ranks their arguments, once."""
        text = json.dumps(arguments).encode() + _END
        while text:
            text = text[os.write(self._descriptor, text) :]


@contextmanager
def late_arguments() -> Iterator[LateArguments]:
    """Make the memory for the ranks of one launch."""
    descriptor = os.memfd_create("siafu-arguments")
    try:
        yield LateArguments(descriptor)
    finally:
        os.close(descriptor)


def wait_for_arguments(environ: Mapping[str, str]) -> list[str]:
    """Wait for this rank's arguments. The wait ends with the launcher at the latest, which kills its ranks."""
    path = Path(environ[ARGUMENTS])
    while not (text := path.read_bytes()).endswith(_END):
        time.sleep(_POLL_S)
    return list[str](json.loads(text))
