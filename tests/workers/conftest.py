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
def _emulator() -> None:
    """AWS's emulator of its runtime; without it the test is skipped."""
    try:
        binary()
    except NotToBeHad as error:
        pytest.skip(str(error))
