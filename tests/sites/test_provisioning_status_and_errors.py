"""Keys, signing requests, rotation, status, and errors that are reported at the right place."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from in_process import command
from trial_federation import NAMES, Trial, ended, make_trial, serving

import siafu
from siafu.comm import connect_threads
from siafu.graph import Graph
from siafu.launch.sites.config import FederationConfig, SiteConfig, read_config
from siafu.launch.sites.rpc import CallRejected
from siafu.launch.sites.schema import PROTOCOL, make, pack
from siafu.partition.cross_site import build_site_part, read_cross_edges
from siafu.sites.coordinator import FederationFailed
from siafu.sites.credentials import SiteCredentials
from siafu.sites.provisioning import init_site, init_trial
from siafu.sites.site_data import SiteData
from siafu.store import write_store
from siafu.wire.certificates import (
    issue,
    make_key,
    parse_certificate,
    read_certificate,
    read_identity,
    write_key,
)

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"method": "lazy", "train.epochs": 2, "model.hidden": 8}


def test_init_makes_a_private_key_and_a_request_that_an_authority_signs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("site", "init", tmp_path / "all", "--trial", "x,y", capsys=capsys)[0] == 0
    code, out, _ = command("site", "init", tmp_path / "new", "--name", "new", "--json", capsys=capsys)
    assert (code, len(json.loads(out)["files"])) == (0, 3)
    assert (tmp_path / "new" / "site.key").stat().st_mode & 0o777 == 0o600
    signed = tmp_path / "signed.pem"
    options = ["--authority", tmp_path / "all" / "authority", "--out", signed]
    assert command("site", "sign", tmp_path / "new" / "request.pem", *options, capsys=capsys)[0] == 0
    assert read_certificate(signed).name == "new"
    read_identity(signed, tmp_path / "new" / "site.key")  # they belong together


@pytest.mark.parametrize("names", [["--name", "A b"], ["--trial", "a,a"], ["--trial", "a"], []])
def test_init_refuses_invalid_names(
    names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = command("site", "init", tmp_path / "x", *names, capsys=capsys)
    assert code == 1
    assert "expected" in err or "at least two names" in err


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    init_site(tmp_path, "a")
    (tmp_path / "site.key").chmod(0o644)
    with pytest.raises(ValueError, match=r"others may read this key.*chmod 600"):
        read_identity(tmp_path / "site.pem", tmp_path / "site.key")


def test_expired_and_future_certificates_are_refused_with_advice() -> None:
    key, now = make_key(), datetime.now(UTC)
    made = parse_certificate(issue("a", key.public_key(), None, key, days=40), "a")
    assert made.validity_error(now) is None
    assert made.expiry_warning(now) is None
    assert "expires in" in (made.expiry_warning(now + timedelta(days=20)) or "")
    assert "expired on" in (made.validity_error(now + timedelta(days=41)) or "")
    assert "set the clock right" in (made.validity_error(now - timedelta(days=1)) or "")


def test_a_running_site_reloads_a_rotated_key(
    graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        config = trial.folder / "b" / "site.toml"
        before = read_certificate(trial.folder / "b" / "site.pem").fingerprint
        assert command("site", "rotate", "--config", config, capsys=capsys)[0] == 0
        for other in ("a", "c"):  # they list both
            new = trial.folder / other / "peers" / "b-new.pem"
            new.write_bytes((trial.folder / "b" / "next-site.pem").read_bytes())
            trial.end(other)
            trial.change(other, '"peers/b.pem"', '["peers/b.pem", "peers/b-new.pem"]')
            trial.serve(other)
        assert command("site", "rotate", "--config", config, "--finish", capsys=capsys)[0] == 0
        coordinator = trial.folder / "coordinator" / "peers" / "b.pem"
        with pytest.raises(FederationFailed, match="another certificate"):
            trial.federate("early", federation={"patience": 0.2, "quorum": 1.0}, **QUICK)
        coordinator.write_bytes((trial.folder / "b" / "site.pem").read_bytes())
        run = trial.federate(**QUICK)
    assert run.metrics["finished"]
    assert read_certificate(trial.folder / "b" / "site.pem").fingerprint != before


def test_status_shows_sent_bytes_and_expiring_certificates(
    graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        run = trial.federate(**QUICK)
    key = make_key()
    folder = trial.folder / "a"
    (folder / "site.key").unlink()
    write_key(key, folder / "site.key")
    (folder / "site.pem").write_bytes(issue("a", key.public_key(), None, key, days=3))
    code, out, _ = command("site", "status", "--config", folder / "site.toml", "--json", capsys=capsys)
    found = json.loads(out)
    assert code == 0
    assert found["serves"] is None
    assert found["by_what"]["embeddings"] > 0
    assert "labels" not in found["by_what"]
    assert 0 < found["ledger_bytes"] < run.metrics["bytes_sent"]
    assert "expires in" in found["warnings"][0]
    text = command("site", "status", "--config", folder / "site.toml", capsys=capsys)[1]
    assert "by_peer" in text


def test_a_certificate_that_expires_while_a_site_serves_is_reported_once(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.sites.service._WARN_S", 0.0)
    with ended(make_trial(tmp_path / "sites", graph)) as trial:
        trial.serve("a")
        key = make_key()
        (trial.folder / "a" / "peers" / "b.pem").write_bytes(issue("b", key.public_key(), None, key, days=3))
        for _ in range(2):
            trial.served["a"][0].warn()
    assert len([text for text in trial.said["a"] if "the certificate of b expires in" in text]) == 1


def test_logs_hold_no_data(graph: Graph, tmp_path: Path) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        trial.federate(**QUICK)
        trial.end("c")
        table = trial.folder / "c" / "cross.csv"
        table.write_text(table.read_text() + '"a",999999,' + table.read_text().split(",")[-1])
        trial.serve("c")
        with pytest.raises(FederationFailed, match="site c: it failed, and its own log says why"):
            trial.federate("other", **QUICK)
    assert any(
        "name 1 nodes of site a that it does not have, such as 999999" in text for text in trial.said["c"]
    )
    for name in ("a", "b"):
        assert not [text for text in trial.said[name] if any(c.isdigit() and "999" in text for c in text)]


def cross(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cross.csv"
    path.write_text("site,src,dst\n" + text)
    return path


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("z,100,0\n", "row 0 names site z, which nobody knows; expected one of b, c"),
        ("a,100,0\n", "row 0 names site a, which is this site itself"),
        ("b,100,0\nb,100,77777\n", "row 1 leads to node 77777, which is not in the store"),
        ("b,3,0\n", "site b owns node 3, but this store owns it too"),
        ("b,999,0\nc,999,1\n", "node 999 is named as one of b and as one of c"),
        ("b,x,0\n", "which is not in the store|holds|site b"),
    ],
)
def test_invalid_cross_edges_are_refused_with_their_row(
    rows: str, said: str, graph: Graph, tmp_path: Path
) -> None:
    if rows == "b,x,0\n":  # texts are ids too
        assert read_cross_edges(cross(tmp_path, rows), graph, own="a", known=["b", "c"]).src_id.numel() == 1
        return
    with pytest.raises(ValueError, match=said):
        read_cross_edges(cross(tmp_path, rows), graph, own="a", known=["b", "c"])


def test_cross_edges_may_be_weighted_and_parquet(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "cross.parquet"
    pq.write_table(pa.table({"site": ["b"], "src": [500], "dst": [1], "weight": [2.5]}), path)
    found = read_cross_edges(path, graph, own="a", known=["b"])
    part = build_site_part(connect_threads(1)[0], graph, found, names=["a"], kept=["b"])
    assert part.own.edge_weight is not None
    assert float(part.own.edge_weight.sum()) == pytest.approx(graph.num_edges + 2.5)
    assert part.halo_id.tolist() == [500]


def other_store(trial: Trial, name: str, **changed: object) -> None:
    """Put another store in the place of a site's."""
    from dataclasses import replace

    from siafu.store import open_store

    path = trial.folder / name / "store"
    graph = open_store(path).graph()
    copied = {f: v.clone() for f, v in vars(graph).items() if isinstance(v, torch.Tensor)}
    path.rename(path.with_name("old"))
    write_store(replace(graph, **copied | changed), path)


