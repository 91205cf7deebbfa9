"""The NumPy backend: runs tasks where there is no torch. It knows no rank, no graph, no wire."""

from siafu.workers.numpy_backend.compute import compute

__all__ = ["compute"]
