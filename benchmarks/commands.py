"""Commands of siafu as a user types them, each a process of its own: ``pairs.py`` runs them with two checkouts."""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run import write_arrays

from siafu.data import community
from siafu.store import write_store

MAIN = ("-m", "siafu")
_SIZE = ("--hidden", "128", "--epochs", "20")
DATA_HOME = Path(os.environ.get("SIAFU_DATA", Path(__file__).parents[2] / "shared" / "data"))


@dataclass(frozen=True)
class Case:
    """A command: its data (``graph`` is the generated one, else a name) and its other arguments."""

    name: str
    data: str
    arguments: tuple[str, ...]

    @property
    def here(self) -> bool:
        """Whether its data are on this machine."""
        places = (DATA_HOME / f"{self.data}.npz", DATA_HOME / "temporal" / f"{self.data}.npz")
        return self.data == "graph" or any(place.is_file() for place in places)

    def command(self, python: Path | str, folder: Path, out: Path) -> list[str]:
        """The command of a checkout's Python."""
        data = str(folder / "store") if self.data == "graph" else self.data
        return [str(python), *MAIN, "train", data, *self.arguments, "--json", "--out", str(out)]


CASES = (
    Case("gcn", "graph", _SIZE),
    Case("ranks", "graph", (*_SIZE, "--ranks", "2")),
    Case("sampled", "graph", ("--method", "sampled", "--model", "sage", "--epochs", "3")),
    Case("pipeline", "graph", ("--method", "pipeline", "--epochs", "10")),
    Case("cora", "cora", ()),
    Case("time", "ucsocial", ("--model", "evolvegcn-o", "--epochs", "2")),
)


def write_data(folder: Path) -> None:
    """The generated graph, as a store and as arrays: 60,000 nodes, 1.4M edges, 100 features, 47 classes."""
    graph = community(60_000, degree=23, features=100, classes=47, seed=0)
    write_store(graph, folder / "store")
    write_arrays(graph, folder)


def run_command(command: Sequence[str]) -> dict[str, Any]:
    """The metrics that a command prints, and the seconds until it ended."""
    environ = os.environ | {"SIAFU_DATA": str(DATA_HOME)}
    environ.pop(
        "PYTHONDONTWRITEBYTECODE", None
    )  # checkouts would be compiled in every run, installed packages not
    began_s = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    seconds = time.perf_counter() - began_s
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1]) | {"whole_seconds": seconds}
