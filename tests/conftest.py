"""What many tests share: where the real graphs lie."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_home() -> Path:
    """The folder of real graphs (``SIAFU_DATA`` or ``../shared/data``); without it the test is skipped."""
    found = Path(os.environ.get("SIAFU_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not (found / "cora.npz").is_file():
        pytest.skip(f"no cora.npz in {found}: set SIAFU_DATA to a folder of data sets")
    return found
