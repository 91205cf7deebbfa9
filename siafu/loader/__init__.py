"""A PyG-compatible NeighborLoader. It knows no model and trains nothing.

Reading order: ``neighbor_loader`` (the loader), ``arguments`` (the arguments it accepts), ``seeds`` (the nodes of a
minibatch), ``sample_source`` (a PyG Data, a Graph or the parts of several ranks to sample from).
"""

from siafu.loader.neighbor_loader import NeighborLoader

__all__ = ["NeighborLoader"]
