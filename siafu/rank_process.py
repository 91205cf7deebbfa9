"""The program of a rank process of ``ProcessEngine``: ``python -m siafu.rank_process [RUN PARTS [--resumed]]``.

Without arguments it waits for them, see :mod:`siafu.launch.late_arguments`.
"""

import json
import os
import signal
import sys
from pathlib import Path

from siafu.interpreter import quick_imports, run_and_exit

with quick_imports():
    from siafu.config import parse_toml
    from siafu.files import write_atomically
    from siafu.launch.elastic import join
    from siafu.launch.failures import report_errors
    from siafu.launch.late_arguments import wait_for_arguments
    from siafu.rank import train_in_group
    from siafu.run_folder import existing_folder


def main(arguments: list[str]) -> None:
    """Train as one rank of a group on this host; rank 0 writes the metrics into the run's folder."""
    received: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # stop after this epoch
        signal.signal(number, lambda number, _: received.append(signal.Signals(number).name))
    arguments = arguments or wait_for_arguments(os.environ)
    folder, parts = existing_folder(Path(arguments[0])), Path(arguments[1])
    deadline = parse_toml(folder.read_config()).comm.deadline
    with join(os.environ, deadline_s=deadline, settings=folder.config_checksum()) as comm:
        metrics = train_in_group(
            comm,
            folder=folder.path,
            parts=parts,
            resumed="--resumed" in arguments,
            should_stop=lambda: next(iter(received), None),
        )
        if comm.rank == 0:
            write_atomically(folder.measured, json.dumps(metrics).encode())


def _program() -> None:
    with report_errors(os.environ):
        main(sys.argv[1:])


if __name__ == "__main__":
    run_and_exit(_program)
