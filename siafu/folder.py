"""A run's folder: where it lies, who writes it, what its files are called."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """The files of a run, by name."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings."""
        return self.path / "config.toml"

    @property
    def events(self) -> Path:
        """Everything that happened, a line each."""
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """What ``--json`` prints."""
        return self.path / "metrics.json"

    @property
    def checkpoint(self) -> Path:
        """The newest exact state."""
        return self.path / "checkpoint" / "latest.safetensors"

    @property
    def weights(self) -> Path:
        """The trained model."""
        return self.path / "model.safetensors"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against other writers; the lock ends with the process, however it ends."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"{self.path}: another process is writing this run; wait for it or choose another --out"
                ) from None
            yield


def new_folder(out: Path | None, *, name: str) -> RunFolder:
    """Make the folder of a new run: ``out``, which must not hold anything, or a fresh one under ``runs/``."""
    if out is None:
        return RunFolder(_fresh(Path("runs"), re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"))
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: a file stands there; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    present = sorted(path.name for path in out.iterdir() if path.name != ".lock")
    if "config.toml" in present:
        raise ValueError(
            f'{out}: already holds a run; continue it with "siafu resume {out}" or choose another --out'
        )
    if present:
        raise ValueError(f"{out}: not empty (it holds {present[0]}); choose another --out")
    return RunFolder(out)


def existing_folder(path: Path) -> RunFolder:
    """The folder of a run that was started."""
    if not path.is_dir():
        raise ValueError(f'{path}: no such folder; give the folder of a run, such as those under "runs"')
    if not (path / "config.toml").is_file():
        raise ValueError(f"{path}: not a run: it has no config.toml")
    return RunFolder(path)


def _fresh(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        try:
            os.mkdir(path)  # noqa: PTH102 - fails where it exists, so two runs never share a folder
        except FileExistsError:
            number += 1
        else:
            return path
