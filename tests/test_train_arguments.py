"""Arguments of siafu.train of other types: converted, or refused with advice."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import siafu
from siafu import native
from siafu.graph import Block, Graph

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    from torch_geometric.data import Data, HeteroData, TemporalData
    from torch_geometric.nn import GCN

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def data(**more: Any) -> Data:
    mask = torch.tensor([1, 1, 0, 0, 0, 0], dtype=torch.bool)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 0, 3, 2, 5, 4]])
    fields = {"x": torch.eye(6), "y": torch.tensor([0, 1] * 3), "edge_index": edges}
    return Data(**fields, train_mask=mask, val_mask=mask.roll(2), test_mask=mask.roll(4), **more)


def test_a_pyg_data_is_trained_on_as_the_graph_that_it_is(tmp_path: Path) -> None:
    given, converted = (
        siafu.train(graph, epochs=2, out=tmp_path / name)
        for name, graph in (("given", data()), ("converted", Graph.from_pyg(data())))
    )
    assert given.metrics["test_score"] == converted.metrics["test_score"]
    assert given.settings.fingerprint == converted.settings.fingerprint


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (None, "the graph is a NoneType; expected a siafu Graph"),
        ([[0], [1]], "the graph is a list; expected"),
        (HeteroData(), "for HeteroData call to_homogeneous"),
        (data(edge_attr=torch.ones(6, 2)), r"has edge_attr \(6, 2\).*del data.edge_attr"),
        (TemporalData(src=torch.tensor([0])), "has no dst"),
    ],
)
def test_other_types_than_graphs_are_refused_before_anything_is_written(
    graph: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        siafu.train(graph, epochs=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class _ReadsEdges(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


class _ReadsABlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = GCN(6, 4, 2, 2)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        return self.inner(x, torch.stack([block.indices.long(), block.row_edge.long()]))


@pytest.mark.parametrize("module", [GCN(6, 4, 2, 2), _ReadsEdges()])
def test_a_module_that_reads_edges_is_refused(module: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"which reads \(x, edge_index\); siafu.train calls .* \(block, x\)"):
        siafu.train(Graph.from_pyg(data()), model=module, epochs=1, out=tmp_path / "run")


def test_a_module_that_hands_edges_of_the_block_to_another_library_trains(tmp_path: Path) -> None:
    run = siafu.train(data(), model=_ReadsABlock(), epochs=1, out=tmp_path / "run")
    assert run.metrics["epochs"] == 1


@pytest.mark.parametrize("fanout", [10**6 + 1, 10**30])
def test_an_absurd_fanout_is_refused(fanout: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="numbers from 1 to 1000000, or -1 for all in-edges"):
        siafu.train(data(), method="sampled", fanout=(fanout, 2), out=tmp_path / "run")
    with pytest.raises(ValueError, match="whole numbers up to 1000000"):
        siafu.NeighborLoader(data(), [fanout])


def test_features_of_no_column_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"x is \(3, 0\); expected at least one feature.*leave the features out"
    ):
        Graph.from_edges([[0], [1]], x=torch.empty(3, 0))


def test_a_run_without_the_compiled_core_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Graph.from_pyg(data())
    siafu.train(graph, epochs=1, out=tmp_path / "quick")
    assert "compiled core not found" not in capsys.readouterr().err
    monkeypatch.setattr(native.core, "kernels", None)
    siafu.train(graph, epochs=1, out=tmp_path / "slow")
    said = [line for line in capsys.readouterr().err.splitlines() if "compiled core not found" in line]
    assert len(said) == 1
    assert "about ten times slower; reinstall siafu" in said[0]


def test_no_benchmark_runs_without_the_compiled_core() -> None:
    program = (
        "from siafu import native; native.core.kernels = None; from core import require_core; require_core()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=BENCHMARKS, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 1
    assert "compiled core not found" in ended.stderr
    # a side is started by another benchmark, under the Python of the system that it measures
    started = [path for path in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in path.read_text()]
    unguarded = {path.name for path in started if "require_core()" not in path.read_text()}
    sides = {name for name in unguarded if name.endswith("side.py")}
    assert unguarded - sides == {"capture.py", "function_server.py", "relay.py"}
