"""A run's folder is read back, whole or damaged."""

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_run import epoch_fields, write_run

from siafu.event_log import EventLog
from siafu.results.read import across_seeds, group_by_seed, read_run, summaries

Make = Callable[..., Path]


def change_lines(folder: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path = folder / "events.jsonl"
    path.write_bytes(b"\n".join(change(path.read_bytes().split(b"\n"))))


def test_a_finished_run_is_read_whole(make_run: Make) -> None:
    record = read_run(make_run("first", epochs=12))
    assert record.name == "first"
    assert record.config["model"]["hidden"] == 16
    assert record.metrics["test_accuracy"] == 0.8
    assert record.epochs.epoch.tolist() == list(range(1, 13))
    assert record.epochs.loss[3] == pytest.approx(epoch_fields(4)["loss"])
    assert record.epochs.rss_bytes.dtype == np.float64
    assert record.result is not None
    assert record.result.confusion.tolist() == [[8, 1, 1], [2, 6, 0], [0, 0, 0]]
    assert record.result.class_names[1] == "Case_Based"
    assert (record.stopped, record.data_name, record.notes) == ("done", "cora", ())
    assert record.damage == ()


def test_the_best_epoch_is_the_first_with_the_best_validation_score(make_run: Make) -> None:
    record = read_run(make_run(epochs=12))
    scores = [epoch_fields(epoch)["val_score"] for epoch in range(1, 13)]
    assert record.best_epoch == 1 + scores.index(max(scores))
    assert 1 < record.best_epoch < 12
    lower = read_run(make_run("error", epochs=12, metrics={"metric": "mae"}))
    assert lower.best_epoch == 1
    kept = read_run(make_run("kept", epochs=12, metrics={"best_epoch": 5}))
    assert kept.best_epoch == 5


def test_of_an_epoch_trained_twice_the_later_counts(make_run: Make) -> None:
    folder = make_run(epochs=4)
    events = EventLog(folder / "events.jsonl")
    events.write("resume", epoch=2)
    events.write("epoch", **epoch_fields(3) | {"loss": 0.25})
    events.close()
    record = read_run(folder)
    assert record.epochs.epoch.tolist() == [1, 2, 3]  # 4 came after the checkpoint and was not trained again
    assert record.epochs.loss[2] == 0.25
    assert record.stopped == ""


def test_repeated_epochs_without_a_resume_event_count_once(make_run: Make) -> None:
    folder = make_run(epochs=3)
    events = EventLog(folder / "events.jsonl")
    events.write("epoch", **epoch_fields(2) | {"loss": 0.5})
    events.close()
    record = read_run(folder)
    assert record.epochs.epoch.tolist() == [1, 2, 3]
    assert record.epochs.loss[1] == 0.5


def test_epochs_of_other_ranks_are_not_mixed_in(make_run: Make) -> None:
    folder = make_run(epochs=2)
    events = EventLog(folder / "events.jsonl", rank=1)
    events.write("epoch", **epoch_fields(2) | {"loss": 99.0})
    events.close()
    assert read_run(folder).epochs.loss.max() < 99


def test_scores_that_were_not_measured_are_nan(make_run: Make) -> None:
    folder = make_run(epochs=1)
    events = EventLog(folder / "events.jsonl")
    events.write("epoch", epoch=2, loss=math.nan, val_score=None)
    events.close()
    record = read_run(folder)
    assert np.isnan([record.epochs.loss[1], record.epochs.val_score[1], record.epochs.lr[1]]).all()
    assert record.best_epoch == 1


@given(cut=st.integers(1, 200))
def test_a_last_line_cut_anywhere_is_left_out_with_a_note(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    (folder / "config.toml").write_text("")
    events = EventLog(folder / "events.jsonl")
    events.write("epoch", **epoch_fields(1))
    events.write("epoch", **epoch_fields(2))
    events.close()
    path = folder / "events.jsonl"
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    path.write_bytes(whole[: min(second + cut, len(whole) - 2)])
    record = read_run(folder)
    assert record.epochs.epoch.tolist() == [1]
    assert any("events.jsonl, line 2: cut off" in note for note in record.notes)


def test_a_last_line_that_only_lacks_its_end_is_kept(make_run: Make) -> None:
    folder = make_run()
    path = folder / "events.jsonl"
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    record = read_run(folder)
    assert record.last("end")["test_accuracy"] == 0.8
    assert (record.notes, record.damage) == ((), ())


def test_an_event_appended_to_a_cut_line_by_the_resumed_run_is_found(make_run: Make) -> None:
    folder = make_run(epochs=2)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"time":17.5,"rank":0,"phase":"epo')
    events = EventLog(folder / "events.jsonl")
    events.write("resume", epoch=2)
    events.write("epoch", **epoch_fields(3))
    events.close()
    record = read_run(folder)
    assert record.epochs.epoch.tolist() == [1, 2, 3]
    assert record.last("resume")["epoch"] == 2
    assert (len(record.notes), record.damage) == (1, ())


@pytest.mark.parametrize("line", ["rubbish", "[]", "3", '{"phase":"epoch"}', '{"time":1,"phase":7}', "\xff"])
def test_a_damaged_line_is_named_with_file_and_number_and_the_rest_is_read(make_run: Make, line: str) -> None:
    folder = make_run(epochs=2)
    change_lines(folder, lambda lines: [lines[0], line.encode("latin-1"), *lines[1:]])
    record = read_run(folder)
    assert record.damage == ("events.jsonl, line 2: changed, damaged or out of place; left out here",)
    assert record.epochs.epoch.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "damaged", "epochs"),
    [
        (lambda lines: lines[:2] + lines[3:], "line 3", [1, 4]),
        (lambda lines: lines[1:], "line 1", [2, 3, 4]),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "lines 3 to 5", [1]),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], "line 3", [1, 2, 3, 4]),
        (
            lambda lines: [*lines[:2], lines[2].replace(b'"lr":0.01', b'"lr":0.02'), *lines[3:]],
            "line 3",
            [1, 3, 4],
        ),
    ],
    ids=["taken out", "first taken out", "swapped", "doubled", "changed"],
)
def test_lines_that_are_not_as_they_were_written_are_left_out_and_marked(
    make_run: Make, change: Callable[[list[bytes]], list[bytes]], damaged: str, epochs: list[int]
) -> None:
    folder = make_run(epochs=4)
    change_lines(folder, change)
    record = read_run(folder)
    assert record.damage == (f"events.jsonl, {damaged}: changed, damaged or out of place; left out here",)
    assert record.epochs.epoch.tolist() == epochs


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_of_events_goes_unnoticed(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int
) -> None:
    folder = write_run(tmp_path_factory.mktemp("flip") / "run", epochs=3)
    path = folder / "events.jsonl"
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    whole = read_run(folder).events
    path.write_bytes(data)
    record = read_run(folder)
    assert record.damage or record.notes or record.events == whole
    assert all(event in whole for event in record.events)


