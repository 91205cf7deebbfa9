"""Fixtures: commands of ranks, and processes that are killed at the end of a test."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rank_work import TIMEOUT_S, Starter

import siafu

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _processes_import_the_same_package(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Path(siafu.__file__).parents[1], os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{here}:{there}" if there else str(here))


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., list[str]]:
    """The command of a rank that does a work of ``rank_work`` and leaves its result in the test's folder."""
    return lambda *arguments: [
        sys.executable, str(HERE / "rank_program.py"), arguments[0], str(tmp_path), *arguments[1:]
    ]  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[str]]:
    """The command of a rank that runs a few lines of Python and needs no torch."""

    def write(lines: str) -> list[str]:
        path = tmp_path / "script.py"
        path.write_text(lines)
        return [sys.executable, str(path)]

    return write


@pytest.fixture
def start() -> Iterator[Starter]:
    """Start a command with variables added to the environment; what is left at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(command: list[str], **environ: str) -> "subprocess.Popen[str]":
        plain = {name: value for name, value in os.environ.items() if name != "RANK"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=plain | {"OMP_NUM_THREADS": "1"} | environ
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)
