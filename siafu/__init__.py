"""Train graph neural networks on ordinary CPU machines: a laptop, a cluster, serverless functions, several sites.

    import siafu
    graph = siafu.load("karate")
    run = siafu.train(graph, model="gcn")
    run.test_accuracy

Names are imported when first used, so that ``import siafu`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siafu.callback import Callback
    from siafu.data.importing import import_graph
    from siafu.dynamic import DynamicGraph, Snapshots
    from siafu.graph import Block, Graph
    from siafu.inference import Run, predict
    from siafu.inference import open_run as open
    from siafu.load_graph import load
    from siafu.loader import NeighborLoader
    from siafu.process_group import join, part_of
    from siafu.results.report.of_folders import report
    from siafu.run import resume, train
    from siafu.tuning import tune

__version__ = "0.1.0"
__all__ = [
    "Block",
    "Callback",
    "DynamicGraph",
    "Graph",
    "NeighborLoader",
    "Run",
    "Snapshots",
    "import_graph",
    "join",
    "load",
    "open",
    "part_of",
    "predict",
    "report",
    "resume",
    "train",
    "tune",
]

_HOMES = {
    "Block": ("siafu.graph", "Block"),
    "Callback": ("siafu.callback", "Callback"),
    "DynamicGraph": ("siafu.dynamic", "DynamicGraph"),
    "Graph": ("siafu.graph", "Graph"),
    "NeighborLoader": ("siafu.loader", "NeighborLoader"),
    "Run": ("siafu.inference", "Run"),
    "Snapshots": ("siafu.dynamic", "Snapshots"),
    "import_graph": ("siafu.data.importing", "import_graph"),
    "join": ("siafu.process_group", "join"),
    "load": ("siafu.load_graph", "load"),
    "open": ("siafu.inference", "open_run"),
    "part_of": ("siafu.process_group", "part_of"),
    "predict": ("siafu.inference", "predict"),
    "report": ("siafu.results.report.of_folders", "report"),
    "resume": ("siafu.run", "resume"),
    "train": ("siafu.run", "train"),
    "tune": ("siafu.tuning", "tune"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'siafu' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
