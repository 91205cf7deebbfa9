"""Handle Ctrl-C (SIGINT) and SIGTERM: a command ends with exit code 130 or 143 and a line that says how to go on.

This file imports the standard library alone, so that signals are handled before anything else is loaded.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalInterrupt(BaseException):
    """A signal ends the command at once; a note holds the command that resumes its run, if there is one."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = exit_code(signal.Signals(number).name)


def exit_code(reason: str | None) -> int:
    """Return the exit code of a command that the signal ``reason`` has stopped; 0 if that is no signal."""
    return 128 + signal.Signals[reason] if reason in [number.name for number in SIGNALS] else 0


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Turn a signal into SignalInterrupt, and that into one line on standard error and an exit code.

    The exit code is that of the signal even if other code turns SignalInterrupt into another error, or swallows it as
    finalizers do.
    """
    stopped: list[SignalInterrupt] = []

    def stop(number: int, _: FrameType | None) -> NoReturn:
        stopped.append(SignalInterrupt(number))
        raise stopped[0]

    with _with_handler(stop):
        try:
            yield
        except SignalInterrupt as stop_requested:
            _print_reason(stop_requested)
            sys.exit(stop_requested.exit_code)
        except BaseException:
            if stopped:
                sys.exit(stopped[0].exit_code)
            raise
        if stopped:
            sys.exit(stopped[0].exit_code)


@contextmanager
def resume_hint(command: str, *, outermost: bool = False) -> Iterator[None]:
    """Add a note with the command that resumes the run to an interrupt.

    The innermost one counts, unless one further out is ``outermost``: that of a command of many runs.
    """
    try:
        yield
    except (KeyboardInterrupt, SignalInterrupt) as stop:
        notes: list[str] = getattr(stop, "__notes__", [])
        if outermost:
            notes.clear()
        if not notes:
            stop.add_note(f"go on with: {command}")
        raise


@contextmanager
def deferred_stop(notice: str = "") -> Iterator["DeferredStop"]:
    """Defer the first signal, and print ``notice`` when it comes; see :class:`DeferredStop`."""
    deferred = DeferredStop()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def stop(number: int, frame: FrameType | None) -> None:
        earlier = before[signal.Signals(number)]
        if deferred.accept(number):
            os.write(
                2, f"\n{notice}\n".encode() if notice else b""
            )  # the signal may have interrupted a print
        elif callable(earlier):
            earlier(number, frame)

    with _with_handler(stop):
        yield deferred


class DeferredStop:
    """A stop at the end of an epoch: after :meth:`begin`, the first signal only becomes the :attr:`reason` to stop.

    Before, and from the second signal on, a signal ends the command at once.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._begun = False

    def begin(self) -> None:
        """Defer signals from now on: the training loop reads :attr:`reason` after each epoch."""
        self._begun = True

    def accept(self, number: int) -> bool:
        """Defer a signal; returns False if it must be handled at once."""
        if not self._begun or self.reason is not None:
            return False
        self.reason = signal.Signals(number).name
        return True


@contextmanager
def _with_handler(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Install a handler for both signals; Python allows that in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _print_reason(stop: SignalInterrupt) -> None:
    """Print in one line which signal ended the command, and how to go on."""
    print("; ".join([f"stopped by {stop}", *getattr(stop, "__notes__", [])]), file=sys.stderr)
