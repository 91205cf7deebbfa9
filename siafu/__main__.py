"""The command ``siafu``, also ``python -m siafu``.

Signals are handled, and OpenMP is set up, before the command line is loaded.
"""

import os

from siafu.cores import thread_environ
from siafu.interpreter import run_and_exit
from siafu.signals import exit_on_signal


def main() -> None:
    """Run the command in this process, which goes on."""
    with exit_on_signal():
        os.environ.update(thread_environ(os.environ))
        from siafu import cli

        cli.main()


def command() -> None:
    """Run the command and end this process."""
    run_and_exit(main)


if __name__ == "__main__":
    command()
