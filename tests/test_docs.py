"""The documents tell the truth about the code."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from siafu.conditions import Condition
from siafu.config import Config

ROOT = Path(__file__).parents[1]


def test_every_setting_and_its_default_stand_in_the_settings_page() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    for name, info in Config.model_fields.items():
        fields = getattr(info.annotation, "model_fields", None)
        if fields is None:
            assert f"`{name}`" in text, name
            continue
        _, _, section = text.partition(f"## `[{name}]`")
        section = section.partition("\n## ")[0]
        for key, field in fields.items():
            row = re.search(rf"^\| `{key}` \| ([^|]*) \|", section, re.MULTILINE)
            assert row, f"{name}.{key}"
            if field.default is not None:
                assert row[1].strip("` ") == str(field.default).lower(), f"{name}.{key}"


def in_words(conditions: tuple[Condition, ...]) -> str:
    said = []
    for each in conditions:
        *others, last = [f"`{str(value).lower()}`" for value in each.values]
        listed = f"{', '.join(others)} or {last}" if others else last
        said.append(f"`{each.key}` {'not ' if each.excludes else ''}{listed}")
    return " and ".join(said)


def test_the_settings_page_says_where_each_setting_applies() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    for table, info in Config.model_fields.items():
        groups: dict[str, list[str]] = {}
        for key, conditions in getattr(info.annotation, "applies", {}).items():
            if conditions:
                groups.setdefault(in_words(conditions), []).append(f"`{key}`")
        for words, keys in groups.items():
            row = f"| `[{table}]` | {', '.join(keys)} | {words} |"
            assert row in text, row


def test_every_file_the_readme_names_is_there() -> None:
    text = (ROOT / "README.md").read_text()
    for name in re.findall(r"\]\((docs/[^)]+)\)", text) + re.findall(r"^    ([\w./]+)  ", text, re.MULTILINE):
        assert (ROOT / name.rstrip(",")).exists(), name


def test_the_blocks_of_the_python_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 7
    names: dict[str, Any] = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # PyG uses what this torch calls so
        exec("\n".join(blocks), names)
    shown = capsys.readouterr().out
    assert "Graph('karate', num_nodes=34, num_edges=156" in shown
    assert "Run('runs/karate-gcn-full-1', gcn, full, test accuracy" in shown
    assert "true class as row" in shown
    torch.testing.assert_close(names["output"], names["run"].predict()["output"], rtol=1e-5, atol=1e-5)
    assert names["limited"].metrics["finished"]
    assert (tmp_path / "both.html").is_file()
