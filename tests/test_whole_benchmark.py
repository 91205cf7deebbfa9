"""The comparison of benchmarks/whole.py: ratios to siafu with its search and without."""

import dataclasses
from typing import Any

import pytest
import whole

CASE = whole.Case("a", "gcn", "cora", 200)


def runs(*seconds: float) -> list[dict[str, Any]]:
    return [
        {"whole_seconds": each, "step_seconds": 1.0, "peak_rss_bytes": 2**20, "test_score": 0.8}
        for each in seconds
    ]


def test_sides_are_compared_with_the_search_on_and_off(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"siafu": runs(4, 6, 8), "siafu-off": runs(2, 4, 4), "pyg": runs(8, 24, 16)}
    assert whole.ratios(found)["pyg"] == {"siafu": 2.0, "siafu-off": 4.0}
    assert whole.ratios(found)["siafu"] == {"siafu": 1.0, "siafu-off": 2.0}
    whole.show(CASE, found)
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.strip().startswith("pyg")]
    assert line.split()[:6] == ["pyg", "16.00", "8.00", "24.00", "2.0x", "4.0x"]
    assert "cost of the search: 2.00x the seconds without it" in text


def test_a_case_without_a_search_has_one_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"siafu": runs(4), "pyg": runs(8)}
    assert whole.ratios(found)["pyg"] == {"siafu": 2.0, "siafu-off": None}
    whole.show(CASE, found)
    assert "cost of the search" not in capsys.readouterr().out


def test_siafu_runs_twice_only_where_it_searches() -> None:
    assert CASE.all_sides == ("siafu", "siafu-off", "pyg", "dgl")
    assert dataclasses.replace(CASE, kind="link").all_sides == ("siafu", "pyg", "dgl")
