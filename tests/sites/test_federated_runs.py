"""A run over sites equals the run in one process with the same partition, and ledgers record all data that left."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trial_federation import NAMES, owners, serving, trained_here

from siafu.comm.transport import Envelope, Transfer
from siafu.graph import Graph
from siafu.launch.sites.ledger import read_ledger
from siafu.launch.sites.site_transport import SiteTransport
from siafu.sites.coordinator import FederationFailed
from siafu.training.procedure import Callbacks

pytestmark = pytest.mark.usefixtures("one_thread")

RUNS: dict[str, dict[str, Any]] = {
    "published": {"method": "lazy", "train.epochs": 8, "model.hidden": 16},
    "gcn in 8 bits": {
        "method": "lazy",
        "train.epochs": 5,
        "model.hidden": 16,
        "model.kind": "gcn",
        "lazy.bits": 8,
    },
    "frugal": {"method": "lazy", "lazy.recipe": "frugal"},
    "full": {"method": "full", "train.epochs": 6, "model.hidden": 16},
}


@pytest.mark.parametrize("what", RUNS)
def test_a_run_over_sites_equals_the_run_in_one_process_bit_for_bit(
    what: str, graph: Graph, tmp_path: Path
) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        run = trial.federate(**RUNS[what])
    here = trained_here(graph, tmp_path / "here", **RUNS[what])
    assert run.metrics["finished"]
    weights = [(each.directory / "model.safetensors").read_bytes() for each in (run, here)]
    assert weights[0] == weights[1]
    assert run.metrics["test_accuracy"] == here.metrics["test_accuracy"]
    assert run.metrics["ledger_bytes"] == run.metrics["bytes_sent"]


def test_edge_weights_are_used_at_sites(graph: Graph, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    weighted = replace(graph, edge_weight=torch.rand(graph.num_edges, generator=draw) + 0.5)
    with serving(tmp_path / "sites", weighted) as trial:
        run = trial.federate(**RUNS["published"])
    here = trained_here(weighted, tmp_path / "here", **RUNS["published"])
    plain = trained_here(graph, tmp_path / "plain", **RUNS["published"])
    weights = [(each.directory / "model.safetensors").read_bytes() for each in (run, here, plain)]
    assert weights[0] == weights[1]
    assert weights[1] != weights[2]


@pytest.mark.parametrize(
    ("settings", "encoded"),
    [
        (RUNS["full"], False),
        (RUNS["published"], False),
        (RUNS["full"] | {"comm.precision": "int8", "comm.gradients": "int8"}, True),
    ],
    ids=["full", "packed", "int8"],
)
def test_nan_and_infinity_are_refused_and_their_sender_is_named(
    settings: dict[str, Any], encoded: bool, graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = SiteTransport.send

    def spoil(
        self: SiteTransport, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False
    ) -> Transfer:
        if (
            self.hosts[self.rank] == "b"
            and envelope.label.startswith(("halo", "gradients"))
            and values.numel()
            and (values.dtype == torch.uint8 or not encoded)  # as bytes they look like any others
        ):
            values = spoiled(values)
        return sent(self, peer, envelope, values, copy=copy)

    monkeypatch.setattr(SiteTransport, "send", spoil)
    with serving(tmp_path / "sites", graph) as trial, pytest.raises(FederationFailed) as raised:
        trial.federate(**settings)
    assert re.search(
        r'[ac] cannot use what b sent: NaN or infinite numbers in "(halo|gradients)[ 1]*"', str(raised.value)
    )


def spoiled(values: Tensor) -> Tensor:
    """Values with an infinite number in them, however they are encoded."""
    values = values.clone()
    if values.is_floating_point():
        values.view(-1)[-1] = float("nan")
    elif values.dtype == torch.uint8 and values.dim() == 2:
        values[:, -4:] = torch.tensor([float("inf")]).view(torch.uint8)  # the scale of each row
    elif values.dtype == torch.uint8 and values.numel() > 8:
        values[-4:] = torch.tensor([float("nan")]).view(torch.uint8)  # the last number of a packed table
    return values


def test_a_federation_warns_of_one_training_node_or_no_test_nodes(graph: Graph, tmp_path: Path) -> None:
    place = torch.arange(graph.num_nodes)
    few = replace(graph, train_mask=place == 0, val_mask=place == 1, test_mask=place < 0)
    said: list[str] = []
    with serving(tmp_path / "sites", few) as trial:
        run = trial.federate(callbacks=Callbacks(say=said.append), **RUNS["full"])
    expected = [
        "sites a, b, c: trains on one node alone; give more training nodes",
        "sites a, b, c: no node to test on, so there is no test score",
    ]
    assert [text for text in said if text.startswith("warning")] == [f"warning: {text}" for text in expected]
    assert run.metrics["warnings"] == expected
    events = (run.directory / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in events if '"phase":"note"' in line] == expected


def test_a_site_with_labels_of_one_class_warns_only_in_its_own_log(graph: Graph, tmp_path: Path) -> None:
    assert graph.y is not None
    assert graph.train_mask is not None
    of_b = owners(graph) == NAMES.index("b")
    one_class = replace(graph, y=torch.where(of_b & graph.train_mask, 2, graph.y))
    said: list[str] = []
    with serving(tmp_path / "sites", one_class) as trial:
        run = trial.federate(callbacks=Callbacks(say=said.append), **RUNS["full"])
        logs = trial.said
    warned = {name: [text for text in log if "training label" in text] for name, log in logs.items()}
    assert warned["b"] == [
        f"warning: {graph.name}: every training label of this site is class 2; a run learns other classes only if "
        "other sites have labels of them"
    ]
    assert warned["a"] == warned["c"] == []
    assert not any("training label" in text for text in said)
    assert run.metrics["warnings"] == []


def test_another_run_with_the_same_settings_is_counted_separately(graph: Graph, tmp_path: Path) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        runs = [trial.federate(out, **RUNS["published"]) for out in ("one", "two")]
    for label in ("halo 1", "halo 2", "ids"):
        assert runs[0].metrics["bytes_by_label"][label] == runs[1].metrics["bytes_by_label"][label]
    assert runs[1].metrics["ledger_bytes"] == runs[1].metrics["bytes_sent"]


def test_sampled_training_needs_the_sites_permission_and_then_equals_one_process(
    graph: Graph, tmp_path: Path
) -> None:
    settings = {"method": "sampled", "train.epochs": 3, "model.hidden": 16, "sampled.batch_size": 64}
    with serving(tmp_path / "sites", graph) as trial:
        with pytest.raises(ValueError, match="who neighbours whom, which the policy of site a forbids"):
            trial.federate("refused", **settings)
        for name in NAMES:
            trial.end(name)
            trial.change(name, 'structure = "boundary"', 'structure = "sampled"')
            trial.serve(name)
        run = trial.federate(**settings, **{"lazy.bits": 8, "model.heads": 2})  # those do not apply
    here = trained_here(graph, tmp_path / "here", **settings)
    assert (run.directory / "model.safetensors").read_bytes() == (
        here.directory / "model.safetensors"
    ).read_bytes()
    written = (run.directory / "config.toml").read_text()
    assert ("[sampled]" in written, "[lazy]" in written, "heads" in written) == (True, False, False)


def test_steps_after_training_that_send_labels_or_need_more_models_are_refused(
    graph: Graph, tmp_path: Path
) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        with pytest.raises(ValueError, match="ensemble is 2, but a federation trains one model; set it to 1"):
            trial.federate("ensemble", **{"train.ensemble": 2})
        with pytest.raises(ValueError, match="it sends labels to other sites, which no policy allows"):
            trial.federate("smoothed", **{"correct_and_smooth.enabled": True})


def test_the_ledger_has_every_message_with_its_receiver_and_rows(graph: Graph, tmp_path: Path) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        run = trial.federate(**RUNS["published"])
        site = trial.served["a"][0]
        asked = {name: set(trial.served[name][0].site_data.cross.named("a").tolist()) for name in ("b", "c")}
        lines = read_ledger(site.ledger.path)
    sets = {line["rows"]: set(line["ids"]) for line in lines if "ids" in line}
    sent = [line for line in lines if "bytes" in line]
    assert {line["to"] for line in sent} == {"b", "c", "coordinator"}
    for name in ("b", "c"):  # rows of those nodes alone that the other named itself
        rows = [line for line in sent if line["to"] == name and line["label"] in ("halo 1", "halo 2")]
        assert rows
        assert all(sets[line["rows"]] == asked[name] for line in rows)
    assert {line["what"] for line in sent if line["label"] == "halo 1"} == {"features"}
    assert {line["what"] for line in sent if line["label"] == "halo 2"} == {"embeddings"}
    assert not [line for line in sent if line["what"] == "labels"]
    assert run.metrics["bytes_by_label"]["halo 1"] > 0
