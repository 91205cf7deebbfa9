"""Ranks that are started before their arguments are known."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from rank_work import TIMEOUT_S

from siafu.launch.elastic import started_ranks
from siafu.launch.failures import RanksFailed

WAITS = """
import os, pathlib
from siafu.launch.late_arguments import wait_for_arguments
folder, *rest = wait_for_arguments(os.environ)
pathlib.Path(folder, os.environ["RANK"]).write_text(" ".join(rest))
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, which is empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_each_rank_gets_the_arguments_and_leaves_no_file(tmp_path: Path, temporary: Path) -> None:
    with started_ranks([sys.executable, "-c", WAITS], ranks=3, threads=1) as ranks:
        ranks.send([str(tmp_path), "a", "b c"])
        ranks.wait(lambda: False)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["a b c"] * 3
    assert not list(temporary.iterdir())


def test_a_launcher_that_is_killed_leaves_no_file(temporary: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from siafu.launch.elastic import started_ranks\n"
        "with started_ranks([sys.executable, '-c', 'import time; time.sleep(600)'], ranks=2, threads=1) as ranks:\n"
        "    ranks.send(['never', 'read'])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environ = os.environ | {"TMPDIR": str(temporary)}
    ended = subprocess.run([sys.executable, "-c", program], env=environ, check=False, timeout=TIMEOUT_S)
    assert ended.returncode == -signal.SIGKILL
    assert not list(temporary.iterdir())


def test_ranks_that_get_no_arguments_end_with_the_context(tmp_path: Path, temporary: Path) -> None:
    mark = f"siafu-test-{os.getpid()}-{tmp_path.name}"
    command = [sys.executable, "-c", WAITS, mark]
    with pytest.raises(ValueError, match="no such graph"), started_ranks(command, ranks=2, threads=1):
        raise ValueError("no such graph")
    left = [each for each in psutil.process_iter(["cmdline"]) if mark in (each.info["cmdline"] or [])]
    _, alive = psutil.wait_procs(left, timeout=TIMEOUT_S)
    assert not alive
    assert not list(temporary.iterdir())


def test_a_rank_that_was_lost_while_it_waited_is_reported(tmp_path: Path) -> None:
    dies = f"import os\nif os.environ['RANK'] == '1': os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    with started_ranks([sys.executable, "-c", dies + WAITS], ranks=2, threads=1) as ranks:
        ranks.send([str(tmp_path)])
        with pytest.raises(RanksFailed, match=r"rank 1 on \S+ was killed"):
            ranks.wait(lambda: False)
