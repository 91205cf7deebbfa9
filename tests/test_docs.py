"""The documents tell the truth about the code."""

import re
from pathlib import Path

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
