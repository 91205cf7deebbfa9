"""The event log is a hash chain that any later writer continues."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from siafu.checksums import FIRST_SEAL, is_seal_valid, read_seal, seal_line
from siafu.event_log import EventLog
from siafu.results.read import LogProblems, stream_events


def write(path: Path, *phases: str) -> None:
    with closing(EventLog(path)) as events:
        for phase in phases:
            events.write(phase)


def read(path: Path) -> tuple[list[str], LogProblems]:
    found = LogProblems()
    return [event["phase"] for event in stream_events(path, found)], found


def test_a_line_is_json_and_bears_its_seal_last(tmp_path: Path) -> None:
    write(tmp_path / "e", "start")
    line = (tmp_path / "e").read_bytes().removesuffix(b"\n")
    assert list(json.loads(line)) == ["time", "rank", "phase", "seal"]
    assert is_seal_valid(line, FIRST_SEAL)
    assert not is_seal_valid(line, "1" * 16)


@pytest.mark.parametrize(
    "line", [b"", b"{}", b'{"seal":"0"}', b'{"a":1,"seal":"000000000000000g"}', b"\xff" * 40]
)
def test_a_line_without_a_seal_bears_none(line: bytes) -> None:
    assert read_seal(line) is None
    assert not is_seal_valid(line, FIRST_SEAL)


def test_writers_one_after_another_make_one_chain(tmp_path: Path) -> None:
    for phase in ("start", "resume", "end"):
        write(tmp_path / "e", phase)
    phases, found = read(tmp_path / "e")
    assert (phases, found.notes, found.damaged) == (["start", "resume", "end"], [], [])


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_chain_goes_on_after_a_line_that_a_kill_cut_off(tmp_path: Path, size: int) -> None:
    write(tmp_path / "e", "start", "epoch")
    with (tmp_path / "e").open("ab") as file:
        file.write(b'{"time":1,"text":"' + b"x" * size)
    write(tmp_path / "e", "resume", "epoch")
    phases, found = read(tmp_path / "e")
    assert phases == ["start", "epoch", "resume", "epoch"]
    assert (len(found.notes), found.damaged) == (1, [])


def test_a_cut_line_that_no_restart_follows_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "e", "start")
    with (tmp_path / "e").open("ab") as file:
        file.write(b'{"time":1')
    write(tmp_path / "e", "epoch")
    phases, found = read(tmp_path / "e")
    assert (phases, found.damaged) == (["start", "epoch"], [(2, 2)])


def test_an_event_of_another_file_gets_a_seal_of_this_one(tmp_path: Path) -> None:
    write(tmp_path / "there", "start", "epoch")
    write(tmp_path / "here", "note")
    with closing(EventLog(tmp_path / "here")) as events:
        for line in (tmp_path / "there").read_bytes().splitlines():
            events.copy(json.loads(line))
    phases, found = read(tmp_path / "here")
    assert (phases, found.damaged) == (["note", "start", "epoch"], [])


@pytest.mark.parametrize("plant", [Path.touch, lambda path: path.write_text("mine")])
def test_a_link_in_the_place_of_the_events_is_not_followed(
    tmp_path: Path, plant: Callable[[Path], object]
) -> None:
    plant(tmp_path / "secret")
    before = (tmp_path / "secret").read_text()
    (tmp_path / "e").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="e: is a symbolic link"):
        EventLog(tmp_path / "e")
    assert (tmp_path / "secret").read_text() == before


def test_a_seal_depends_on_the_line_and_on_the_seal_before() -> None:
    seals = {
        seal_line(line, before)[1] for line in (b'{"a":1}', b'{"a":2}') for before in ("0" * 16, "1" * 16)
    }
    assert len(seals) == 4
