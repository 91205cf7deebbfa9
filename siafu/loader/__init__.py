"""Minibatches for models of PyTorch Geometric. It knows no model and trains nothing.

Reading order: ``neighbors`` (the loader), ``arguments`` (what it accepts), ``seeds`` (which nodes are in a minibatch),
``sources`` (what it draws from: a PyG Data, a Graph, the parts of several ranks).
"""

from siafu.loader.neighbor_loader import NeighborLoader

__all__ = ["NeighborLoader"]
