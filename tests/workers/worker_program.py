"""A worker process for tests: serves the lease on standard input with the stub tasks' compute function."""

import sys

from stub_tasks import computing

from siafu.workers.lease import Lease
from siafu.workers.worker import CannotServe, serve

try:
    serve(Lease.from_json(sys.stdin.read()), computing(float(sys.argv[1])))
except CannotServe as error:
    sys.exit(str(error))
