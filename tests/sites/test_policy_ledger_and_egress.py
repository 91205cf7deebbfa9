"""A site enforces its policy, cap and ledger, whatever the coordinator orders."""

import os
import resource
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from trial_federation import NAMES, Trial, ended, make_trial

from siafu.config import build
from siafu.graph import Graph
from siafu.launch.sites.config import COORDINATOR, SitePolicy
from siafu.launch.sites.ledger import Ledger, LedgerEntry, read_ledger
from siafu.launch.sites.policy import EgressRefused, check_label, kind_of_label
from siafu.launch.sites.schema import make
from siafu.sites.coordinator import FederationFailed
from siafu.sites.membership import check_policies
from siafu.sites.site_data import SiteData

pytestmark = pytest.mark.usefixtures("one_thread")

PUBLISHED = {"method": "lazy", "train.epochs": 4, "model.hidden": 8}


def sent_by(trial: Trial, name: str) -> list[dict[str, Any]]:
    return [line for line in read_ledger(trial.folder / name / "ledger.jsonl") if "bytes" in line]


@pytest.mark.parametrize("recipe", ["logits", "frugal"])
def test_with_policy_features_never_no_feature_leaves_and_training_succeeds(
    recipe: str, graph: Graph, tmp_path: Path
) -> None:
    trial = make_trial(tmp_path / "sites", graph)
    trial.change("b", 'features = "boundary"', 'features = "never"')
    with ended(trial):
        for name in NAMES:
            trial.serve(name)
        run = trial.federate(**PUBLISHED | {"lazy.recipe": recipe, "train.epochs": 12})
    assert run.metrics["finished"]
    assert run.metrics["test_accuracy"] > 0.35
    for name in NAMES:
        assert not [line for line in sent_by(trial, name) if line["what"] in ("features", "labels")]
    assert [line for line in sent_by(trial, "b") if line["what"] == "embeddings"]


def test_a_run_that_a_policy_forbids_is_refused_before_it_begins(graph: Graph, tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "sites", graph)
    trial.change("b", 'features = "boundary"', 'features = "never"')
    with ended(trial):
        for name in NAMES:
            trial.serve(name)
        for method in ("lazy", "full"):
            with pytest.raises(ValueError, match=r"site b lets no features out.*logits or frugal"):
                trial.federate(method=method)


def test_a_late_site_does_not_join_a_run_that_its_policy_forbids() -> None:
    late = {"b": make("About", may_features="never")}
    config = build({"method": "lazy", "lazy": {"recipe": "frugal"}}, {"engine": "sites"})
    with pytest.raises(ValueError, match=r"site b lets no features out, but the run began without it"):
        check_policies(late, config)
    check_policies(
        late, config.model_copy(update={"lazy": config.lazy.model_copy(update={"features": False})})
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("metric", "average_precision"), ("metric", "recall_at_k"), ("threshold", "f1")],
)
def test_scores_that_need_labels_of_other_sites_are_refused(key: str, value: str) -> None:
    config = build({"method": "full", "train": {key: value}}, {"engine": "sites"})
    with pytest.raises(ValueError, match=rf"train\.{key} is {value}, which needs all labels in one place"):
        check_policies({}, config)


def test_a_site_enforces_its_policy_against_the_coordinator(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, about = make_trial(tmp_path / "sites", graph), SiteData.about
    trial.change("b", 'features = "boundary"', 'features = "never"')

    def untold(self: SiteData, **given: Any) -> Any:  # so that the coordinator asks for features all the same
        told = about(self, **given)
        told.may_features = "boundary"
        return told

    monkeypatch.setattr(SiteData, "about", untold)
    with ended(trial):
        for name in NAMES:
            trial.serve(name)
        with pytest.raises(FederationFailed, match="site b: the policy lets no features out, but 'halo 1'"):
            trial.federate(**PUBLISHED)
    assert not [line for line in sent_by(trial, "b") if line["what"] == "features"]
    assert any("the policy lets no features out" in text for text in trial.said["b"])


def test_at_max_bytes_a_site_stops_sending_and_the_run_ends_with_the_reason(
    graph: Graph, tmp_path: Path
) -> None:
    trial = make_trial(tmp_path / "sites", graph)
    trial.change("c", "# max_bytes = 1000000000", "max_bytes = 20000")
    with ended(trial):
        for name in NAMES:
            trial.serve(name)
        with pytest.raises(FederationFailed, match=r"site c: max_bytes is 20,000 and .* have left"):
            trial.federate(**PUBLISHED)
        for name in NAMES:  # nobody is left waiting
            attempt = trial.served[name][0]._attempt
            assert attempt is not None
            assert attempt.wait(60)
    data = [line["bytes"] for line in sent_by(trial, "c") if line["what"] != "control"]
    assert 0 < sum(data) <= 20_000
    assert any("so nothing more is sent" in text for text in trial.said["c"])


def test_a_checkpoint_above_the_cap_ends_the_run_with_that_reason(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_cap = Ledger._check_cap

    def reached(self: Ledger, sent: LedgerEntry) -> None:
        self.max_bytes = 0 if sent.label == "checkpoint" and sent.to == "coordinator" else None
        check_cap(self, sent)

    monkeypatch.setattr(Ledger, "_check_cap", reached)
    trial = make_trial(tmp_path / "sites", graph)
    with ended(trial):
        for name in NAMES:
            trial.serve(name)
        with pytest.raises(FederationFailed, match=r"a at .*: max_bytes is 0 and .* have left"):
            trial.federate(**PUBLISHED)
    assert any("max_bytes is 0" in text for text in trial.said["a"])
    assert "the coordinator is gone" not in trial.said["a"]
    assert not [
        line for line in sent_by(trial, "a") if line["label"] == "checkpoint" and line["to"] == COORDINATOR
    ]


def test_a_full_disk_for_the_ledger_stops_all_sending(graph: Graph, tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "sites", graph)
    trial.change("a", 'ledger = "ledger.jsonl"', 'ledger = "/dev/full"')
    with ended(trial):
        for name in NAMES:
            trial.serve(name)
        with pytest.raises(
            FederationFailed, match=r"cannot be written .No space left on device., so nothing more"
        ):
            trial.federate(**PUBLISHED)
    assert any("make room" in text for text in trial.said["a"])


def test_a_partly_written_ledger_line_is_removed_and_nothing_is_sent(tmp_path: Path) -> None:
    sent = LedgerEntry("r", "b", "halo 2", "embeddings", "float32 (2, 3)", 100)
    with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
        ledger.write(sent)
        before, (soft, hard) = ledger.path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))  # no file may grow beyond it
        try:
            with pytest.raises(
                EgressRefused, match=r"cannot be written .*, so nothing more is sent; make room"
            ):
                ledger.write(sent)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.path.read_bytes() == before
        assert ledger.totals.all == 100
        ledger.write(sent)  # now that there is room
        assert [line["bytes"] for line in read_ledger(ledger.path)] == [100, 100]


