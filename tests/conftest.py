"""Fixtures that many tests share: the folder of real graphs, a small graph, a memory limit."""

import os
from collections.abc import Iterator
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tests that run side by side share the cores

import pytest
import torch
from hypothesis import HealthCheck, settings

from siafu.data import community
from siafu.graph import Graph

settings.register_profile("siafu", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no timings
settings.load_profile("siafu")


@pytest.fixture(scope="session")
def data_home() -> Path:
    """The folder of real graphs (``SIAFU_DATA`` or ``../shared/data``); without it the test is skipped."""
    found = Path(os.environ.get("SIAFU_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (found / "cora.npz").is_file():
        pytest.skip(f"no cora.npz in {found}: set SIAFU_DATA to a folder of data sets")
    return found


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread of torch's, as small graphs want; tests of a module use it by ``usefixtures``."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def graph() -> Graph:
    """240 nodes of 3 classes."""
    return community(240, degree=8, classes=3, features=12)


@pytest.fixture
def control_group(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A group below our own, for processes of a test, with the memory that the test's module allows (LIMIT_BYTES)."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    v1 = [group for _, controllers, group in own if "memory" in controllers.split(",")]
    v2 = [group for number, _, group in own if number == "0"]
    parent = Path("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup") / (v1 or v2)[0].strip("/")
    group = parent / f"siafu-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made ({error.strerror}); needs root")
    try:
        limit = group / ("memory.limit_in_bytes" if v1 else "memory.max")
        limit.write_text(str(request.module.LIMIT_BYTES))
        yield group
    except OSError as error:
        pytest.skip(f"the control group takes no limit ({error.strerror})")
    finally:
        group.rmdir()
