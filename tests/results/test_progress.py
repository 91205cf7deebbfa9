"""Progress is seen on a terminal and in a notebook, and is quiet elsewhere."""

import io
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from siafu.event_log import Progress
from siafu.results import progress
from siafu.results.progress import LiveProgress, TrainingProgress


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_a_line_comes_every_five_seconds_and_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    with LiveProgress(stream=stream, clock=clock) as show:
        for done in range(1, 13):
            clock.now += 1
            show("reading", done, 12)
    assert stream.getvalue().splitlines() == [
        "reading 5/12 (41 %)",
        "reading 10/12 (83 %)",
        "reading 12/12 (100 %)",
    ]


def test_a_line_already_written_is_not_written_again_at_the_end() -> None:
    stream, clock = io.StringIO(), Clock()
    with LiveProgress(stream=stream, clock=clock) as show:
        clock.now += 6
        show("reading", 7, None)
    assert stream.getvalue() == "reading 7\n"


def test_each_label_is_ended_before_the_next_begins() -> None:
    stream = io.StringIO()
    with LiveProgress(stream=stream, clock=Clock()) as show:
        for label in ("reading", "sorting"):
            show(label, 1, 2)
            show(label, 2, 2)
    assert stream.getvalue().splitlines() == ["reading 2/2 (100 %)", "sorting 2/2 (100 %)"]


def test_epochs_say_what_they_reached() -> None:
    stream, clock = io.StringIO(), Clock()
    with TrainingProgress(stream=stream, clock=clock) as show:
        show.epoch(3, 200, loss=0.51234, val_score=0.8, seconds=0.0123)
    assert stream.getvalue() == "training 3/200 (1 %)  loss 0.5123  validation 0.8000  12.3 ms/epoch\n"


def test_a_run_without_validation_shows_none() -> None:
    stream = io.StringIO()
    with TrainingProgress(stream=stream, clock=Clock()) as show:
        show.epoch(1, None, loss=1.0, val_score=None, seconds=2.0)
    assert stream.getvalue() == "training 1  loss 1.0000  2.00 s/epoch\n"


def test_nothing_is_written_when_nothing_happens() -> None:
    for stream in (io.StringIO(), Terminal()):
        with LiveProgress(stream=stream):
            pass
        assert stream.getvalue() == ""


def test_an_error_inside_passes_through_after_the_last_line() -> None:
    stream = io.StringIO()

    def work() -> None:
        with LiveProgress(stream=stream) as show:
            show("reading", 1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert stream.getvalue() == "reading 1/2 (50 %)\n"


def test_a_terminal_gets_bars_and_labels_are_not_markup() -> None:
    stream = Terminal()
    with TrainingProgress(stream=stream) as show:
        show("[bold]reading[/x]", 5, 10)
        show.epoch(7, 9, loss=0.5, val_score=0.75, seconds=0.2)
    written = stream.getvalue()
    assert "[bold]reading[/x]" in written
    assert "7/9" in written
    assert "0.7500" in written


def test_a_notebook_changes_its_lines_in_place_without_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            shown.append(("update", bundle["text/plain"]))

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(("display", bundle["text/plain"]))
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    _install(monkeypatch, "IPython", get_ipython=lambda: shell)
    _install(monkeypatch, "IPython.display", display=display)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    clock = Clock()
    with LiveProgress(clock=clock) as show:
        show("reading", 1, 3)
        show("reading", 2, 3)  # too soon to be shown
        show("reading", 3, 3)
    assert shown == [("display", "reading 1/3 (33 %)"), ("update", "reading 3/3 (100 %)")]


@pytest.mark.parametrize("shell", [None, types.SimpleNamespace()])
def test_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch, shell: Any) -> None:
    _install(monkeypatch, "IPython", get_ipython=lambda: shell)
    assert not progress.in_notebook()


def test_rich_is_imported_only_for_a_terminal() -> None:
    code = (
        "import io, sys; from siafu.results.progress import LiveProgress\n"
        "with LiveProgress(stream=io.StringIO()) as show: show('a', 1, 2)\n"
        "assert 'rich' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_it_is_a_progress_as_others_take_it() -> None:
    def work(tell: Progress) -> None:
        tell("reading", 1, None)

    stream = io.StringIO()
    with LiveProgress(stream=stream) as show:
        work(show)
    assert stream.getvalue() == "reading 1\n"


def _install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Callable[..., Any]) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
