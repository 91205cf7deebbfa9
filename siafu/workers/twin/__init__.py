"""The stages in NumPy alone: what a worker computes where there is no torch. It knows no rank, no graph, no wire."""

from siafu.workers.twin.compute import compute

__all__ = ["compute"]
