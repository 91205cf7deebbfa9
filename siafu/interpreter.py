"""Start and end the Python of a command without work that nobody waits for. Only the standard library is used.

While modules are imported, the garbage collector finds nothing and visits everything; at the end, Python takes torch
apart object by object. Together that is half a second of every process.
"""

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Import modules without garbage collection; later collections do not visit what was imported."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


def run_and_exit(main: Callable[[], None]) -> None:
    """Run the main function of this process and end it: exit handlers run, and output is flushed.

    Under a tracer or a profiler, with threads that Python would wait for, or with output that cannot be written, Python
    ends as usual.
    """
    code = 0
    try:
        main()
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            raise  # a message, which Python prints
        code = ended.code or 0
    if sys.gettrace() is None and sys.getprofile() is None and not _awaited_threads():
        signal.pthread_sigmask(
            signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT)
        )  # all is done: the exit code stands
        atexit._run_exitfuncs()
        if _flush():
            os._exit(code & 0xFF)
    sys.exit(code)


def _awaited_threads() -> list[threading.Thread]:
    """Return the threads whose end Python awaits."""
    return [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]


def _flush() -> bool:
    """Flush standard output and standard error; returns whether all was written."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return False
    return True
