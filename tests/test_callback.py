"""Callbacks of users: their hooks, their order, stops, errors; and progress that verbose shows or hides."""

from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.config import Config
from siafu.graph import Graph

QUICK: dict[str, Any] = {"epochs": 3, "hidden": 4, "search": "off", "evaluate_every": 2}


class Recorder(siafu.Callback):
    """Records each call."""

    def __init__(self, stop_at: int = 0) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.logs: list[dict[str, Any]] = []
        self.stop_at = stop_at

    def on_train_start(self, directory: Path, settings: Config) -> None:
        self.calls.append(("start", (directory, settings.model.hidden)))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        self.calls.append(("epoch", epoch))
        self.logs.append(logs)

    def should_stop(self) -> bool:
        self.calls.append(("stop?", None))
        return bool(self.stop_at) and self.calls[-2] == ("epoch", self.stop_at)

    def on_train_end(self, run: siafu.Run) -> None:
        self.calls.append(("end", run))

    @property
    def epochs(self) -> list[int]:
        return [value for name, value in self.calls if name == "epoch"]


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_hooks_are_called_in_the_order_of_training(graph: Graph, tmp_path: Path, engine: str) -> None:
    seen = Recorder()
    run = siafu.train(graph, out=tmp_path / "run", callbacks=[seen], engine=engine, **QUICK)
    assert seen.calls[0] == ("start", (tmp_path / "run", 4))
    assert seen.epochs == [1, 2, 3]
    assert [name for name, _ in seen.calls] == ["start", *["epoch", "stop?"] * 3, "end"]
    assert seen.calls[-1][1] is run
    assert [logs["epochs"] for logs in seen.logs] == [3, 3, 3]
    assert [logs["loss"] for logs in seen.logs] == pytest.approx(run.history["loss"].tolist())
    assert [logs["val_score"] is None for logs in seen.logs] == [True, False, False]
    assert all(logs["seconds"] > 0 for logs in seen.logs)


def test_several_callbacks_are_called_and_all_of_them_to_the_end_of_the_epoch(
    graph: Graph, tmp_path: Path
) -> None:
    first, second = Recorder(stop_at=2), Recorder()
    siafu.train(graph, out=tmp_path / "run", callbacks=(first, second), **QUICK)
    assert first.epochs == second.epochs == [1, 2]
    assert [name for name, _ in first.calls] == [name for name, _ in second.calls]


def test_a_callback_stops_a_run_which_resume_continues(graph: Graph, tmp_path: Path) -> None:
    stopping = Recorder(stop_at=2)
    stopped = siafu.train(graph, out=tmp_path / "run", callbacks=[stopping], **QUICK)
    assert {key: stopped.metrics[key] for key in ("finished", "stopped_by", "epochs")} == {
        "finished": False,
        "stopped_by": "callback",
        "epochs": 2,
    }
    assert stopped.model is None
    assert stopping.calls[-1] == ("end", stopped)
    assert "a callback stopped it" in stopped.report(tmp_path / "page.html").read_text()
    resumed = Recorder()
    assert siafu.resume(tmp_path / "run", graph=graph, callbacks=[resumed]).metrics["finished"]
    assert resumed.epochs == [3]
    assert [name for name, _ in resumed.calls] == ["start", "epoch", "stop?", "end"]


def test_a_callback_stops_rank_processes(graph: Graph, tmp_path: Path) -> None:
    stopping = Recorder(stop_at=1)
    how = QUICK | {"epochs": 10**6, "patience": 0, "engine": "processes"}
    stopped = siafu.train(graph, out=tmp_path / "run", callbacks=[stopping], **how)
    assert (stopped.metrics["finished"], stopped.metrics["stopped_by"]) == (False, "callback")
    assert stopping.calls[-1] == ("end", stopped)


def test_an_error_in_a_callback_ends_the_run_which_resume_continues(graph: Graph, tmp_path: Path) -> None:
    class Fails(siafu.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
            raise RuntimeError("the disk of the callback is full")

    with pytest.raises(RuntimeError, match="the disk of the callback is full"):
        siafu.train(graph, out=tmp_path / "run", callbacks=[Fails()], **QUICK)
    assert siafu.resume(tmp_path / "run", graph=graph).metrics["finished"]


def test_all_seeds_are_reported_and_the_run_ends_once(graph: Graph, tmp_path: Path) -> None:
    seen = Recorder()
    siafu.train(graph, out=tmp_path / "run", callbacks=[seen], seeds=2, **QUICK)
    assert seen.epochs == [1, 2, 3, 1, 2, 3]
    assert [name for name, _ in seen.calls].count("end") == 1


def test_a_callback_may_be_given_alone_and_none_is_no_callback(graph: Graph, tmp_path: Path) -> None:
    seen = Recorder()
    siafu.train(graph, out=tmp_path / "one", callbacks=seen, **QUICK)
    assert seen.epochs == [1, 2, 3]
    assert siafu.train(graph, out=tmp_path / "none", callbacks=None, **QUICK).metrics["finished"]


@pytest.mark.parametrize("wrong", [Recorder, print, "epoch"])
def test_other_values_than_callbacks_are_refused(graph: Graph, tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(
        ValueError, match=r"callbacks has .*; expected instances of subclasses of siafu.Callback"
    ):
        siafu.train(graph, out=tmp_path / "run", callbacks=[wrong], **QUICK)
    assert not (tmp_path / "run").exists()


def test_a_search_refuses_callbacks_of_a_run(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"callbacks is a list; siafu.tune takes a siafu.training.procedure.Callbacks"
    ):
        siafu.tune(graph, trials=1, out=tmp_path / "search", callbacks=[Recorder()])  # type: ignore[arg-type]


def test_verbose_shows_what_is_trained_and_its_progress_in_a_script(
    graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Recorder()
    siafu.train(graph, out=tmp_path / "run", verbose=True, callbacks=[seen], **QUICK)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "240 nodes" in shown.err
    assert "training gcn for up to 3 epochs" in shown.err
    assert "training 3/3 (100 %)  loss" in shown.err
    assert seen.epochs == [1, 2, 3]


@pytest.mark.parametrize("verbose", [None, False])
def test_a_script_shows_nothing_unless_asked(
    graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str], verbose: bool | None
) -> None:
    siafu.train(graph, out=tmp_path / "run", verbose=verbose, **QUICK)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")


@pytest.mark.parametrize(("verbose", "is_shown"), [(None, True), (False, False), (True, True)])
def test_a_notebook_shows_progress_unless_told_not_to(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verbose: bool | None, is_shown: bool
) -> None:
    shown = list[str]()

    class Display:
        def show(self, state: Any) -> None:
            shown.append(state.line)

        def close(self) -> None: ...

    monkeypatch.setattr("siafu.run.in_notebook", lambda: True)
    monkeypatch.setattr("siafu.results.progress.choose_display", lambda *_: Display())
    siafu.train(graph, out=tmp_path / "run", verbose=verbose, **QUICK)
    assert [line.split("  ")[0] for line in shown] == [
        "training 1/3 (33 %)",
        "training 2/3 (66 %)",
        "training 3/3 (100 %)",
    ] * is_shown
