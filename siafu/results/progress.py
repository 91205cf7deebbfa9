"""Show progress on standard error: bars on a terminal, updated lines in a notebook, else a line every few seconds.

Rich is imported only for a terminal; a notebook needs no widgets.
"""

import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TextIO

from siafu.results.format import fmt_dollars, fmt_seconds
from siafu.terminal import escape_control_chars

LINE_EVERY_S = 5.0
_NOTEBOOK_EVERY_S = 0.2


class ProgressState(NamedTuple):
    """The progress of one activity; ``total`` is None if it is unknown."""

    label: str
    done: int
    total: int | None
    detail: str = ""

    @property
    def line(self) -> str:
        """The progress as one line of plain text."""
        share = f" ({100 * self.done // self.total} %)" if self.total else ""
        count = f"{self.done}/{self.total}" if self.total is not None else f"{self.done}"
        return escape_control_chars(
            f"{self.label} {count}{share}" + (f"  {self.detail}" if self.detail else "")
        )


class ProgressDisplay(Protocol):
    """A place where progress is shown."""

    def show(self, state: ProgressState) -> None:
        """Show the newest state; a display may skip states."""

    def close(self) -> None:
        """Show the last state, and release the display."""


class LiveProgress:
    """A :class:`siafu.event_log.Progress` that is shown, with one bar per label; use it as a context manager."""

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = choose_display(sys.stderr if stream is None else stream, clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.close()

    def __call__(self, label: str, done: int, total: int | None) -> None:
        """Show that ``done`` of ``total`` units are done."""
        self._display.show(ProgressState(label, done, total))


class TrainingProgress(LiveProgress):
    """Shows epochs, too, with their loss, score, duration and cost."""

    def epoch(
        self,
        epoch: int,
        total: int | None,
        *,
        loss: float,
        val_score: float | None,
        seconds: float,
        dollars: float | None = None,
        value: float | None = None,
    ) -> None:
        """Show that ``epoch`` of ``total`` epochs are trained.

        ``seconds`` and ``dollars`` are the duration and cost of this epoch; ``value`` is 1 / (seconds x dollars).
        """
        val = "" if val_score is None else f"  validation {val_score:.4f}"
        cost = "" if dollars is None else f"  {fmt_dollars(dollars)}/epoch"
        worth = "" if value is None else f"  V {value:.4g}"
        detail = f"loss {loss:.4f}{val}  {fmt_seconds(seconds)}/epoch{cost}{worth}"
        self._display.show(ProgressState("training", epoch, total, detail))


def choose_display(stream: TextIO, clock: Callable[[], float]) -> ProgressDisplay:
    """Choose the display: a notebook's, a terminal's, or lines."""
    if in_notebook():
        return NotebookDisplay(clock)
    return BarDisplay(stream) if stream.isatty() else LineDisplay(stream, clock)


def in_notebook() -> bool:
    """Return whether this program runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class LineDisplay:
    """Writes a line every few seconds at most, and the last line of each label."""

    def __init__(self, stream: TextIO, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._written_at = clock()
        self._waiting: ProgressState | None = None

    def show(self, state: ProgressState) -> None:
        """Write the state if a line is due, else keep it as the newest."""
        if self._waiting is not None and self._waiting.label != state.label:
            self._write(self._waiting)
        self._waiting = state
        if self._clock() - self._written_at >= LINE_EVERY_S:
            self._write(state)

    def close(self) -> None:
        """Write the newest state if it is not written yet."""
        if self._waiting is not None:
            self._write(self._waiting)

    def _write(self, state: ProgressState) -> None:
        self._stream.write(state.line + "\n")
        self._stream.flush()
        self._written_at = self._clock()
        self._waiting = None


class NotebookDisplay:
    """Lines below the cell, updated in place; only IPython is needed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shown_at = float("-inf")
        self._lines: dict[str, str] = {}
        self._handle: Any = None

    def show(self, state: ProgressState) -> None:
        """Update the line of this label, a few times a second at most."""
        self._lines[state.label] = state.line
        if self._clock() - self._shown_at >= _NOTEBOOK_EVERY_S:
            self._shown_at = self._clock()
            self._update()

    def close(self) -> None:
        """Show the last state."""
        if self._lines:
            self._update()

    def _update(self) -> None:
        display = import_module("IPython.display").display
        bundle = {"text/plain": "\n".join(self._lines.values())}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


class BarDisplay:
    """One bar per label, drawn by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[detail]}", style="dim"),
        )
        self._bars = Progress(*columns, console=Console(file=stream))
        self._tasks: dict[str, Any] = {}

    def show(self, state: ProgressState) -> None:
        """Move the bar of this label."""
        from rich.markup import escape

        if not self._tasks:
            self._bars.start()
        if state.label not in self._tasks:
            self._tasks[state.label] = self._bars.add_task(
                escape(escape_control_chars(state.label)), total=state.total, detail=""
            )
        self._bars.update(
            self._tasks[state.label],
            completed=state.done,
            total=state.total,
            detail=escape(escape_control_chars(state.detail)),
        )

    def close(self) -> None:
        """Draw the bars a last time and leave them on the screen."""
        if self._tasks:
            self._bars.stop()
