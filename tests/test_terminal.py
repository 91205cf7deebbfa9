"""Control characters in names are escaped wherever text goes to a terminal."""

import io
import sys
from pathlib import Path

import pytest

from siafu import cli
from siafu.cli import output
from siafu.launch import failures
from siafu.results.progress import BarDisplay, LineDisplay, ProgressState
from siafu.terminal import escape_control_chars

EVIL = "a\x1b]0;owned\x07\x9b2J\rb\u202e"
TAMED = "a\\x1b]0;owned\\x07\\x9b2J\\rb\\u202e"


def test_control_characters_are_written_out() -> None:
    assert escape_control_chars(EVIL) == TAMED


@pytest.mark.parametrize(
    "text", ["two\nlines\tand a tab", "größer 中文 ✓", "10\u202f000", "می\u200cخواهم", ""]
)
def test_text_of_any_language_stays(text: str) -> None:
    assert escape_control_chars(text) == text


def test_a_file_name_that_is_no_text_can_be_printed() -> None:
    assert (
        escape_control_chars(b"\xff.csv".decode("utf-8", "surrogateescape")).encode("utf-8") == b"\\udcff.csv"
    )


def test_an_error_of_the_command_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["siafu", "report", str(tmp_path / EVIL)])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr().err
    assert f"{TAMED}: no such folder" in said
    assert not set("\x1b\x07\x9b\r\u202e") & set(said)


def test_results_and_messages_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    output.say(EVIL)
    output.print_result({}, False, EVIL)
    said = capsys.readouterr()
    assert (said.err, said.out) == (f"{TAMED}\n", f"{TAMED}\n")


def test_the_error_of_a_rank_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    failures._print_error({"RANK": "1"}, ValueError(EVIL))
    said = capsys.readouterr().err
    assert TAMED in said
    assert "\x1b" not in said


def test_progress_is_escaped() -> None:
    lines, bars = io.StringIO(), io.StringIO()
    line = LineDisplay(lines, lambda: 0.0)
    for outlet in (line, BarDisplay(bars)):
        outlet.show(ProgressState(EVIL, 1, 2, EVIL))
        outlet.close()
    for shown in (lines.getvalue(), bars.getvalue()):
        assert "owned" in shown
        assert not {"\x07", "\x9b", "\u202e"} & set(shown)
    assert lines.getvalue() == f"{TAMED} 1/2 (50 %)  {TAMED}\n"