def test_sites_with_different_features_or_classes_are_refused(graph: Graph, tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "sites", graph)
    with ended(trial):
        assert graph.x is not None
        nodes = trial.folder / "b" / "store"
        from siafu.store import open_store

        x = open_store(nodes).graph().x
        assert x is not None
        other_store(trial, "b", x=x[:, :5].clone())
        for name in NAMES:
            trial.serve(name)
        with pytest.raises(ValueError, match="differ in their features: a has 12, b has 5, c has 12"):
            trial.federate(**QUICK)
        for name in NAMES:  # whoever can mend it reads it in its own log
            assert any("a has 12, b has 5, c has 12; give all stores" in text for text in trial.said[name])
        trial.end("b")
        (nodes.with_name("old")).rename(nodes.with_name("older"))
        other_store(trial, "b", x=x.clone(), class_names=("p", "q", "r"))
        trial.serve("b")
        with pytest.raises(ValueError, match="name different classes: a has no names; b has p, q, r"):
            trial.federate(**QUICK)


def test_clock_skew_is_reported(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = SiteData.about

    def late(self: SiteData, **given: object) -> object:
        told = about(self, **given)  # type: ignore[arg-type]
        told.time = time.time() + (4000 if self.config.name == "b" else 0)
        return told

    monkeypatch.setattr(SiteData, "about", late)
    with (
        serving(tmp_path / "sites", graph) as trial,
        pytest.raises(
            ValueError, match="the clock of site b is 4000 s ahead of the coordinator's; set both right"
        ),
    ):
        trial.federate(**QUICK)


def test_clock_skew_is_reported_in_the_log_of_the_site(graph: Graph, tmp_path: Path) -> None:
    with ended(make_trial(tmp_path / "sites", graph)) as trial:
        trial.serve("a")
        for off in (0, -200, -400, 400):
            ask = make("Ask", protocol=PROTOCOL, version=siafu.__version__, time=time.time() + off)
            trial.served["a"][0].describe(pack(ask))
    told = [
        text for text in trial.said["a"] if "the clock here and the coordinator's differ by 400 s" in text
    ]
    assert len(told) == len(trial.said["a"]) == 2


def test_a_site_calls_a_peer_only_at_an_address_that_it_lists(graph: Graph, tmp_path: Path) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        listed = trial.addresses["a"]
        trial.addresses["a"] = other = f"localhost:{listed.rpartition(':')[2]}"
        refused = rf"[bc] does not call a at '{other}', which its site.toml does not list; add the address to peers.a"
        with pytest.raises(FederationFailed, match=refused):
            trial.federate(**QUICK)
        assert any(f"it lists {listed}" in text for text in trial.said["b"])
        trial.addresses["a"] = listed
        assert trial.federate("again", **QUICK).metrics["finished"]


@pytest.mark.parametrize(
    "peers", ['b = "b.pem"', 'b = ["b.pem", "new.pem"]', '[peers.b]\ncertificate = "b.pem"']
)
def test_a_peer_that_only_calls_needs_no_address(peers: str, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    own = 'name = "a"\nlisten = "x:1"\ncertificate = "a.pem"\nkey = "a.key"\ncoordinator = "c.pem"\n'
    path.write_text(f"{own}[peers]\n{peers}\n")
    peer = read_config(path, SiteConfig).peers["b"]
    assert peer.certificate[0] == tmp_path / "b.pem"
    assert peer.addresses == ()


def test_an_address_without_a_port_is_refused_with_its_key(tmp_path: Path) -> None:
    init_trial(tmp_path / "sites", ["a", "b"])
    path = tmp_path / "sites" / "a" / "site.toml"
    assert read_config(path, SiteConfig).peers["b"].addresses == ("127.0.0.1:7401",)
    for address in ("unix:/run/b.sock", "10.0.0.1", "dns:///b:1", "b:1\\n"):
        text = path.read_text().replace("127.0.0.1:7401", address)
        (tmp_path / "wrong.toml").write_text(text)
        with pytest.raises(ValueError, match=r"wrong.toml: peers.b.addresses.0 is .*; expected"):
            read_config(tmp_path / "wrong.toml", SiteConfig)


def test_cross_edges_from_a_site_outside_the_federation_are_reported(graph: Graph, tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "sites", graph)
    text = (trial.folder / "a" / "site.toml").read_text()
    with ended(trial):
        (trial.folder / "a" / "site.toml").write_text(text + '\n[peers]\nd = "peers/b.pem"\n')
        with pytest.raises(ValueError, match="is the certificate of b, but is listed for d"):
            SiteCredentials(read_config(trial.folder / "a" / "site.toml", SiteConfig))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nme = 'a'", "nme is not a setting"),
        ("name = 'A'", "name is 'A'"),
        ("name =", "not a TOML file"),
        ("[policy]\nlabels = 'boundary'", "policy.labels is 'boundary'; expected 'never'"),
        ("max_bytes = -1", "max_bytes is -1"),
    ],
)
def test_invalid_settings_of_a_site_name_the_file_and_the_key(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"site.toml: (.|\n)*{said}"):
        read_config(path, SiteConfig)


