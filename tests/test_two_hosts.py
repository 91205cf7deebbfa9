"""Ranks on two hosts without shared disk or memory, emulated by network namespaces of this machine. Needs root."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Crossed, train_across
from namespaces import Host, refusal, two_hosts

import siafu
from siafu.data import community
from siafu.store import write_dynamic, write_store

TIMEOUT_S = 240
HEADERS, ONCE_BYTES = 1.06, 64 << 10  # of packets and acknowledgements, and of torchrun's own connections
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
    metered, sent = crossed[0].found["bytes_sent"], sum(crossed[0].interfaces)
    assert metered < sent <= HEADERS * metered + ONCE_BYTES


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


_RANK = """
import sys, torch
from siafu.launch.elastic import join
import os
with join(os.environ, deadline_s=60) as comm:
    print(comm.all_reduce(torch.ones(1), label="sum").item())
"""
_STRANGER = """
import json, socket, sys, time
from siafu.launch.network_addresses import wait_until_reachable
from siafu.wire import tls
from siafu.wire.handshake import HandshakeError, authenticate
from torch.distributed import TCPStore
address, port = sys.argv[1], int(sys.argv[2])
wait_until_reachable(address, port, seconds=120)
store = TCPStore(address, port, is_master=False)
where = json.loads(store.get("siafu///siafu/comm/0"))
print("token", store.check(["siafu///token"]))
sock = socket.create_connection(where[:2], timeout=60)
secure, binding = tls.dial(sock)
try:
    until = time.monotonic() + 60
    print(authenticate(secure, b"no secret", {"rank": 1}, listening=False, until=until, binding=binding))
except HandshakeError as error:
    print("refused:", error)
store.set("siafu///siafu/comm/1", b"evil")
store.delete_key("siafu///siafu/comm/1")
"""


def test_a_stranger_on_another_host_is_refused_and_does_not_disturb_ranks(tmp_path: Path) -> None:
    if why := refusal():
        pytest.skip(why)
    port = "29411"
    with two_hosts(tmp_path) as hosts:
        plain = dict(os.environ) | {
            "PYTHONPATH": str(Path(siafu.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
        }
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": hosts[0].address, "MASTER_PORT": port}
        secret = {"SIAFU_SECRET": "of these two hosts alone"}
        python = [sys.executable, "-c"]
        first = hosts[0].start([*python, _RANK], environ=plain | group | secret | {"RANK": "0"})
        told, errors = (
            hosts[1]
            .start([*python, _STRANGER, hosts[0].address, port], environ=plain)
            .communicate(timeout=TIMEOUT_S)
        )
        assert "token False\nrefused: it holds another secret" in told, errors
        alone = hosts[1].start([*python, _RANK], environ=plain | group | {"RANK": "1"})
        assert "neither SIAFU_SECRET nor SIAFU_SECRET_FILE is set" in alone.communicate(timeout=TIMEOUT_S)[1]
        second = hosts[1].start([*python, _RANK], environ=plain | group | secret | {"RANK": "1"})
        for rank in (first, second):
            out, errors = rank.communicate(timeout=TIMEOUT_S)
            assert out == "2.0\n", errors
