"""Ctrl-C (SIGINT) and SIGTERM end a command with exit code 130 or 143 and a line that says how to go on.

It imports nothing beyond the standard library, so that signals are handled before anything else is loaded.
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
    """A signal asks the command to end at once; a note says how to go on with its run, where there is one."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = exit_code(signal.Signals(number).name)


def exit_code(reason: str | None) -> int:
    """The exit code of a command that ``reason`` has stopped; 0 where that is no signal."""
    return 128 + signal.Signals[reason] if reason in [number.name for number in SIGNALS] else 0


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Within, a signal raises SignalInterrupt; it becomes one line on standard error and its exit code.

    The exit code stays that of the signal where other code turns SignalInterrupt into an error of its own or loses it,
    as finalizers do.
    """
    stopped: list[SignalInterrupt] = []

    def stop(number: int, _: FrameType | None) -> NoReturn:
        stopped.append(SignalInterrupt(number))
        raise stopped[0]

    with _handled(stop):
        try:
            yield
        except SignalInterrupt as stop_requested:
            _tell(stop_requested)
            sys.exit(stop_requested.exit_code)
        except BaseException:
            if stopped:
                sys.exit(stopped[0].exit_code)
            raise
        if stopped:
            sys.exit(stopped[0].exit_code)


@contextmanager
def resume_hint(command: str) -> Iterator[None]:
    """Whatever interrupts a run within carries a note with the command that resumes it, the innermost one."""
    try:
        yield
    except (KeyboardInterrupt, SignalInterrupt) as stop:
        if not getattr(stop, "__notes__", []):
            stop.add_note(f"go on with: {command}")
        raise


@contextmanager
def deferred_stop(notice: str = "") -> Iterator["DeferredStop"]:
    """Within, a signal may wait for a good moment, of which ``notice`` tells the user; see :class:`DeferredStop`."""
    found = DeferredStop()
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def stop(number: int, frame: FrameType | None) -> None:
        earlier = before[signal.Signals(number)]
        if found.accept(number):
            os.write(2, f"\n{notice}\n".encode() if notice else b"")  # print may be at work just now
        elif callable(earlier):
            earlier(number, frame)

    with _handled(stop):
        yield found


class DeferredStop:
    """Before :meth:`begin` a signal acts at once; afterwards the first one is kept as :attr:`reason` to stop."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._begun = False

    def begin(self) -> None:
        """From now on somebody looks at :attr:`reason` after each epoch."""
        self._begun = True

    def accept(self, number: int) -> bool:
        """Keep a signal for later; whether that is how it is to be handled."""
        if not self._begun or self.reason is not None:
            return False
        self.reason = signal.Signals(number).name
        return True


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have a handler for both signals; Python allows that in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _tell(stop: SignalInterrupt) -> None:
    """Say in one line what ended the command, and how to go on."""
    print("; ".join([f"stopped by {stop}", *getattr(stop, "__notes__", [])]), file=sys.stderr)