def test_a_quorum_is_two_sites_at_least() -> None:
    sites = {name: {"address": "x:1", "certificate": "x.pem"} for name in "abcd"}
    for quorum, least in ((0.1, 2), (0.5, 2), (0.75, 3), (0.76, 4), (1.0, 4)):
        made = FederationConfig.model_validate(
            {"certificate": "x", "key": "x", "sites": sites, "quorum": quorum}
        )
        assert made.min_sites == least


def test_train_refuses_engine_sites(graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = command("train", "karate", "--engine", "sites", capsys=capsys)
    assert code == 1
    assert "siafu federate" in err


def test_the_owner_of_an_expired_certificate_is_told(graph: Graph, tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "sites", graph)
    for name in ("a", "coordinator"):
        folder, key = trial.folder / name, make_key()
        (folder / "site.key").unlink()
        write_key(key, folder / "site.key")
        (folder / "site.pem").write_bytes(issue(name, key.public_key(), None, key, days=-1))
    with pytest.raises(ValueError, match=r"the certificate of a expired on .*siafu site rotate"):
        trial.serve("a")
    with pytest.raises(ValueError, match=r"the certificate of coordinator expired on"):
        trial.federate(**QUICK)


def test_the_coordinator_s_text_is_logged_as_one_line_of_bounded_length(graph: Graph, tmp_path: Path) -> None:
    with ended(make_trial(tmp_path / "sites", graph)) as trial:
        trial.serve("a")
        trial.served["a"][0].stop(pack(make("Stop", reason="up\x1b[2J\n" + "x" * 5000)))
    (said,) = [text for text in trial.said["a"] if "coordinator says" in text]
    assert said.isprintable()
    assert len(said) < 400


def test_a_site_refuses_orders_to_do_anything_but_train(graph: Graph, tmp_path: Path) -> None:
    with serving(tmp_path / "sites", graph) as trial:
        site = trial.served["a"][0]
        members = [make("Member", name=name, address="x:1") for name in NAMES]
        for config in ('method = "pipeline"\nengine = "sites"', 'engine = "processes"', "nonsense = 1", "]["):
            order = make("Order", attempt=b"x" * 16, run="r", config=config, members=members)
            with pytest.raises(CallRejected, match="the settings of the run cannot be used here"):
                site.begin(iter([pack(order)]))
        members[1].name = "z"
        with pytest.raises(CallRejected, match="does not train with z"):
            site.begin(iter([pack(make("Order", attempt=b"x" * 16, members=members))]))
