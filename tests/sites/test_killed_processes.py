"""The commands as processes: a run survives SIGKILL and restart of sites and coordinator."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from trial_federation import NAMES, make_trial, trained_here

from siafu.graph import Graph

pytestmark = pytest.mark.usefixtures("one_thread")

SIAFU = [sys.executable, "-c", "from siafu.cli import main; main()"]
PATIENCE_S = 300.0  # for anything that is waited for
SETTINGS = {
    "method": "lazy",
    "train.epochs": 40,
    "train.patience": 0,
    "model.hidden": 16,
    "comm.deadline": PATIENCE_S,
}


@dataclass
class Processes:
    """Sites and a coordinator, each a process."""

    folder: Path
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    address: dict[str, str] = field(default_factory=dict)

    def serve(self, name: str) -> None:
        place = self.folder / name
        command = ["site", "serve", "--data", place / "store", "--config", place / "site.toml"]
        self._start(name, [*command, "--listen", self.address.get(name, "127.0.0.1:0")])

    def wait_for(self, name: str) -> None:
        found = self.address[name] = self._said(name, r"serves on (\S+)")
        for other in NAMES[NAMES.index(name) + 1 :]:  # which call it
            path = self.folder / other / "site.toml"
            path.write_text(path.read_text().replace(f"127.0.0.1:{7400 + NAMES.index(name)}", found))

    def federate(self) -> None:
        places = [part for name in NAMES for part in ("--address", f"{name}={self.address[name]}")]
        self._start(
            "coordinator", ["federate", self.folder / "coordinator" / "federation.toml", *places, "--json"]
        )

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait(PATIENCE_S)

    def wait_until_epoch(self, epoch: int) -> None:
        events, until = self.folder / "coordinator" / "run" / "events.jsonl", time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            text = events.read_text() if events.is_file() else ""
            if any(int(found) >= epoch for found in re.findall(r'"phase":"epoch","epoch":(\d+)', text)):
                return
            assert self.running["coordinator"].poll() is None, self.log("coordinator")
            time.sleep(0.01)
        raise TimeoutError(f"no epoch {epoch}:\n{self.log('coordinator')}")

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _said(self, name: str, pattern: str) -> str:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if found := re.search(pattern, self.log(name)):
                return found[1]
            assert self.running[name].poll() is None, self.log(name)
            time.sleep(0.01)
        raise TimeoutError(self.log(name))

    def _start(self, name: str, command: list[object]) -> None:
        environ = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("wb") as log, (self.folder / f"{name}.out").open("wb") as out:
            arguments = [*SIAFU, *map(str, command)]
            self.running[name] = subprocess.Popen(arguments, stdout=out, stderr=log, env=environ)


@pytest.fixture
def processes(graph: Graph, tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path / "sites")
    make_trial(made.folder, graph)
    path = made.folder / "coordinator" / "federation.toml"
    run = [f"{key} = {json.dumps(value)}" for key, value in SETTINGS.items()]
    text = path.read_text().partition("[run]")[0].replace("patience = 60", f"patience = {PATIENCE_S}")
    path.write_text("\n".join([text, "[run]", "threads = 1", *run]) + "\n")
    try:
        for name in NAMES:
            made.serve(name)
            made.wait_for(name)
        yield made
    finally:
        for process in made.running.values():
            process.kill()
            process.wait(PATIENCE_S)


def test_killed_and_restarted_parties_end_with_the_bits_of_an_undisturbed_run(
    processes: Processes, graph: Graph, tmp_path: Path
) -> None:
    processes.federate()
    processes.wait_until_epoch(5)  # of the first stage
    processes.kill("b")
    processes.serve("b")
    processes.wait_until_epoch(50)  # of the second
    processes.kill("a")  # which has the run's files
    processes.serve("a")
    processes.wait_until_epoch(60)
    processes.kill("coordinator")
    processes.federate()
    assert processes.running["coordinator"].wait(PATIENCE_S) == 0, processes.log("coordinator")
    found = json.loads((processes.folder / "coordinator.out").read_text().splitlines()[-1])
    assert found["finished"]
    assert found["away"] == []
    here = trained_here(graph, tmp_path / "here", **SETTINGS)
    assert (processes.folder / "coordinator" / "run" / "model.safetensors").read_bytes() == (
        here.directory / "model.safetensors"
    ).read_bytes()  # nobody was given up, so nothing was trained without anybody
    for name in NAMES:  # a site that is told to end does
        processes.running[name].send_signal(signal.SIGTERM)
        assert processes.running[name].wait(PATIENCE_S) == 143, processes.log(name)
