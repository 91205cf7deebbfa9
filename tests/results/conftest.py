"""Runs to read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_run import write_run


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """``make_run(name, seed=…, …)`` writes a finished run and gives its folder."""

    def make(name: str = "first", **changes: Any) -> Path:
        return write_run(tmp_path / "runs" / name, **changes)

    return make
