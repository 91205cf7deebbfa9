"""A worker process of tests: serves the lease on its standard input with the known tasks' compute."""

import sys

from known_tasks import computing

from siafu.workers.lease import Lease
from siafu.workers.worker import CannotServe, serve

try:
    serve(Lease.from_json(sys.stdin.read()), computing(float(sys.argv[1])))
except CannotServe as error:
    sys.exit(str(error))
