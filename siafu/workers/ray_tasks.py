"""Workers as Ray tasks, on a Ray cluster that exists. The one file of this room that names Ray."""

import logging
import threading

from siafu.extras import require_extra
from siafu.workers.lease import Lease
from siafu.workers.supervisor import LeaseError
from siafu.workers.worker import CannotServe, serve

with require_extra("pipeline.workers = ray", "ray"):
    import ray
    from ray.exceptions import RayError


class RayTasks:
    """A Ray task of one CPU per lease. Every node of the cluster needs siafu."""

    def __init__(self) -> None:
        connect("for workers")
        self._serve = ray.remote(num_cpus=1, max_retries=0)(_serve)
        self._lock = threading.Lock()
        self._running: set[ray.ObjectRef] = set()

    def hold(self, lease: Lease) -> None:
        """Have a Ray task serve a lease, when a node has room for it; raises LeaseError."""
        running = self._serve.remote(lease.to_json())
        with self._lock:
            self._running.add(running)
        try:
            refused = ray.get(running)
        except RayError as error:
            raise LeaseError(f"its Ray task was lost: {str(error).splitlines()[0]}") from error
        finally:
            with self._lock:
                self._running.discard(running)
        if refused:
            raise LeaseError(refused)

    def close(self) -> None:
        """End the tasks that still run or wait for room."""
        with self._lock:
            for running in self._running:
                ray.cancel(running, force=True)


def _serve(lease: str) -> str:
    """In the cluster: serve a lease; returns why it could not be."""
    try:
        serve(Lease.from_json(lease))
    except CannotServe as error:
        return str(error)
    return ""


def connect(to_do: str) -> None:
    """Join the cluster that ``RAY_ADDRESS`` names, or that runs on this host; raises ValueError where there is none."""
    if ray.is_initialized():
        return
    try:
        ray.init(address="auto", log_to_driver=True, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ValueError(
            f"there is no Ray cluster {to_do}: start one (ray start --head), or name one that exists in RAY_ADDRESS"
        ) from error
