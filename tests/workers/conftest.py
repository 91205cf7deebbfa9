"""Worker processes import the package that is tested."""

import os
from pathlib import Path

import pytest

import siafu


@pytest.fixture(autouse=True)
def _processes_import_the_same_package(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Path(siafu.__file__).parents[1], os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{here}:{there}" if there else str(here))
