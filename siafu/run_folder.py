"""The folder of a run: the names of its files, their checksums, and the lock that its only writer holds."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siafu.checksums import (
    add_fields_checksum,
    add_text_checksum,
    checksum,
    verify_fields_checksum,
    verify_text_checksum,
)
from siafu.files import lock_file, write_atomically

_EPOCH = b'"phase":"epoch"'


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
        """The event log: one JSON object per line."""
        return self.path / "events.jsonl"

    @property
    def trace(self) -> Path:
        """The trace of the tasks of a pipeline, for Perfetto."""
        return self.path / "trace.json"

    @property
    def metrics(self) -> Path:
        """The metrics: the object that ``--json`` prints."""
        return self.path / "metrics.json"

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint."""
        return self.path / "checkpoint" / "latest.safetensors"

    @property
    def weights(self) -> Path:
        """The weights of the trained model."""
        return self.path / "model.safetensors"

    @property
    def encoder(self) -> Path:
        """The encoders of typed columns, fitted to the training nodes; graphs with plain features have none."""
        return self.path / "encoder.json"

    @property
    def measured(self) -> Path:
        """The metrics from rank 0 of the rank processes, until the command has read them."""
        return self.path / ".measured.json"

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return self.metrics.is_file() and (self.weights.is_file() or self.seed(0).is_dir())

    @property
    def trained(self) -> bool:
        """Whether at least one epoch of the run, or of a run in a folder within, was trained."""
        events = [path for path in (self.events, *self.path.glob("**/events.jsonl")) if path.is_file()]
        return self.checkpoint.is_file() or any(_EPOCH in path.read_bytes() for path in events)

    def seed(self, place: int) -> Path:
        """Return the folder of one of several seeds."""
        return self.path / f"seed-{place}"

    def member(self, place: int) -> Path:
        """Return the folder of one of the members of an ensemble."""
        return self.path / f"member-{place}"

    def write_config(self, text: str) -> None:
        """Write the config; its last line holds its checksum."""
        write_atomically(self.config, add_text_checksum(text))

    def read_config(self) -> str:
        """Read the config; one that was changed or damaged is refused."""
        text = verify_text_checksum(self.config.read_bytes())
        if text is None:
            raise ValueError(
                f"{self.config}: changed or damaged since the run began; put it back as it was, or train anew "
                "(--config takes such a file)"
            )
        return text

    def config_checksum(self) -> str:
        """Return the checksum of the config, which the run's checkpoint carries."""
        return checksum(self.read_config())

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        """Write the metrics with their checksum."""
        write_atomically(self.metrics, add_fields_checksum(metrics))

    def read_metrics(self) -> dict[str, Any]:
        """Read the metrics; metrics that were changed or damaged are refused."""
        metrics = verify_fields_checksum(self.metrics.read_bytes())
        if metrics is None:
            raise ValueError(
                f'{self.metrics}: changed or damaged; delete it and "siafu resume {self.path}" writes it again'
            )
        return metrics

    def write_encoder(self, fields: dict[str, Any]) -> None:
        """Write the encoders of columns with their checksum."""
        write_atomically(self.encoder, add_fields_checksum(fields))

    def read_encoder(self) -> dict[str, Any] | None:
        """Read the encoders of columns; None where the run has none. Encoders that were changed are refused."""
        if not self.encoder.is_file():
            return None
        fields = verify_fields_checksum(self.encoder.read_bytes())
        if fields is None:
            raise ValueError(f"{self.encoder}: changed or damaged; put it back as it was, or train anew")
        return fields

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder; it is released when the process ends, however it ends."""
        refusal = f"{self.path}: another process is writing this run; wait for it or choose another --out"
        with lock_file(self.path / ".lock", refusal=refusal):
            yield


@contextmanager
def new_folder(out: Path | None, *, name: str) -> Iterator[RunFolder]:
    """Make and lock the folder of a new run: ``out``, which must be empty, or a new one under ``runs/``.

    A run that fails before its first epoch leaves nothing behind; one that is interrupted then can be resumed.
    """
    if out is not None and out.exists() and not out.is_dir():
        raise ValueError(f"{out}: a file stands there; choose another --out")
    target = Path("runs") if out is None else out
    missing = [path for path in (target, *target.parents) if not path.exists()]
    target.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(numbered_folder(target, safe_name(name)) if out is None else out)
    present = set(folder.path.iterdir())
    with folder.locked():
        _check_empty(folder.path)  # under the lock: another run may have started and ended since
        try:
            yield folder
        except BaseException as error:
            if not folder.config.exists() or (isinstance(error, Exception) and not folder.trained):
                _remove(folder.path, present, missing if out is not None else [folder.path, *missing])
            raise


def _remove(path: Path, present: set[Path], made: list[Path]) -> None:
    """Delete all entries of a folder but those ``present``, and the folders in ``made`` that are empty then."""
    for entry in set(path.iterdir()) - present:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    for folder in made:
        with suppress(OSError):  # another process uses it
            folder.rmdir()


def _check_empty(path: Path) -> None:
    present = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    if "config.toml" in present:
        raise ValueError(
            f'{path}: already holds a run; continue it with "siafu resume {path}" or choose another --out'
        )
    if present:
        raise ValueError(f"{path}: not empty (it holds {present[0]}); choose another --out")


def safe_name(name: str) -> str:
    """Turn any text into the name of a file or folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def existing_folder(path: Path) -> RunFolder:
    """Return the folder of a run that was started before."""
    if not path.is_dir():
        raise ValueError(f'{path}: no such folder; give the folder of a run, such as those under "runs"')
    if not (path / "config.toml").is_file():
        raise ValueError(f"{path}: not a run: it has no config.toml")
    return RunFolder(path)


def numbered_folder(parent: Path, name: str) -> Path:
    """Make a new folder ``name-1``, or with the next number that is free."""
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        try:
            os.mkdir(path)  # noqa: PTH102 - fails where it exists, so two runs never share a folder
        except FileExistsError:
            number += 1
        else:
            return path
