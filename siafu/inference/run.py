"""``Run``: what training returns, with methods for its predictions, history and report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from siafu.inference.prediction import predict
from siafu.inference.pyg_model import PygModel, to_pyg
from siafu.inference.trained_run import TrainedRun, open_as
from siafu.results.read import read_run
from siafu.results.record import ConfusionMatrix
from siafu.results.report.of_folders import report


class Run(TrainedRun):
    """A trained model with its metrics, predictions, history and report."""

    @property
    def history(self) -> dict[str, NDArray[Any]]:
        """The epochs as columns by name, such as ``epoch``, ``loss`` and ``val_score``, each (T,).

        ``pandas.DataFrame(run.history)`` makes a table of them. Values that an epoch lacks are NaN; columns without any
        value are left out.
        """
        self._check_one_seed("history")
        columns = vars(read_run(self.directory).epochs)
        return {
            name: column for name, column in columns.items() if name == "epoch" or not np.isnan(column).all()
        }

    def predict(self, graph: Any = None, **options: Any) -> dict[str, Tensor]:
        """Predict for every node of a graph, by default the one it was trained on; see :func:`siafu.predict`."""
        return predict(self, graph, **options)

    def embeddings(self, graph: Any = None) -> Tensor:
        """Compute the rows that the last layer reads, for every node of a graph: (N, H)."""
        return predict(self, graph, embeddings=True)["embedding"]

    def confusion(self) -> ConfusionMatrix:
        """Return the confusion matrix of the test nodes."""
        self._check_one_seed("confusion matrix")
        found = read_run(self.directory).result
        if found is None:
            wanted = "one class a node or event, some of them in the test split"
            raise ValueError(
                f"{self.directory}: has no confusion matrix; expected a finished run of {wanted}"
            )
        return found

    def report(self, out: Path | str = "report.html") -> Path:
        """Write a self-contained HTML page about the run; returns its path."""
        return report(self, out=out)

    def to_pyg(self) -> PygModel:
        """Make a plain PyG model with the same outputs: a module of (x, edge_index, edge_weight=None).

        It has a copy of the weights in layers of torch_geometric, and prepares features as the run did, so
        ``run.to_pyg()(data.x, data.edge_index)`` is ``run.predict()["output"]`` to rounding. Models of kind gcn, sage,
        gat, gatv2, gin and mlp are converted, with their norms, skip connections and jumping knowledge; other models
        are refused. Outputs are those before correct-and-smooth.
        """
        return to_pyg(self)

    def with_graph(self, graph: Any) -> "Run":
        """Return the same run, which remembers the graph that training was given, unless that was a name."""
        return self if graph is None or isinstance(graph, str | Path) else replace(self, graph=graph)

    def _check_one_seed(self, what: str) -> None:
        if self.settings.seeds > 1:
            one = self.directory / "seed-0"
            raise ValueError(
                f"{self.directory}: holds {self.settings.seeds} runs, each with a {what} of its own; open one: "
                f"siafu.open({str(one)!r})"
            )


def open_run(run: Path | str, *, model: nn.Module | None = None) -> Run:
    """Load a finished run; give ``model`` if it trained a module of your own."""
    return open_as(Run, run, model=model)
