"""Whole runs among simulated clients, through the command line and Python."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import command

import siafu
from siafu.graph import Graph
from siafu.training.procedure import Callbacks

DATA = "community:nodes=240,degree=8,classes=3,features=12"
LAZY: dict[str, Any] = {"method": "lazy", "hidden": 8, "threads": 1, "epochs": 12}


def test_the_command_trains_one_client_per_node_and_reports_their_traffic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["lazy.clients=node", "lazy.recipe=logits", "lazy.participation=0.5", "lazy.away=0.2"]
    settings += ["comm.gradients=fp32"]
    given = [text for setting in settings for text in ("--set", setting)]
    out = tmp_path / "run"
    code, said, err = command(
        "train", DATA, "--method", "lazy", "--epochs", "30", *given, "--json", "--out", out, capsys=capsys
    )
    assert not code, err
    found = json.loads(said)
    assert found["clients"] == 240
    assert 0 < found["training_clients"] < 240
    assert 0 < found["bytes_per_client"] <= found["most_bytes_per_client"]
    assert found["bytes_per_training_client"] <= found["most_bytes_per_training_client"]
    assert found["message_bytes"] + found["parameter_bytes"] <= found["bytes_sent"]
    assert found["rounds"] == found["epochs"]
    assert found["level_seconds"]["proximity"] > found["level_seconds"]["data centre"] > 0
    assert found["test_accuracy"] > 0.5
    opened = siafu.open(out)
    assert opened.metrics["clients"] == 240
    assert not command("report", out, "--out", tmp_path / "report.html", capsys=capsys)[0]


def test_the_frugal_recipe_among_clients_reports_their_traffic_and_can_be_opened(
    tmp_path: Path, graph: Graph
) -> None:
    run = siafu.train(graph, out=tmp_path / "run", clients="node", recipe="frugal", **LAZY)
    found = run.metrics
    assert found["clients"] == 240
    assert 0 < found["bytes_per_training_client"] <= found["most_bytes_per_training_client"]
    assert found["parameter_bytes"] > 0
    assert found["message_bytes"] > 0
    assert found["test_accuracy"] > 0.5
    out = siafu.predict(siafu.open(tmp_path / "run"), graph)["output"]
    test = torch.as_tensor(graph.test_mask)
    right = (out.argmax(1) == torch.as_tensor(graph.y))[test].double().mean()
    assert float(right) == pytest.approx(found["test_accuracy"])


def test_a_number_of_clients_with_an_assignment_file(tmp_path: Path, graph: Graph) -> None:
    np.save(tmp_path / "owner.npy", np.arange(240) % 6)
    wire = {"comm": {"gradients": "fp32"}}
    by_file = wire | {"partition": {"by": str(tmp_path / "owner.npy")}}
    found = siafu.train(graph, out=tmp_path / "file", clients=6, config=by_file, **LAZY)
    assert found.metrics["clients"] == 6
    assert found.metrics["links"] == 30
    alone = siafu.train(graph, out=tmp_path / "alone", config=wire, **LAZY)
    assert found.metrics["test_accuracy"] == alone.metrics["test_accuracy"]
    assert found.metrics["stages"][0]["val_loss"] == pytest.approx(alone.metrics["stages"][0]["val_loss"])


def test_a_run_among_clients_is_stopped_and_resumed(tmp_path: Path, graph: Graph) -> None:
    settings: dict[str, Any] = LAZY | {"clients": 20, "away": 0.3, "participation": 0.5, "seed": 2}
    left = iter([None] * 14 + ["SIGTERM"])
    watching = Callbacks(lambda *_, **__: None, lambda: next(left, None))
    assert not siafu.train(graph, out=tmp_path / "run", callbacks=watching, **settings).metrics["finished"]
    found = siafu.resume(tmp_path / "run", graph=graph)
    wanted = siafu.train(graph, out=tmp_path / "undisturbed", **settings)
    for name, value in wanted.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], value), name
    for name in ("bytes_per_client", "bytes_by_label", "level_seconds", "most_bytes_per_link", "test_score"):
        assert found.metrics[name] == wanted.metrics[name], name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 0}, r"lazy\.clients is 0; expected none, node for one a node, or how many, from 1 on"),
        ({"clients": "nodes"}, r"lazy\.clients is 'nodes'; expected none, node"),
        ({"clients": 500}, "500 parts of 240 nodes; expected at least 1 part and a node for each"),
        ({"clients": "node", "ranks": 2, "engine": "local"}, "in one process, but ranks is 2; leave --ranks"),
        (
            {"clients": "node", "participation": 0.0},
            r"lazy\.participation is 0\.0; expected a number greater",
        ),
        ({"clients": "node", "quorum": 1.5}, r"lazy\.quorum is 1\.5; expected a number less"),
        ({"clients": "node", "away": 0.9, "quorum": 0.8}, r"stage 1: after 16 waits .* expected 192; lower"),
    ],
)
def test_invalid_settings_are_refused_with_advice(
    tmp_path: Path, graph: Graph, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        siafu.train(graph, out=tmp_path / "run", **LAZY, **settings)


def test_a_missed_quorum_ends_the_command_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", "lazy.clients=node", "--set", "lazy.away=0.5", "--set", "lazy.quorum=0.95"]
    code, _, err = command(
        "train", DATA, "--method", "lazy", *given, "--out", tmp_path / "run", capsys=capsys
    )
    assert code == 1
    assert "clients are available, expected 228; lower lazy.quorum" in err
    assert "fault of siafu" not in err
