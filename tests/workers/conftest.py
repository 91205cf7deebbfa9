"""Worker processes import the package that is tested."""

import os
from pathlib import Path

import pytest
from emulators import NotToBeHad, binary

import siafu


@pytest.fixture(autouse=True)
def _processes_import_the_same_package(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Path(siafu.__file__).parents[1], os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{here}:{there}" if there else str(here))


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The key of leases, at the run and at functions, which may dial this host."""
    monkeypatch.delenv("SIAFU_LEASE_KEY_FILE", raising=False)
    monkeypatch.setenv("SIAFU_LEASE_KEY", "5a" * 32)
    monkeypatch.setenv("SIAFU_LEASE_ADDRESSES", "127.0.0.0/8")
    return bytes.fromhex("5a" * 32)


@pytest.fixture
def _emulator() -> None:
    """AWS's emulator of its runtime; without it the test is skipped."""
    try:
        binary()
    except NotToBeHad as error:
        pytest.skip(str(error))
