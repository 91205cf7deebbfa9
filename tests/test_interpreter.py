"""Processes start and end without work that nobody waits for, and end as Python would."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from siafu.interpreter import quick_imports

ALWAYS_UNUSED = (
    *("torch._dynamo", "torch._inductor", "torch.distributed.run", "sympy", "plotly", "pandas", "networkx"),
    *("scipy", "grpc", "ray", "cryptography", "pyarrow", "numpy.testing", "optuna"),
)
IN_RANKS_ALONE = ("torch.distributed.elastic", "siafu.launch.elastic")
# Found by every Python process of a command: each writes the names of its modules when it ends.
SITE = """
import atexit, json, os, sys
def write():
    with open(os.path.join(os.environ["MODULES"], str(os.getpid())), "w") as file:
        json.dump({"arguments": sys.orig_argv, "modules": sorted(sys.modules)}, file)
atexit.register(write)
"""


def run(lines: str, *, code: int = 0) -> "subprocess.CompletedProcess[str]":
    end = "run_and_exit(main)\nprint('not reached')"
    program = f"import sys\nfrom siafu.interpreter import run_and_exit\ndef main():\n{lines}\n{end}"
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == code, ended.stderr
    assert "not reached" not in ended.stdout
    return ended


def test_the_end_keeps_exit_codes_output_and_exit_handlers() -> None:
    lines = " import atexit\n atexit.register(lambda: print('handler'))\n print('said')"
    assert run(lines).stdout == "said\nhandler\n"
    assert run(f"{lines}\n sys.exit(75)", code=75).stdout == "said\nhandler\n"
    assert run(" sys.exit('a reason')", code=1).stderr == "a reason\n"
    assert "ZeroDivisionError" in run(" 1 / 0", code=1).stderr


def test_a_signal_at_the_end_does_not_change_the_exit_code() -> None:
    lines = " import atexit, os, signal\n atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))\n print('done')"
    assert run(lines).stdout == "done\n"


def test_the_end_awaits_threads_as_python_does() -> None:
    lines = " import threading, time\n threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()"
    assert run(lines).stdout == "thread\n"


def test_output_that_cannot_be_written_is_told_by_the_exit_code() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    codes = []
    for program in (
        "from siafu.interpreter import run_and_exit\nrun_and_exit(lambda: print('said'))",
        "print('said')",
    ):
        with Path("/dev/full").open("w") as full:
            command = [sys.executable, "-c", program]
            codes.append(
                subprocess.run(command, stdout=full, check=False, timeout=240, env=environ).returncode
            )
    assert codes[0] == codes[1] != 0


def test_imports_leave_garbage_collection_as_it_was() -> None:
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize(
    ("arguments", "processes"),
    [
        (("--method", "full"), 1),
        (("--method", "sampled"), 1),
        (("--method", "pipeline", "--set", "pipeline.workers=threads"), 1),
        (("--method", "full", "--ranks", "2"), 3),
    ],
    ids=["full", "sampled", "pipeline", "ranks"],
)
def test_no_process_of_a_command_imports_what_it_does_not_need(
    arguments: tuple[str, ...], processes: int, tmp_path: Path
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "modules").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    command = [sys.executable, "-m", "siafu", "train", "karate", "--epochs", "2", *arguments]
    paths = os.pathsep.join(filter(None, [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    environ = {"PYTHONPATH": paths, "MODULES": str(tmp_path / "modules")}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(path.read_text()) for path in (tmp_path / "modules").iterdir()]
    found = [each for each in found if "torch" in each["modules"]]
    assert len(found) == processes
    unused = {*ALWAYS_UNUSED, *(() if "--ranks" in arguments else IN_RANKS_ALONE)}
    if "pipeline" not in arguments:
        unused.add("siafu.workers.worker_pool")
    for each in found:
        assert not unused & set(each["modules"]), each["arguments"]
