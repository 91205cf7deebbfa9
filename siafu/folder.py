"""A run's folder: where it lies, who writes it, what its files are called, and whether they are still as written."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siafu.files import locked, write_atomically
from siafu.seals import checksum, open_fields, open_text, seal_fields, seal_text


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
    def trace(self) -> Path:
        """The tasks of a pipeline, for Perfetto."""
        return self.path / "trace.json"

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

    @property
    def measured(self) -> Path:
        """What the rank processes of this run have measured, until the command has read it."""
        return self.path / ".measured.json"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.metrics.is_file() and (self.weights.is_file() or self.seed(0).is_dir())

    def seed(self, place: int) -> Path:
        """The folder of one of several seeds."""
        return self.path / f"seed-{place}"

    def write_config(self, text: str) -> None:
        """Write the settings with a last line that holds their checksum."""
        write_atomically(self.config, seal_text(text))

    def read_config(self) -> str:
        """The settings, exactly as they were written."""
        text = open_text(self.config.read_bytes())
        if text is None:
            raise ValueError(
                f"{self.config}: changed or damaged since the run began; put it back as it was, or train anew "
                "(--config takes such a file)"
            )
        return text

    def config_checksum(self) -> str:
        """The checksum of the settings, which the run's checkpoint carries."""
        return checksum(self.read_config())

    def write_metrics(self, found: dict[str, Any]) -> None:
        """Write the metrics with their checksum."""
        write_atomically(self.metrics, seal_fields(found))

    def read_metrics(self) -> dict[str, Any]:
        """The metrics, exactly as they were written."""
        found = open_fields(self.metrics.read_bytes())
        if found is None:
            raise ValueError(
                f'{self.metrics}: changed or damaged; delete it and "siafu resume {self.path}" writes it again'
            )
        return found

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against other writers; the lock ends with the process, however it ends."""
        refusal = f"{self.path}: another process is writing this run; wait for it or choose another --out"
        with locked(self.path / ".lock", refusal=refusal):
            yield


@contextmanager
def new_folder(out: Path | None, *, name: str) -> Iterator[RunFolder]:
    """Hold the folder of a new run: ``out``, which must not hold anything, or a fresh one under ``runs/``.

    A run that fails before its settings are written leaves no folder behind.
    """
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{out}: a file stands there; choose another --out")
    made = out is None or not out.exists()
    folder = RunFolder(_fresh(Path("runs"), _plain(name)) if out is None else out)
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        _check_empty(folder.path)  # under the lock: another run may have come and gone since
        try:
            yield folder
        finally:
            if made and not folder.config.exists():
                shutil.rmtree(folder.path, ignore_errors=True)


def _check_empty(path: Path) -> None:
    present = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if "config.toml" in present:
        raise ValueError(
            f'{path}: already holds a run; continue it with "siafu resume {path}" or choose another --out'
        )
    if present:
        raise ValueError(f"{path}: not empty (it holds {present[0]}); choose another --out")


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


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
