"""What may leave a site is its own affair: policy, cap and ledger hold whatever the coordinator asks."""

import os
import resource
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from trial_federation import NAMES, Trial, ended, make_trial

from siafu.config import build
from siafu.graph import Graph
from siafu.launch.sites.config import COORDINATOR, Policy
from siafu.launch.sites.ledger import Ledger, Sent, read_ledger
from siafu.launch.sites.policy import Refused, check, what_of
from siafu.launch.sites.schema import make
from siafu.sites.coordinator import FederationFailed
from siafu.sites.membership import check_policies
from siafu.sites.site_data import Holdings

pytestmark = pytest.mark.usefixtures("one_thread")

PUBLISHED = {"method": "lazy", "train.epochs": 4, "model.hidden": 8}


def sent_by(trial: Trial, name: str) -> list[dict[str, Any]]:
    return [line for line in read_ledger(trial.folder / name / "ledger.jsonl") if "bytes" in line]


@pytest.mark.parametrize("recipe", ["logits", "frugal"])
def test_with_features_never_no_feature_leaves_and_training_ends_well(
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


def test_a_site_that_comes_late_does_not_join_a_run_that_its_policy_would_end() -> None:
    late = {"b": make("About", may_features="never")}
    tree = build({"method": "lazy", "lazy": {"recipe": "frugal"}}, {"engine": "sites"})
    with pytest.raises(ValueError, match=r"site b lets no features out, but the run began without it"):
        check_policies(late, tree)
    check_policies(late, tree.model_copy(update={"lazy": tree.lazy.model_copy(update={"features": False})}))


def test_a_site_keeps_its_policy_whatever_the_coordinator_asks(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, about = make_trial(tmp_path / "sites", graph), Holdings.about
    trial.change("b", 'features = "boundary"', 'features = "never"')

    def untold(self: Holdings, **given: Any) -> Any:  # so that the coordinator asks for features all the same
        told = about(self, **given)
        told.may_features = "boundary"
        return told

    monkeypatch.setattr(Holdings, "about", untold)
    with ended(trial):
        for name in NAMES:
            trial.serve(name)
        with pytest.raises(FederationFailed, match="site b: the policy lets no features out, but 'halo 1'"):
            trial.federate(**PUBLISHED)
    assert not [line for line in sent_by(trial, "b") if line["what"] == "features"]
    assert any("the policy lets no features out" in text for text in trial.said["b"])


def test_at_max_bytes_a_site_stops_sending_says_so_and_the_run_ends(graph: Graph, tmp_path: Path) -> None:
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


def test_a_cap_that_a_checkpoint_would_pass_is_told_as_that_too(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_cap = Ledger._check_cap

    def reached(self: Ledger, sent: Sent) -> None:
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


def test_a_full_disk_for_the_ledger_stops_the_sending(graph: Graph, tmp_path: Path) -> None:
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


def test_a_line_for_half_of_which_there_is_room_is_taken_back_and_nothing_is_sent(tmp_path: Path) -> None:
    sent = Sent("r", "b", "halo 2", "embeddings", "float32 (2, 3)", 100)
    with closing(Ledger(tmp_path / "ledger.jsonl")) as ledger:
        ledger.write(sent)
        before, (soft, hard) = ledger.path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))  # no file may grow beyond it
        try:
            with pytest.raises(Refused, match=r"cannot be written .*, so nothing more is sent; make room"):
                ledger.write(sent)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert ledger.path.read_bytes() == before
        assert ledger.totals.all == 100
        ledger.write(sent)  # now that there is room
        assert [line["bytes"] for line in read_ledger(ledger.path)] == [100, 100]


def test_a_ledger_counts_what_it_held_before_and_survives_a_cut_off_line(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path, max_bytes=250)
    first.write(Sent("r", "b", "halo 2", "embeddings", "float32 (2, 3)", 100))
    first.close()
    path.write_text(path.read_text() + '{"time":1,"run":"r","to"')
    again = Ledger(path, max_bytes=250)
    assert again.totals.all == 100
    again.write(Sent("r", "c", "halo 2", "embeddings", "float32 (2, 3)", 100))
    with pytest.raises(Refused, match="max_bytes is 250 and 200 bytes have left"):
        again.write(Sent("r", "c", "halo 2", "embeddings", "float32 (2, 3)", 100))
    again.write(Sent("r", "coordinator", "report", "control", "report", 100))  # to say why
    again.close()
    with closing(Ledger(path)) as last:
        assert last.totals.by_peer == {"b": 100, "c": 100, "coordinator": 100}


def test_a_ledger_is_for_its_owner_alone(tmp_path: Path) -> None:
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


def test_a_ledger_that_is_a_link_is_refused_and_what_it_names_stays(tmp_path: Path) -> None:
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


def test_a_ledger_knows_what_earlier_processes_of_a_run_sent(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with closing(Ledger(path)) as first:
        first.write(Sent("r", "b", "halo 2", "embeddings", "float32 (2, 3)", 100))
        first.write(Sent("r", "c", "halo 2", "embeddings", "float32 (2, 3)", 20))
    with closing(Ledger(path)) as again:
        assert again.totals.by_label == {"r": {"halo 2": 120}}


@pytest.mark.parametrize(
    "label", ["gossip", "", "halo inputs", "halos", "halo 2 inputs", "halo two", "labels 2", "ids 1", "2"]
)
def test_a_message_of_an_unknown_name_never_leaves(label: str) -> None:
    with pytest.raises(Refused, match=f"nothing is known of messages that are called '{label}'"):
        check(Policy(), label)


def test_labels_never_leave() -> None:
    with pytest.raises(Refused, match="labels never leave"):
        check(Policy(), "labels")


@pytest.mark.parametrize(
    ("label", "what"),
    [("halo 1", "features"), ("halo 2", "embeddings"), ("halo 10", "embeddings"), ("halo", "features"),
     ("halo features", "features"), ("halo smoothing", "embeddings"), ("gradients 1", "parameters")],
)  # fmt: skip
def test_rows_of_the_first_stage_are_features_and_later_ones_are_not(label: str, what: str) -> None:
    assert what_of(label) == what
