"""``elastic.launch``: reports of ranks' ends, forwarded signals, and no process left behind."""

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from rank_work import TIMEOUT_S, Starter

from siafu.cores import thread_environ
from siafu.launch.elastic import launch
from siafu.launch.failures import RanksFailed

HOST = socket.gethostname()
Script = Callable[[str], list[str]]
Program = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, no thread, no folder, no handler."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    before = psutil.Process().children(
        recursive=True
    )  # such as the server that other tests fork processes from
    yield
    assert not set(psutil.Process().children(recursive=True)) - set(before)
    assert not list(temporary.iterdir())
    assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]


def test_ranks_get_the_set_up_of_openmp(
    script: Script, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    command = script("import os\nos.write(1, os.environb[b'GOMP_SPINCOUNT'] + b'\\n')\n")  # one write each
    launch(command, ranks=2, threads=1, watch=lambda: False)
    assert capfd.readouterr().err.split() == [thread_environ({})["GOMP_SPINCOUNT"]] * 2


def failed(command: list[str], *, ranks: int = 2) -> RanksFailed:
    with pytest.raises(RanksFailed) as raised:
        launch(command, ranks=ranks, threads=1, watch=lambda: False)
    return raised.value


def test_ranks_know_themselves_and_their_output_goes_to_standard_error(
    script: Script, capfd: pytest.CaptureFixture[str]
) -> None:
    command = script(
        "import os, sys\n"
        "print(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'OMP_NUM_THREADS')), *sys.argv[1:])\n"
        "assert not sys.stdin.read()\n"
    )
    launch([*command, "--a", "b c"], ranks=3, threads=5, watch=lambda: False)
    out, err = capfd.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == [f"{rank} 3 5 --a b c" for rank in range(3)], (
        "and nothing of torch's agent"
    )


@pytest.mark.parametrize(
    ("last_act", "kind", "says"),
    [
        (
            "os.kill(os.getpid(), 9)",
            "killed",
            f"rank 1 on {HOST} was killed (SIGKILL); find out who sent the signal",
        ),
        ("os.kill(os.getpid(), 11)", "killed", f"rank 1 on {HOST} was ended by a crash (SIGSEGV)"),
        ("sys.exit(7)", "error", f"rank 1 on {HOST}: ended with exit code 7 without saying why"),
        ("sys.exit(75)", "lost_peer", f"rank 1 on {HOST} lost a peer"),
    ],
)
def test_the_way_a_rank_ended_is_reported(script: Script, last_act: str, kind: str, says: str) -> None:
    error = failed(script(f"import os, sys\nif os.environ['RANK'] == '1': {last_act}"), ranks=3)
    assert [(failure.rank, failure.kind) for failure in error.failures] == [(1, kind)]
    assert str(error).startswith(says)


def test_ranks_that_do_not_notice_a_failure_are_ended(script: Script) -> None:
    began = time.monotonic()
    error = failed(
        script("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\ntime.sleep(1000)")
    )
    assert [failure.rank for failure in error.failures] == [1]
    assert time.monotonic() - began < TIMEOUT_S


def test_a_command_that_does_not_exist_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert "exit code 1" in str(failed(["/no/such/program"]))
    assert "cannot run /no/such/program: No such file or directory" in capfd.readouterr().err


def test_a_suspended_rank_is_reported_by_its_peers_and_does_not_delay_the_end(program: Program) -> None:
    error = failed(program("freeze", "2.0"))
    assert [(failure.rank, failure.kind) for failure in error.failures] == [(0, "lost_peer")]
    assert f"rank 1 on {HOST} was silent" in str(error)
    assert 'waited in "epoch 1"' in str(error)


def test_a_suspended_rank_that_no_peer_waits_for_is_killed(
    script: Callable[[str], list[str]],
) -> None:
    alone = "if os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGSTOP)"
    with pytest.raises(
        RanksFailed, match=r"rank 1 on \S+ was stopped \(SIGSTOP\) for 0.95 s, and then ended"
    ) as failed:
        launch(script(f"import os, signal\n{alone}"), ranks=2, threads=1, watch=lambda: False, deadline_s=1)
    assert [failure.kind for failure in failed.value.failures] == ["killed"]


def test_a_stop_reaches_ranks_even_before_they_listen(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHS", str(tmp_path))
    launch(program("epochs"), ranks=2, threads=1, watch=lambda: True)
    assert int((tmp_path / "done").read_text()) >= 1
    assert (tmp_path / "0.json").read_text() == (tmp_path / "1.json").read_text()


def test_a_stop_reaches_ranks_at_work(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPOCHS", str(tmp_path))
    launch(program("epochs"), ranks=2, threads=1, watch=lambda: (tmp_path / "done").exists())
    assert (tmp_path / "0.json").read_text() == (tmp_path / "1.json").read_text()


def test_an_exception_of_watch_kills_all_ranks_at_once(script: Script, tmp_path: Path) -> None:
    def interrupted() -> bool:
        if (tmp_path / "here").exists():
            raise KeyboardInterrupt
        return True  # which these ranks do not listen to

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch(
            script(f"import pathlib, time\npathlib.Path({str(tmp_path / 'here')!r}).touch()\ntime.sleep(1000)"),
            ranks=2, threads=1, watch=interrupted,
        )  # fmt: skip
    assert time.monotonic() - began < TIMEOUT_S


def test_it_may_be_called_outside_of_the_main_thread(script: Script) -> None:
    found: list[RanksFailed] = []
    thread = threading.Thread(target=lambda: found.append(failed(script("import sys; sys.exit(3)"))))
    thread.start()
    thread.join(TIMEOUT_S)
    assert "exit code 3" in str(found[0])


def test_a_killed_launcher_leaves_no_process_and_no_rank_opens_a_port(
    program: Program, start: Starter, tmp_path: Path
) -> None:
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "from siafu.launch.elastic import launch\n"
        f"launch({program('epochs')!r}, ranks=2, threads=1, watch=lambda: False)\n"
    )
    process = start([sys.executable, str(launcher)], EPOCHS=str(tmp_path), TMPDIR=str(tmp_path))
    _until(lambda: (tmp_path / "done").exists() or process.poll() is not None)
    ranks = psutil.Process(process.pid).children(recursive=True)
    open_there = [
        each for one in [psutil.Process(process.pid), *ranks] for each in one.net_connections("inet")
    ]
    assert len(ranks) == 2
    assert not open_there, "ranks of one host talk over Unix sockets"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    _, alive = psutil.wait_procs(ranks, timeout=TIMEOUT_S)
    for each in alive:
        each.kill()
    assert not alive
    assert not list(tmp_path.glob("siafu-ranks-*"))


def test_a_launcher_killed_while_it_starts_ranks_leaves_none(
    script: Script, start: Starter, tmp_path: Path
) -> None:
    launcher, mark = tmp_path / "launcher.py", f"siafu-test-{os.getpid()}-{time.monotonic_ns()}"
    launcher.write_text(
        "import os, signal, threading\n"
        "from siafu.launch.elastic import launch\n"
        "from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler as each\n"
        "class Popen(each.Popen):\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n"
        "        if kwargs['env']['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n"
        "each.Popen = Popen\n"
        f"launch({[*script('import time; time.sleep(1000)'), mark]!r}, ranks=4, threads=1, watch=lambda: False)\n"
    )
    process = start([sys.executable, str(launcher)], TMPDIR=str(tmp_path))
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGKILL
    _until(lambda: not any(mark in (each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])))


def _until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)  # another process tells nobody
