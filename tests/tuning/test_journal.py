"""The journal: whole lines of several writers, and nothing that was changed."""

import json
from pathlib import Path

import pytest

from siafu.tuning.journal import Journal


def test_records_of_several_writers_are_read_in_order(tmp_path: Path) -> None:
    one, two = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    one.append_logs([{"n": 0}, {"n": 1}])
    two.append_logs([{"n": 2}])
    one.append_logs([{"n": 3}])
    assert [record["n"] for record in two.read_logs(0)] == [0, 1, 2, 3]
    assert [record["n"] for record in one.read_logs(2)] == [2, 3]
    assert [record["n"] for record in Journal(tmp_path / "j").read_logs(0)] == [0, 1, 2, 3]


def test_a_line_that_a_kill_cut_off_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal(path).append_logs([{"n": 0}, {"n": 1}])
    path.write_bytes(path.read_bytes()[:-9])
    reader = Journal(path)
    assert [record["n"] for record in reader.read_logs(0)] == [0]
    Journal(path).append_logs([{"n": 2}])
    assert [record["n"] for record in reader.read_logs(0)] == [0, 2]


@pytest.mark.parametrize("change", [(b'"n":0', b'"n":7'), (b'"n"', b"\xff\xfe"), (b"{", b"")])
def test_a_changed_line_is_refused(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    path = tmp_path / "j"
    Journal(path).append_logs([{"n": 0}, {"n": 1}])
    path.write_bytes(path.read_bytes().replace(*change, 1))
    with pytest.raises(ValueError, match="j, line 1: changed or damaged"):
        list(Journal(path).read_logs(0))


def test_a_journal_is_plain_json_lines(tmp_path: Path) -> None:
    Journal(tmp_path / "j").append_logs([{"a": "x"}])
    (line,) = (tmp_path / "j").read_text().splitlines()
    assert json.loads(line).keys() == {"a", "seal"}
