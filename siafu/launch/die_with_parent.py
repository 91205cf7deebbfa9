"""Start a rank's command such that it does not outlive its launcher. Run as a script; it imports no siafu and no torch.

    python -I -S leash.py LAUNCHER_PID COMMAND ...

The kernel kills this process when the thread that started it ends; that holds through exec. Standard output becomes
standard error, since the launcher's own belongs to its result.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its launcher and become the command."""
    launcher, *command = sys.argv[1:]
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit("siafu: prctl(PR_SET_PDEATHSIG) failed: ranks need Linux")
    if os.getppid() != int(launcher):
        sys.exit(1)  # it died before it could be bound to
    with open(os.devnull) as nothing:  # noqa: PTH123 (pathlib is slow to import)
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"siafu: cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
