"""A rank that the kernel kills for lack of memory is reported with its memory curve."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rank_work import TIMEOUT_S, Starter

from siafu.launch.memory_monitor import MemoryMonitor

LIMIT_BYTES = 700_000_000


def test_a_rank_killed_for_lack_of_memory_is_reported_with_its_memory_curve(
    control_group: Path, script: Callable[[str], list[str]], start: Starter, tmp_path: Path
) -> None:
    rank = script(
        "import os, time\n"
        "held = []\n"
        "while os.environ['RANK'] == '1':\n"
        "    held.append(b'x' * 20_000_000)\n"
        "    time.sleep(0.05)\n"
        "time.sleep(1000)\n"
    )
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import os, pathlib\n"
        f"pathlib.Path({str(control_group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "from siafu.launch.elastic import launch\n"
        "from siafu.launch.failures import RanksFailed\n"
        "try:\n"
        f"    launch({rank!r}, ranks=2, threads=1, watch=lambda: False)\n"
        "except RanksFailed as error:\n"
        "    print(error.failures[0].kind, error)\n"
    )
    process = start([sys.executable, str(launcher)])
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert out.startswith("memory rank 1 on "), (out, err)
    assert "was killed by the kernel for lack of memory; its memory: 0.0" in out
    assert "a smaller model (--hidden, --layers)" in out
    points = [float(found) for found in re.findall(r"([0-9.]+) GB at", out)]
    assert points == sorted(points)
    assert points[-1] > 0.05


def test_a_long_curve_stays_small_and_keeps_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = MemoryMonitor()
    for second in range(10_000):
        curves._add(0, float(second), second * 1_000_000)
    assert len(curves._points[0]) <= 256
    assert curves.describe(0).startswith("its memory: 0.00 GB at ")
    assert curves.describe(1) == "it ended before its memory could be looked at"
    assert not curves.kernel_killed()
