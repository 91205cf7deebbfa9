"""Run a rank's command so that it is killed when its launcher dies. A script that imports neither siafu nor torch.

    python -I -S die_with_parent.py LAUNCHER_PID COMMAND ...

The kernel kills this process when the thread that started it ends (PR_SET_PDEATHSIG); this survives exec. Standard
output is redirected to standard error, since the launcher prints its result on standard output.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to the life of its launcher and execute the command."""
    launcher, *command = sys.argv[1:]
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit("siafu: prctl(PR_SET_PDEATHSIG) failed: ranks need Linux")
    if os.getppid() != int(launcher):
        sys.exit(1)  # the launcher died before prctl
    with open(os.devnull) as nothing:  # noqa: PTH123 (pathlib is slow to import)
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"siafu: cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
