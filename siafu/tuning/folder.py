"""The folder of a search: its files, and the locks by which processes share it.

search.json     what all trials share, and the space; with a checksum
journal.jsonl   the study: settings, scores and states of trials
trials.json     the trials, for ``siafu report``; with a checksum, written again after each trial
trial-<n>/      the run of a trial
best            a link to the run of the best trial
"""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siafu.checksums import add_fields_checksum, verify_fields_checksum
from siafu.engines import EVENT_STORE
from siafu.files import lock_file, write_atomically
from siafu.results.search import SEARCH, TRIALS
from siafu.run_folder import numbered_folder, safe_name
from siafu.store_partitions import PARTS

_WAIT_S = 120.0


@dataclass(frozen=True)
class SearchFolder:
    """The files of a search, by name."""

    path: Path

    @property
    def header(self) -> Path:
        """The settings that all trials share, and the space."""
        return self.path / SEARCH

    @property
    def journal(self) -> Path:
        """The journal of the study."""
        return self.path / "journal.jsonl"

    @property
    def best(self) -> Path:
        """The link to the run of the best trial."""
        return self.path / "best"

    def trial(self, number: int) -> Path:
        """Return the folder of a trial's run."""
        return self.path / f"trial-{number}"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock under which trials are started and results are written."""
        refusal = f"{self.path}: locked by another process for {_WAIT_S:.0f} s; end the process that hangs"
        with lock_file(self.path / ".lock", refusal=refusal, wait_s=_WAIT_S):
            yield

    def try_lock(self, number: int) -> ExitStack | None:
        """Take the lock of a trial, which its process holds; None if another process has it."""
        stack = ExitStack()
        try:
            stack.enter_context(lock_file(self.path / f".trial-{number}.lock", refusal="taken"))
        except ValueError:
            return None
        return stack

    def read_header(self) -> dict[str, Any] | None:
        """Read what all trials share; None for a new search."""
        if not self.header.exists():
            return None
        found = verify_fields_checksum(self.header.read_bytes())
        if found is None:
            raise ValueError(f"{self.header}: changed or damaged; start another search with another --out")
        return found

    def write_header(self, fields: dict[str, Any]) -> None:
        """Write what all trials share."""
        write_atomically(self.header, add_fields_checksum(fields))

    def write_trials(self, fields: dict[str, Any]) -> None:
        """Write the trials for reports."""
        write_atomically(self.path / TRIALS, add_fields_checksum(fields))

    @property
    def linked(self) -> Path | None:
        """The run that ``best`` stands for, or None."""
        return self.path / self.best.readlink().name if self.best.is_symlink() else None

    def link_best(self, number: int) -> None:
        """Let the name ``best`` stand for the run of a trial."""
        temporary = self.path / f".best.{secrets.token_hex(8)}"
        temporary.symlink_to(self.trial(number).name)
        temporary.replace(self.best)


def search_folder(out: Path | None, *, name: str) -> SearchFolder:
    """Return the folder of a search: ``out``, which is empty or holds one, or a new folder under ``runs/``."""
    if out is None:
        Path("runs").mkdir(exist_ok=True)
        return SearchFolder(numbered_folder(Path("runs"), safe_name(name)))
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: a file stands there; choose another --out")
    present = (
        sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.exists() else []
    )
    if present and SEARCH not in present:
        holds = "a run" if "config.toml" in present else present[0]
        raise ValueError(f"{out}: holds {holds} and no search; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    return SearchFolder(out)


def shrink(run: Path) -> None:
    """Delete what only a run in progress needs: its checkpoint, and its copies of the graph."""
    for name in ("checkpoint", PARTS, EVENT_STORE):
        shutil.rmtree(run / name, ignore_errors=True)
