"""The settings that ``help(siafu.train)`` lists are those of the settings page, which is a part of the package."""

import pydoc
from pathlib import Path

import siafu
from siafu.config import Config
from siafu.settings_page import PAGE, read_settings, settings_help

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_in_the_package_is_the_page_of_the_docs() -> None:
    assert PAGE.resolve() == (DOCS / "settings.md").resolve()


def test_every_setting_is_read_with_its_meaning() -> None:
    found = {(setting.table, key) for setting in read_settings() for key in setting.keys if setting.meaning}
    expected = set()
    for name, info in Config.model_fields.items():
        fields = getattr(info.annotation, "model_fields", None)
        expected |= {("", name)} if fields is None else {(name, key) for key in fields}
    assert found == expected


def test_the_help_of_train_lists_settings_with_default_and_meaning() -> None:
    text = pydoc.render_doc(siafu.train, renderer=pydoc.plaintext)
    assert "Train a model on a graph" in text
    assert "Table model:" in text
    assert "hidden (64): width of hidden layers, of all heads together" in text
    assert settings_help().splitlines()[1].strip() in text


def test_the_help_has_plain_text() -> None:
    assert not {"`", "](", "|"} & set(settings_help())
    assert "](" not in settings_help()
