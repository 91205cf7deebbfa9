"""What is said of the machine, and of its limits."""

import json
from pathlib import Path

import pytest
import torch

import siafu
from siafu import native
from siafu.machine import (
    cgroup_memory_bytes,
    cpu_model,
    describe_machine,
    peak_rss_bytes,
    usable_memory_bytes,
)


def test_the_description_names_versions_threads_and_memory() -> None:
    machine = describe_machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["siafu"] == siafu.__version__
    assert machine["torch"] == torch.__version__
    assert machine["threads"] == torch.get_num_threads()
    assert machine["instruction_set"] == native.instruction_set()
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] == usable_memory_bytes() > 2**20
    assert machine["cpu"]


def test_the_processor_is_named_as_it_names_itself(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Example 9000 @ 3 GHz\n\nmodel name\t: second\n")
    assert cpu_model(cpuinfo) == "Example 9000 @ 3 GHz"
    assert cpu_model(tmp_path / "absent")


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "500"}, 500),
        ("0::/a\n", {"a/memory.max": "700", "memory.max": "900"}, 700),
        ("0::/elsewhere\n", {"memory.max": "300"}, 300),
        ("5:cpu,memory:/x\n0::/\n", {"memory/x/memory.limit_in_bytes": "400"}, 400),
        ("5:memory:/x\n", {"memory/x/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("0::/\n", {"memory.max": "rubbish"}, None),
        ("rubbish\n", {}, None),
    ],
)
def test_the_tightest_limit_of_the_control_groups_counts(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int | None
) -> None:
    for name, content in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(content)
    (tmp_path / "cgroup").write_text(groups)
    assert cgroup_memory_bytes(tmp_path / "cgroup", tmp_path / "fs") == expected


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert cgroup_memory_bytes(tmp_path / "absent", tmp_path) is None


def test_the_peak_of_memory_is_the_processes_own(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  123 kB\n")
    assert peak_rss_bytes(status) == 123 * 1024
    assert peak_rss_bytes(tmp_path / "none") > 2**20