def test_events_cut_off_at_the_end_of_a_line_are_noticed_once_the_run_has_ended(make_run: Make) -> None:
    folder = make_run(epochs=4)
    change_lines(folder, lambda lines: [*lines[:3], b""])
    assert "the end of the run is missing" in read_run(folder).damage[0]
    (folder / "metrics.json").unlink()
    assert read_run(folder).damage == ()  # a kill may have done it


def test_very_many_damaged_places_are_counted_and_not_listed(make_run: Make) -> None:
    folder = make_run(epochs=60)
    change_lines(folder, lambda lines: [line for pair in enumerate(lines) for line in (pair[1], b"rubbish")])
    damage = read_run(folder).damage
    assert len(damage) == 21
    assert "more places are damaged" in damage[-1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epoch": "two"}, "an epoch event has epoch = 'two'; expected a whole number"),
        ({"epoch": 3, "loss": "low"}, "epoch 3 has loss = 'low'; expected a number"),
    ],
)
def test_a_wrong_field_of_an_epoch_is_named(make_run: Make, fields: dict[str, object], message: str) -> None:
    folder = make_run()
    events = EventLog(folder / "events.jsonl")
    events.write("epoch", **fields)
    events.close()
    with pytest.raises(ValueError, match=message):
        read_run(folder)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"confusion": [[1, 2]]}, "expected a square"),
        ({"confusion": [[1, 2], [3]]}, "not a table of whole numbers"),
        ({"confusion": [[1, -2], [3, 4]]}, "below zero"),
        ({"confusion": [[1]], "class_names": ["a", "b"]}, "2 class names for 1 classes"),
    ],
)
def test_a_damaged_confusion_matrix_is_refused(
    make_run: Make, result: dict[str, object], message: str
) -> None:
    folder = make_run()
    events = EventLog(folder / "events.jsonl")
    events.write("result", **result)
    events.close()
    with pytest.raises(ValueError, match=message):
        read_run(folder)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere: no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(
        ValueError, match=r"no config\.toml and no events\.jsonl; this is not the folder of a run"
    ):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"seed = = 1"),
        ("config.toml", b"\xff\xfe"),
        ("config.toml", b"seed = 1\n"),
        ("metrics.json", b'{"test_sc'),
        ("metrics.json", b"[1]"),
        ("metrics.json", b'{"test_score": 0.99}'),
        ("metrics.json", b"[" * 100_000),
    ],
)
def test_damaged_settings_and_metrics_are_left_out_and_named(
    make_run: Make, name: str, content: bytes
) -> None:
    folder = make_run()
    (folder / name).write_bytes(content)
    record = read_run(folder)
    assert len(record.damage) == 1
    assert record.damage[0].startswith(f"{name}: changed or damaged")
    assert (record.config if name == "config.toml" else record.metrics) == {}
    assert summaries([record])[0].damaged


