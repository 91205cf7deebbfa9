"""Workers as Ray tasks, on an existing Ray cluster. The only file of this package that imports Ray."""

import logging
import threading

from siafu.extras import require_extra
from siafu.workers.lease import Lease
from siafu.workers.supervisor import LeaseError
from siafu.workers.worker import CannotServe, serve

with require_extra("pipeline.workers = ray", "ray"):
    import ray
    from ray.exceptions import RayError


class RayPlatform:
    """Runs one Ray task of one CPU per lease. Every node of the cluster needs siafu."""

    def __init__(self) -> None:
        connect("for workers")
        self._serve = ray.remote(num_cpus=1, max_retries=0)(_serve)
        self._lock = threading.Lock()
        self._running: set[ray.ObjectRef] = set()

    def run_worker(self, lease: Lease) -> None:
        """Run a Ray task with a lease, once a node has room for it; raises LeaseError."""
        running = self._serve.remote(lease.to_json())
        with self._lock:
            self._running.add(running)
        try:
            reason = ray.get(running)
        except RayError as error:
            raise LeaseError(f"its Ray task was lost: {str(error).splitlines()[0]}") from error
        finally:
            with self._lock:
                self._running.discard(running)
        if reason:
            raise LeaseError(reason)

    def close(self) -> None:
        """Cancel the tasks that still run or wait for room."""
        with self._lock:
            for running in self._running:
                ray.cancel(running, force=True)


def _serve(lease: str) -> str:
    """Serve a lease, on a node of the cluster; returns the reason if it could not be served."""
    try:
        serve(Lease.from_json(lease))
    except CannotServe as error:
        return str(error)
    return ""


def connect(purpose: str) -> None:
    """Join the cluster in ``RAY_ADDRESS``, or the one on this host; raises ValueError if there is none."""
    if ray.is_initialized():
        return
    try:
        ray.init(address="auto", log_to_driver=True, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ValueError(
            f"there is no Ray cluster {purpose}: start one (ray start --head), or name one that exists in RAY_ADDRESS"
        ) from error
