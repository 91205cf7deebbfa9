"""The runs of ``suite.py``: data sets, splits, commands, and the record that is kept of each."""

import os
import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from commands import DATA_HOME, MAIN, run_command

from siafu.data.random_split import random_splits

Record = dict[str, Any]
SPLITS = ("public", "random")
RANDOM_FOLDS = 3
KIPF = Path(__file__).with_name("kipf.toml")
KINDS = {
    "default": (),
    "kipf": ("--config", str(KIPF)),
    "off": ("--set", "train.search=off"),
    "ensemble": ("--set", "train.ensemble=5"),
    "smooth": ("--set", "correct_and_smooth.enabled=true"),
    "tune": (),
}
_BOX = " │╭╮╰╯─"  # around messages about wrong use
_MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class DataSet:
    """A node-classification set of the data folder.

    Attributes:
        name: its name, by which siafu finds it.
        nodes: number of nodes.
        features: number of features; 0: none.
        labelled: (N,) bool, the nodes with a label.
        masks: (N, S) bool of each split.
    """

    name: str
    nodes: int
    features: int
    labelled: np.ndarray
    masks: dict[str, np.ndarray]

    @classmethod
    def read(cls, path: Path) -> "DataSet | None":
        """The set of a file; None where it has no classes or labels of nodes, or no split."""
        with np.load(path, allow_pickle=False) as arrays:
            if not {"y", *_MASKS} <= set(arrays.files) or arrays["y"].dtype.kind not in "iu":
                return None
            y = arrays["y"]
            width = int(arrays["x_shape"][1]) if "x_shape" in arrays else 0
            width = arrays["x"].shape[1] if "x" in arrays else width
            masks = {name: arrays[name].reshape(len(y), -1) for name in _MASKS}
            return cls(path.stem, len(y), width, y >= 0 if y.ndim == 1 else y.any(axis=1), masks)

    @property
    def folds(self) -> int:
        """The number of stored splits."""
        return self.masks["train_mask"].shape[1]

    def random_masks(self) -> dict[str, np.ndarray]:
        """Masks of random 60 / 20 / 20 splits of the labelled nodes, (N, RANDOM_FOLDS)."""
        return random_splits(self.labelled.astype(np.int64) - 1, seed=0, folds=RANDOM_FOLDS)

    def counts(self, split: str, fold: int) -> dict[str, int]:
        """The number of labelled nodes in each part of a split."""
        masks = self.masks if split == "public" else self.random_masks()
        column = min(fold, masks["train_mask"].shape[1] - 1)
        parts = {name.removesuffix("_mask"): mask[:, column] & self.labelled for name, mask in masks.items()}
        return {f"{part}_nodes": int(mask.sum()) for part, mask in parts.items()}


@dataclass(frozen=True)
class SuiteRun:
    """One run: a data set, a split, and a kind of ``KINDS``; ``trials`` is 0 but for a tune."""

    set: str
    split: str
    fold: int
    seed: int
    kind: str
    trials: int = 0

    @property
    def label(self) -> str:
        """A name for the run's folder and for messages."""
        return f"{self.set}-{self.split}-{self.fold}-{self.seed}-{self.kind}"

    def command(self, work: Path) -> list[str]:
        """The command, which writes its run below ``work``."""
        data = self.set if self.split == "public" else str(work / "random" / f"{self.set}.npz")
        fold = ("--set", f"data.fold={self.fold}") if self.fold else ()
        seed = ("--seed", str(self.seed)) if self.seed else ()
        name = "tune" if self.kind == "tune" else "train"
        trials = ("--trials", str(self.trials)) if self.kind == "tune" else ()
        rest = (*KINDS[self.kind], *trials, *fold, *seed, "--json", "--out", str(self.folder(work)))
        return [sys.executable, *MAIN, name, data, *rest]

    def folder(self, work: Path) -> Path:
        """The folder of the run."""
        return work / "runs" / self.label

    @classmethod
    def of(cls, record: Record) -> "SuiteRun":
        """The run that a record is of."""
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})


def read_sets(home: Path = DATA_HOME) -> list[DataSet]:
    """The node-classification sets of a folder, small ones first."""
    found = [DataSet.read(path) for path in sorted(home.glob("*.npz"))]
    return sorted((each for each in found if each is not None), key=lambda each: each.nodes)


def plan_runs(
    sets: Iterable[DataSet], *, kinds: Sequence[str], splits: Sequence[str], folds: int, trials: int
) -> list[SuiteRun]:
    """All runs, in order; tunes, which take longest, come last and are of the first fold alone.

    Splits without validation nodes have no tune, which would have nothing to choose by.
    Fold f of a set with several public splits is its stored split f, with seed 0. Fold f of a set with one is seed f.
    Fold f of the random splits has a split and a seed of its own; there are always RANDOM_FOLDS.
    """
    runs = []
    for each in sets:
        stored = [(fold, 0) for fold in range(min(folds, each.folds))]
        public = stored if each.folds > 1 else [(0, seed) for seed in range(folds)]
        places = {"public": public, "random": [(fold, fold) for fold in range(RANDOM_FOLDS)]}
        for split in splits:
            for fold, seed in places[split]:
                runs += [SuiteRun(each.name, split, fold, seed, kind) for kind in kinds if kind != "tune"]
    tunes = [
        SuiteRun(each.name, split, 0, 0, "tune", trials)
        for each in sets
        for split in splits
        if each.counts(split, 0)["val_nodes"]
    ]
    return runs + (tunes if "tune" in kinds else [])


def write_random_splits(each: DataSet, work: Path, home: Path = DATA_HOME) -> None:
    """Write the set with random splits in the place of its own; a file that is there is kept."""
    path = work / "random" / f"{each.name}.npz"
    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with np.load(home / path.name, allow_pickle=False) as arrays:
        kept = {name: arrays[name] for name in arrays.files if name not in _MASKS}
    new = path.with_name(f".{path.stem}-{os.getpid()}.npz")
    np.savez(new, **kept, **each.random_masks())
    new.replace(path)


def run_one(run: SuiteRun, each: DataSet, work: Path) -> Record:
    """Run a command to its end. A failed one gives a record with the last line of its messages as ``error``."""
    if run.split == "random":
        write_random_splits(each, work)
    folder, command = run.folder(work), run.command(work)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if run.kind != "tune":  # a tune that was killed goes on
        shutil.rmtree(folder, ignore_errors=True)
    record = asdict(run) | {"nodes": each.nodes, "features": each.features}
    record |= each.counts(run.split, run.fold)
    try:
        metrics = run_command(command)
    except (RuntimeError, ValueError, IndexError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        return record | {"error": _last_line(str(error)) or repr(error)}
    record |= {"seconds": metrics.pop("whole_seconds"), "metrics": metrics}
    record |= {"settings": _settings(Path(metrics.get("run") or folder))}
    shutil.rmtree(folder, ignore_errors=True)
    return record


def _last_line(messages: str) -> str:
    """The last line that has words, without the box that may be around it."""
    lines = [line.strip(_BOX) for line in messages.splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _settings(folder: Path) -> Record:
    """The resolved settings that decide a run's score."""
    path = folder / "config.toml"
    tables = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {name: tables[name] for name in ("data", "model", "train") if name in tables}
