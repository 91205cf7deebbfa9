"""The secret of a group: its sources, and that other users of the host cannot learn it or disturb a run."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from rank_work import TIMEOUT_S, Starter

from siafu.launch.elastic import join
from siafu.launch.rank_environment import read_rank_environment
from siafu.launch.secret import group_key, read_secret

TWO_HOSTS = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}
ONE_HOST = TWO_HOSTS | {"LOCAL_WORLD_SIZE": "2"}
NOBODY = 65534


def key_of(environ: dict[str, str], *, trust_network: bool = False) -> bytes:
    return group_key(environ, read_rank_environment(environ), trust_network=trust_network)


def test_ranks_on_several_hosts_without_a_secret_are_refused_and_told_how_to_make_one() -> None:
    says = r"2 ranks on several hosts, but neither SIAFU_SECRET .* Make one with .*; or, .* comm.trust_network=true"
    with pytest.raises(ValueError, match=says), join(TWO_HOSTS, deadline_s=1.0):
        pytest.fail("joined")
    assert key_of(TWO_HOSTS, trust_network=True)
    assert key_of(ONE_HOST)


def test_the_key_of_a_group_differs_by_secret_and_attempt_and_not_by_rank() -> None:
    mine = TWO_HOSTS | {"SIAFU_SECRET": "0123456789abcdef"}
    keys = {
        key_of(mine),
        key_of(mine | {"SIAFU_SECRET": "another one 0123456789"}),
        key_of(mine | {"TORCHELASTIC_RESTART_COUNT": "1"}),
        key_of(mine | {"TORCHELASTIC_RUN_ID": "x"}),
        key_of(TWO_HOSTS, trust_network=True),
        key_of(ONE_HOST),
        key_of(ONE_HOST | {"MASTER_PORT": "29501"}),
    }
    assert len(keys) == 7
    assert key_of(mine | {"RANK": "1", "MASTER_ADDR": "another.name.of.it"}) == key_of(mine)


def test_a_secret_is_read_from_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    assert read_secret({"SIAFU_SECRET_FILE": str(path)}) == b"0123456789abcdef"
    assert read_secret({"SIAFU_SECRET_FILE": str(path), "SIAFU_SECRET": "f" * 64}) == b"f" * 64
    assert read_secret({}) is None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o601])
def test_a_secret_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef")
    path.chmod(mode)
    with pytest.raises(
        ValueError, match=rf"with mode {mode:04o}; expected user \d+ with mode 0600.*chmod 600"
    ):
        read_secret({"SIAFU_SECRET_FILE": str(path)})


def test_a_secret_file_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a file away")
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef")
    path.chmod(0o600)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(ValueError, match=f"belongs to user {NOBODY} with mode 0600; expected user 0"):
        read_secret({"SIAFU_SECRET_FILE": str(path)})


def test_a_missing_folder_or_guessable_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no-such: No such file or directory; make one with"):
        read_secret({"SIAFU_SECRET_FILE": str(tmp_path / "no-such")})
    with pytest.raises(ValueError, match=r"not a file|Is a directory"):
        read_secret({"SIAFU_SECRET_FILE": str(tmp_path)})
    with pytest.raises(ValueError, match="SIAFU_SECRET: a secret of 6 bytes; expected at least 16"):
        read_secret({"SIAFU_SECRET": "hunter"})


# Attacks. A stranger looks at every process of the run, and at every socket of siafu that the kernel shows to all.
_STRANGER = f"""
import os, socket, sys
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
for pid in sys.argv[1:]:
    for name in ("environ", "mem", "fd"):
        try:
            os.listdir(f"/proc/{{pid}}/{{name}}") if name == "fd" else open(f"/proc/{{pid}}/{{name}}", "rb").read(1)
        except PermissionError:
            continue
        print("read", name, "of", pid)
for line in open("/proc/net/unix"):
    if "@siafu/" in line:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(60)
        try:
            sock.connect("\\0" + line.split("@", 1)[1].strip())
            sock.sendall(b"siafu peer\\n\\0\\r\\n\\xff\\0" + bytes(32))
            if sock.recv(1):
                print("was answered at", line)
        except OSError:
            pass
"""


def attack(pids: list[int]) -> str:
    """What another user learns."""
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    command = [sys.executable, "-I", "-S", "-c", _STRANGER, *map(str, pids)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout


def until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["processes", "torchrun"])
def test_another_user_of_the_host_learns_nothing_and_does_not_disturb_a_run(
    how: str, program: Callable[..., list[str]], start: Starter, tmp_path: Path
) -> None:
    if how == "processes":
        launcher = tmp_path / "launcher.py"
        launcher.write_text(
            "from siafu.launch.elastic import launch\n"
            f"launch({program('epochs')!r}, ranks=2, threads=1, watch=lambda: False)\n"
        )
        command = [sys.executable, str(launcher)]
    else:
        standalone = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [sys.executable, *standalone, *program("epochs")[1:]]
    process = start(command, EPOCHS=str(tmp_path), TMPDIR=str(tmp_path))
    until(lambda: len(psutil.Process(process.pid).children()) >= 2, process)
    assert attack([process.pid]) == "", "while ranks start and meet"
    until((tmp_path / "done").exists, process)
    ranks = [each for each in psutil.Process(process.pid).children() if "RANK" in each.environ()]
    assert len(ranks) == 2
    assert attack([process.pid, *(each.pid for each in ranks)]) == "", "while they train"
    if how == "torchrun":
        write_over_the_store(ranks[0].environ())
    (tmp_path / "ends").touch()
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    assert (tmp_path / "0.json").read_text() == (tmp_path / "1.json").read_text()


def write_over_the_store(environ: dict[str, str]) -> None:
    """Touch every key in which ranks once left something, as anybody can who reaches torchrun's port."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store = TCPStore(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), is_master=False)
    prefix = f"siafu/{environ['TORCHELASTIC_RUN_ID']}/{environ['TORCHELASTIC_RESTART_COUNT']}"
    keys = [f"{prefix}/{name}" for name in ("token", "siafu/comm/0", "siafu/comm/1")]
    assert not any(store.check([key]) for key in keys), "ranks of one host leave nothing there"
    for key in keys:
        store.set(key, b"evil")
        store.delete_key(key)