def test_a_ledger_counts_its_earlier_lines_and_survives_an_incomplete_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path, max_bytes=250)
    first.write(LedgerEntry("r", "b", "halo 2", "embeddings", "float32 (2, 3)", 100))
    first.close()
    path.write_text(path.read_text() + '{"time":1,"run":"r","to"')
    again = Ledger(path, max_bytes=250)
    assert again.totals.all == 100
    again.write(LedgerEntry("r", "c", "halo 2", "embeddings", "float32 (2, 3)", 100))
    with pytest.raises(EgressRefused, match="max_bytes is 250 and 200 bytes have left"):
        again.write(LedgerEntry("r", "c", "halo 2", "embeddings", "float32 (2, 3)", 100))
    again.write(LedgerEntry("r", "coordinator", "report", "control", "report", 100))  # to say why
    again.close()
    with closing(Ledger(path)) as last:
        assert last.totals.by_peer == {"b": 100, "c": 100, "coordinator": 100}


def test_a_ledger_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with closing(Ledger(path)):
        assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)  # as an earlier version left it
    with closing(Ledger(path)):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_ledger_is_private_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fchmod", lambda *_: pytest.fail("others could have opened it before"))
    with closing(Ledger(tmp_path / "ledger.jsonl")):
        pass


def test_a_ledger_that_is_a_symbolic_link_is_refused_and_its_target_is_unchanged(tmp_path: Path) -> None:
    target, path = tmp_path / "precious", tmp_path / "ledger.jsonl"
    target.write_text("kept")
    path.symlink_to(target)
    with pytest.raises(ValueError, match=r"ledger.jsonl: the ledger is a symbolic link; expected a file"):
        Ledger(path)
    assert target.read_text() == "kept"
    target.unlink()
    with pytest.raises(ValueError, match="symbolic link"):
        Ledger(path)  # which would make a file elsewhere
    assert not target.exists()


def test_a_ledger_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    path.touch()
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ValueError, match="the ledger belongs to user"):
        Ledger(path)


def test_a_ledger_counts_the_bytes_of_earlier_processes_of_a_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with closing(Ledger(path)) as first:
        first.write(LedgerEntry("r", "b", "halo 2", "embeddings", "float32 (2, 3)", 100))
        first.write(LedgerEntry("r", "c", "halo 2", "embeddings", "float32 (2, 3)", 20))
    with closing(Ledger(path)) as again:
        assert again.totals.by_label == {"r": {"halo 2": 120}}


@pytest.mark.parametrize(
    "label", ["gossip", "", "halo inputs", "halos", "halo 2 inputs", "halo two", "labels 2", "ids 1", "2"]
)
def test_a_message_with_an_unknown_label_never_leaves(label: str) -> None:
    with pytest.raises(EgressRefused, match=f"messages labelled '{label}' are unknown"):
        check_label(SitePolicy(), label)


def test_labels_never_leave() -> None:
    with pytest.raises(EgressRefused, match="labels never leave"):
        check_label(SitePolicy(), "labels")


@pytest.mark.parametrize(
    ("label", "what"),
    [("halo 1", "features"), ("halo 2", "embeddings"), ("halo 10", "embeddings"), ("halo", "features"),
     ("halo features", "features"), ("halo smoothing", "embeddings"), ("gradients 1", "parameters")],
)  # fmt: skip
def test_rows_of_the_first_stage_are_features_and_later_ones_embeddings(label: str, what: str) -> None:
    assert kind_of_label(label) == what