def test_a_changed_number_in_the_metrics_is_noticed(make_run: Make) -> None:
    folder = make_run()
    text = (folder / "metrics.json").read_text()
    (folder / "metrics.json").write_text(text.replace('"test_score": 0.8', '"test_score": 0.9'))
    record = read_run(folder)
    assert summaries([record])[0].test_score is None
    assert "its numbers are left out" in record.damage[0]


def test_an_unfinished_run_is_read_with_a_note(make_run: Make) -> None:
    folder = make_run()
    (folder / "metrics.json").unlink()
    record = read_run(folder)
    assert record.metrics == {}
    assert "unfinished" in record.notes[0]
    assert summaries([record])[0].test_score is None
    assert summaries([record])[0].epoch_seconds == pytest.approx(0.011)


def test_a_run_killed_before_its_first_epoch_has_none(make_run: Make) -> None:
    folder = make_run()
    (folder / "events.jsonl").write_text("")
    (folder / "metrics.json").unlink()
    record = read_run(folder)
    assert len(record.epochs) == 0
    assert record.best_epoch is None
    assert summaries([record])[0].epochs == 0


def test_summaries_keep_order_and_name_the_baseline(make_run: Make) -> None:
    runs = [read_run(make_run(name, seed=seed)) for name, seed in (("b", 1), ("a", 0))]
    first, second = summaries(runs)
    assert (first.name, first.seed, first.test_score) == ("b", 1, pytest.approx(0.81))
    assert (second.name, second.baseline_score, second.stopped) == ("a", 0.57, "done")


def test_runs_that_differ_only_in_seed_are_one_group(make_run: Make) -> None:
    names = [("a", 0, 16), ("b", 0, 32), ("c", 1, 16)]
    runs = [read_run(make_run(name, seed=seed, hidden=hidden)) for name, seed, hidden in names]
    assert [[run.name for run in group] for group in group_by_seed(runs)] == [["a", "c"], ["b"]]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=8))
def test_mean_and_deviation_are_those_of_the_values(values: list[float]) -> None:
    spread = across_seeds([{"test_score": value, "seed": seed} for seed, value in enumerate(values)])
    assert list(spread) == ["test_score"]
    assert spread["test_score"].mean == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert spread["test_score"].std == pytest.approx(statistics.stdev(values), abs=1e-6)


def test_only_numbers_that_every_run_has_are_averaged() -> None:
    metrics = [{"a": 1, "b": 2.0, "model": "gcn", "done": True}, {"a": 3, "model": "gcn", "done": True}]
    assert across_seeds(metrics) == {"a": (2.0, pytest.approx(math.sqrt(2)))}
    assert across_seeds([]) == {}
    assert across_seeds([{"a": 4}])["a"] == (4.0, 0.0)
    assert across_seeds([{"a": math.inf}, {"a": 1.0}])["a"].mean == math.inf


def test_metrics_survive_the_way_through_json(make_run: Make) -> None:
    folder = make_run(metrics={"bytes_by_label": {"halo": 10}})
    written = json.loads((folder / "metrics.json").read_text())
    del written["checksum"]
    assert read_run(folder).metrics == written
