"""The program of one rank process, which the command starts: ``python -m siafu.rank RUN PARTS [--resumed]``."""

import json
import logging
import os
import signal
import sys
from pathlib import Path

from siafu.engine.elastic import join
from siafu.folder import existing_folder
from siafu.member import Assignment, Onlooker, carry_out
from siafu.partition.deliver import deliver
from siafu.partition.parts import open_partition
from siafu.settings import parse_toml
from siafu.store.tensors import write_atomically


def main(arguments: list[str]) -> None:
    """Train as one rank of a group on this host."""
    folder, parts = existing_folder(Path(arguments[0])), Path(arguments[1])
    text = folder.read_config()
    received: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # stop after this epoch
        signal.signal(number, lambda number, _: received.append(signal.Signals(number).name))
    tree, run = parse_toml(text), folder.config_checksum()
    with join(os.environ, deadline_s=tree.comm.deadline, settings=run) as comm:
        first = comm.rank == 0
        here = {
            "edges": sum(spec.arrays["indices"].shape[0] for spec in open_partition(parts).manifest.parts),
            "resumed": "--resumed" in arguments or folder.events.is_file(),
            "checkpointed": folder.checkpoint.is_file(),
        }  # as rank 0 sees it before anything is written
        facts = json.loads(comm.broadcast_text(json.dumps(here) if first else None, label="control"))
        to_do = Assignment(tree, run, **facts)
        onlooker = Onlooker(should_stop=lambda: next(iter(received), None))
        found, _ = carry_out(
            comm, deliver(comm, parts), to_do, folder=folder if first else None, onlooker=onlooker
        )
        if first:
            write_atomically(folder.measured, json.dumps(found).encode())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception:  # join has reported it to the command, which tells the user
        if logging.getLogger("siafu").isEnabledFor(logging.DEBUG):
            raise
        sys.exit(1)
