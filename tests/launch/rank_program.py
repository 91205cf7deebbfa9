"""A rank in a process: ``python rank_program.py WORK FOLDER [DEADLINE_S]``; writes its result to the folder."""

import json
import os
import signal
import sys
from pathlib import Path

from rank_work import STOPS, WORK

from siafu.launch.elastic import join
from siafu.launch.failures import report_errors

if __name__ == "__main__":
    name, folder, *deadline_s = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda number, _: STOPS.append(number))
    with (
        report_errors(os.environ),
        join(os.environ, deadline_s=float(deadline_s[0]) if deadline_s else 20.0, settings=name) as comm,
    ):
        print("this belongs to standard error under launch")
        (Path(folder) / f"{comm.rank}.json").write_text(json.dumps(WORK[name](comm)))
