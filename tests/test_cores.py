"""Cores that this process may use, by its affinity and its control groups, and how OpenMP is set up for them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from siafu import cores
from siafu.cores import cgroup_cores, default_threads, thread_environ, usable_cores


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/a\n", {"a/cpu.max": "400000 100000", "cpu.max": "300000 100000"}, 3.0),
        ("0::/elsewhere\n", {"cpu.max": "50000 100000"}, 0.5),
        (
            "3:cpu,cpuacct:/x\n",
            {"cpu/x/cpu.cfs_quota_us": "250000", "cpu/x/cpu.cfs_period_us": "100000"},
            2.5,
        ),
        (
            "3:cpu,cpuacct:/x\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "20000", "cpu,cpuacct/cpu.cfs_period_us": "10000"},
            2.0,
        ),
        ("3:cpu:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, None),
        ("3:cpuset:/x\n", {"cpu/x/cpu.cfs_quota_us": "1000", "cpu/x/cpu.cfs_period_us": "1000"}, None),
        ("0::/\n", {"cpu.max": "max"}, None),
        ("0::/\n", {"cpu.max": "rubbish 100000"}, None),
        ("0::/\n", {"cpu.max": "1000 0"}, None),
        ("rubbish\n", {}, None),
    ],
)
def test_the_tightest_quota_of_the_control_groups_counts(
    tmp_path: Path, groups: str, files: dict[str, str], expected: float | None
) -> None:
    for name, content in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(f"{content}\n")
    (tmp_path / "cgroup").write_text(groups)
    assert cgroup_cores(tmp_path / "cgroup", tmp_path / "fs") == expected


def test_a_system_without_control_groups_has_no_quota(tmp_path: Path) -> None:
    assert cgroup_cores(tmp_path / "absent", tmp_path) is None


@pytest.mark.parametrize(
    ("affinity", "quota", "usable"), [(8, None, 8), (8, 1.5, 2), (2, 6.0, 2), (8, 0.1, 1), (8, 3.0, 3)]
)
def test_affinity_and_quota_both_limit_the_cores(
    monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, usable: int
) -> None:
    monkeypatch.setattr(cores, "affinity_cores", lambda: affinity)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: quota)
    assert usable_cores() == usable
    assert default_threads({}, ranks=1, torch_threads=64) == usable
    assert default_threads({}, ranks=1, torch_threads=1) == 1
    assert default_threads({"OMP_NUM_THREADS": "5"}, ranks=1, torch_threads=5) == 5
    assert default_threads({"OMP_NUM_THREADS": "5"}, ranks=2, torch_threads=5) == max(1, usable // 2)


def test_openmp_is_set_up_unless_the_user_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "affinity_cores", lambda: 8)
    monkeypatch.setattr(cores, "cgroup_cores", lambda: None)
    assert int(thread_environ({})["GOMP_SPINCOUNT"]) <= 10_000
    assert thread_environ({"OMP_WAIT_POLICY": "active"}) == {}
    assert thread_environ({"GOMP_SPINCOUNT": "7"}) == {}
    monkeypatch.setattr(cores, "cgroup_cores", lambda: 2.5)
    assert thread_environ({"GOMP_SPINCOUNT": "7"}) == {"OMP_NUM_THREADS": "3"}
    assert thread_environ({"GOMP_SPINCOUNT": "7", "OMP_NUM_THREADS": "8"}) == {}


PRINT_THREADS = """
import json, os, sys
if len(sys.argv) > 1:
    os.sched_setaffinity(0, {int(sys.argv[1])})
from siafu import __main__, cli
def main():
    import torch
    from siafu.config import Config
    from siafu.resolve import resolve_engine
    threads = resolve_engine(Config(), os.environ).threads
    print(json.dumps([threads, torch.get_num_threads(), os.environ["GOMP_SPINCOUNT"]]))
cli.main = main
__main__.main()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_the_command_line_uses_the_cores_of_its_affinity() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    core = min(os.sched_getaffinity(0))
    for arguments, expected in (([str(core)], 1), ([], usable_cores())):
        command = [sys.executable, "-c", PRINT_THREADS, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
        assert done.returncode == 0, done.stderr
        threads, of_torch, spins = json.loads(done.stdout)
        assert threads == of_torch == expected
        assert spins == thread_environ({})["GOMP_SPINCOUNT"]
