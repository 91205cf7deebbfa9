"""Ranks on two hosts that share no folder and no memory, for real: network namespaces of this machine. Needs root."""

import subprocess
from pathlib import Path

import pytest
from hosts import Crossed, train_across
from namespaces import Host, refusal, two_hosts

import siafu
from siafu.data import community
from siafu.store import write_dynamic, write_store

TIMEOUT_S = 240
SETTINGS = {"epochs": 5, "hidden": 16, "threads": 1, "ranks": 2}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the second host does not see, with a store in it."""
    folder = tmp_path_factory.mktemp("work")
    write_store(community(600, degree=10, features=20, classes=4, seed=0), folder / "store")
    return folder


@pytest.fixture(scope="module")
def crossed(work: Path) -> tuple[Crossed, tuple[Host, Host]]:
    """A run over two hosts, and the hosts, which are gone by now."""
    if why := refusal():
        pytest.skip(why)
    flags = {"--epochs": "5", "--hidden": "16", "--set": "threads=1", "--out": str(work / "run")}
    with two_hosts(work) as hosts:
        command = [str(work / "store"), *(word for pair in flags.items() for word in pair)]
        found = train_across(hosts, command, timeout_s=TIMEOUT_S)
    return found, hosts


def test_two_hosts_without_a_shared_folder_train_the_same_weights_as_one(
    crossed: tuple[Crossed, tuple[Host, Host]], work: Path, tmp_path: Path
) -> None:
    siafu.train(work / "store", engine="local", out=tmp_path / "run", **SETTINGS)
    names = [path / "run" / "model.safetensors" for path in (work, tmp_path)]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert crossed[0].found["finished"]
    assert crossed[0].found["ranks"] == 2


def test_the_part_of_the_second_host_goes_over_the_wire(
    crossed: tuple[Crossed, tuple[Host, Host]], work: Path
) -> None:
    parts = (work / "store" / "parts" / "2-stream").glob("part1_*.bin")
    size = sum(path.stat().st_size for path in parts)
    assert crossed[0].found["bytes_by_label"]["parts"] > size
    assert crossed[0].interfaces[0] > size


def test_interfaces_count_little_more_than_our_meter(crossed: tuple[Crossed, tuple[Host, Host]]) -> None:
    sent = sum(crossed[0].interfaces)
    assert crossed[0].found["bytes_sent"] < sent <= crossed[0].allowed


def test_of_a_graph_that_changes_the_second_host_gets_its_steps_in_few_bytes(tmp_path: Path) -> None:
    if why := refusal():
        pytest.skip(why)
    write_dynamic(siafu.load("transactions:nodes=100,steps=30,events=9000,seed=0"), tmp_path / "store")
    asked = ("--model", "cd-gcn", "--task", "link", "--epochs", "1", "--hidden", "4")
    asked += ("--set", "threads=1", "--set", "snapshots.window=0", "--set", "link.evaluation=10")
    with two_hosts(tmp_path) as hosts:
        command = [str(tmp_path / "store"), *asked, "--out", str(tmp_path / "run")]
        found = train_across(hosts, command, timeout_s=TIMEOUT_S).found
    settings = {"model": "cd-gcn", "task": "link", "epochs": 1, "hidden": 4, "threads": 1, "ranks": 2}
    settings |= {"window": 0, "evaluation": 10}
    siafu.train(tmp_path / "store", engine="local", out=tmp_path / "local", **settings)
    names = [tmp_path / run / "model.safetensors" for run in ("run", "local")]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert 0 < found["bytes_by_label"]["graph deltas"] < 8 * 9000 / 3


def test_nothing_of_the_hosts_is_left(crossed: tuple[Crossed, tuple[Host, Host]], work: Path) -> None:
    for host in crossed[1]:
        for what in (["netns", "list"], ["link"]):
            shown = subprocess.run(["ip", *what], capture_output=True, text=True, check=True).stdout
            assert host.namespace not in shown
            assert host.interface not in shown
        assert processes_with(f"HOST={host.name}\0", str(work)) == []
    assert str(work) not in Path("/proc/mounts").read_text()


def processes_with(*texts: str) -> list[str]:
    """The commands of processes whose environment holds all of these texts."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes().decode(errors="replace")
            if all(text in environ for text in texts):
                found.append((process / "cmdline").read_text())
        except OSError:
            continue  # it ended just now
    return found
