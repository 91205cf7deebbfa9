"""The command line as scripts and people use it: what goes where, exit codes, from tables to predictions."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torch
from pyarrow import csv

from siafu import cli
from siafu.data import community
from siafu.results.progress import TrainingProgress
from siafu.store import write_store


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one line of standard output of a command that did not fail, which is strict JSON."""
        assert self.code in (0, 130, 143), self.err
        (line,) = self.out.splitlines()

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        found = json.loads(line, parse_constant=refuse)
        assert isinstance(found, dict)
        return found


Siafu = Callable[..., Result]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def siafu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Siafu:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIAFU_DATA", str(tmp_path / "home"))

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["siafu", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0 if code is None else 1, *capsys.readouterr())

    return run


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two villages of eight people, joined by one friendship; everybody's id is a name."""
    people = [f"{village}-{number}" for village in ("hill", "lake") for number in range(8)]
    pairs = [(a, b) for a in people for b in people if a < b and a[:4] == b[:4]] + [("hill-0", "lake-0")]
    folder = tmp_path / "tables"
    folder.mkdir()
    _csv(folder / "edges.csv", "src,dst", pairs)
    _csv(folder / "people.csv", "id,tall,old", [(p, p[:4] == "hill", i / 16) for i, p in enumerate(people)])
    _csv(folder / "labels.csv", "id,label", [(p, p[:4]) for p in people])
    roles = {0: "train", 1: "train", 2: "val", 3: "val"}
    _csv(folder / "split.csv", "id,split", [(p, roles.get(int(p[-1]), "test")) for p in people])
    return folder


def _csv(path: Path, header: str, rows: list[Any]) -> None:
    lines = [header, *(",".join(str(int(v) if isinstance(v, bool) else v) for v in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


def import_tables(siafu: Siafu, tables: Path, *options: str, out: str = "villages") -> Result:
    return siafu(
        *("import", out, *options, "--edges", tables / "edges.csv", "--features", tables / "people.csv"),
        *("--labels", tables / "labels.csv", "--split", tables / "split.csv", "--undirected", "--json"),
    )


PROMISED = {
    **{"test_accuracy": float, "val_accuracy": float, "test_score": float, "val_score": float},
    **{"epochs": int, "seconds": float, "epoch_seconds": float, "bytes_sent": int, "bytes_by_label": dict},
    **{
        "peak_rss_bytes": int,
        "method": str,
        "model": str,
        "ranks": int,
        "seed": int,
        "run": str,
        "metric": str,
    },
    "finished": bool,
}
COMMUNITY = "community:nodes=240,degree=8,classes=3,features=12"


def test_train_prints_every_key_that_is_promised(siafu: Siafu) -> None:
    found = siafu("train", COMMUNITY, "--epochs", 3, "--json").json
    for key, kind in PROMISED.items():
        assert type(found[key]) is kind, key
    assert 0 <= found["test_accuracy"] <= 1
    assert found["val_accuracy"] == found["val_score"]
    assert (found["epochs"], found["method"], found["model"], found["ranks"], found["seed"]) == (
        3,
        "full",
        "gcn",
        1,
        0,
    )
    assert 0 < found["epoch_seconds"] <= found["seconds"]
    assert found["peak_rss_bytes"] > 10_000_000
    assert found["finished"] is True
    written = json.loads((Path(found["run"]) / "metrics.json").read_text())
    assert {key: written[key] for key in found} == found


def test_a_graph_without_validation_has_nothing_in_its_place(siafu: Siafu) -> None:
    found = siafu("train", "karate", "--epochs", 2, "--json").json
    assert found["val_accuracy"] is None
    assert found["val_score"] is None


def test_a_score_that_is_undefined_is_null(siafu: Siafu, tmp_path: Path) -> None:
    graph = community(240, degree=8, classes=3, features=12)
    assert graph.y is not None
    assert graph.val_mask is not None
    one_class = replace(graph, y=torch.where(graph.val_mask, 0, graph.y))
    write_store(one_class, tmp_path / "store")
    found = siafu("train", "./store", "--epochs", 4, "--set", "train.metric=roc_auc", "--json").json
    assert (found["val_score"], found["val_roc_auc"]) == (None, None)
    assert found["test_score"] == found["test_roc_auc"] > 0
    assert found["best_epoch"] > 0, "the loss chooses"


def test_features_in_int8_are_imported_shown_and_trained_on(siafu: Siafu, tables: Path) -> None:
    about = import_tables(siafu, tables, "--feature-dtype", "int8").json
    assert (about["features"], about["feature_dtype"]) == (2, "int8")
    assert siafu("info", "villages", "--verify", "--json").json["feature_dtype"] == "int8"
    siafu("partition", "villages", "--parts", 2)
    for inputs in ("memory", "stream"):
        run = siafu(
            "train", "villages", "--epochs", 5, "--set", f"data.inputs={inputs}", "--out", inputs, "--json"
        )
        assert siafu("predict", inputs, "--json").json["nodes"] == 16, run.err
    ranks = ("--ranks", 2, "--engine", "local")
    assert siafu("train", "villages", *ranks, "--epochs", 5, "--json").json["ranks"] == 2


def test_every_command_prints_one_json_object_and_nothing_else(siafu: Siafu, tables: Path) -> None:
    about = import_tables(siafu, tables).json
    assert (about["store"], about["nodes"], about["features"], about["classes"]) == ("villages", 16, 2, 2)
    assert siafu("info", "villages", "--verify", "--json").json["verified"] is True
    run = siafu("train", "villages", "--epochs", 5, "--out", "run", "--json").json
    assert run["run"] == "run"
    assert siafu("resume", "run", "--json").json == run
    assert siafu("predict", "run", "--json").json == {"run": "run", "out": "predictions.parquet", "nodes": 16}
    assert siafu("report", "run", "--json").json == {"out": "report.html", "runs": ["run"], "damaged": {}}
    assert {row["name"] for row in siafu("data", "--json").json["data"]} > {"karate", "cora"}
    assert {finding["level"] for finding in siafu("doctor", "--json").json["findings"]} <= {
        "ok",
        "note",
        "missing",
    }


def test_from_tables_with_names_to_predictions_with_names(siafu: Siafu, tables: Path) -> None:
    assert import_tables(siafu, tables).code == 0
    trained = siafu("train", "villages", "--epochs", 60, "--hidden", 8, "--out", "run")
    assert trained.code == 0
    assert (
        "villages: 16 nodes, 114 edges, 2 features, 2 classes; 4 nodes train, 4 validate, 8 test"
        in trained.err
    )
    assert "test accuracy 100.0 %" in trained.out
    assert siafu("predict", "run", "--out", "p.parquet", "--embeddings").code == 0
    rows = pq.read_table("p.parquet").to_pylist()
    assert [row["id"] for row in rows] == [f"{v}-{n}" for v in ("hill", "lake") for n in range(8)]
    assert all(row["class"] == row["id"][:4] for row in rows)
    assert all(sum(row["probability"]) == pytest.approx(1, abs=1e-5) for row in rows)
    assert {len(row["embedding"]) for row in rows} == {8}


def test_another_graph_is_predicted_with_the_names_of_the_classes_that_were_learned(
    siafu: Siafu, tables: Path, tmp_path: Path
) -> None:
    import_tables(siafu, tables)
    siafu("train", "villages", "--epochs", 60, "--hidden", 8, "--out", "run")
    _csv(tmp_path / "edges.csv", "src,dst", [("ann", "bob"), ("cyd", "dan")])
    _csv(
        tmp_path / "x.csv",
        "id,tall,old",
        [("ann", 1, 0.1), ("bob", 1, 0.2), ("cyd", 0, 0.9), ("dan", 0, 0.8)],
    )
    assert siafu("import", "new", "--edges", "edges.csv", "--features", "x.csv", "--undirected").code == 0
    assert siafu("predict", "run", "new").code == 0
    rows = pq.read_table("predictions.parquet").to_pylist()
    assert [(row["id"], row["class"]) for row in rows] == [
        *[("ann", "hill"), ("bob", "hill")],
        *[("cyd", "lake"), ("dan", "lake")],
    ]
    wrong = siafu("predict", "run", "karate", "--out", "k.parquet")
    assert (wrong.code, "karate: has 34 features, but the model was trained on 2" in wrong.err) == (
        1,
        True,
    )
    assert not Path("k.parquet").exists()


def test_predictions_are_written_as_csv_where_the_file_is_called_so(siafu: Siafu, tables: Path) -> None:
    import_tables(siafu, tables)
    siafu("train", "villages", "--epochs", 2, "--hidden", 3, "--out", "run")
    for name in ("p.csv", "p.parquet"):
        assert siafu("predict", "run", "--out", name, "--embeddings").code == 0
    rows, lists = csv.read_csv("p.csv").to_pylist(), pq.read_table("p.parquet").to_pylist()
    embeddings = ("embedding_0", "embedding_1", "embedding_2")
    assert list(rows[0]) == ["id", "class", "probability_0", "probability_1", *embeddings]
    for row, expected in zip(rows, lists, strict=True):
        assert (row["id"], row["class"]) == (expected["id"], expected["class"])
        assert [row["probability_0"], row["probability_1"]] == pytest.approx(
            expected["probability"], rel=1e-5
        )
        assert [row[name] for name in embeddings] == pytest.approx(expected["embedding"], rel=1e-5)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("p.json", "p.json: ends with .json; expected a name that ends with .parquet or .csv"),
        ("p", "p: has no ending; expected a name that ends with .parquet or .csv"),
        ("absent/p.csv", "absent/p.csv: there is no folder absent; make it first, or name another file"),
        ("there.csv", "there.csv: a folder stands there; name another file"),
    ],
)
def test_a_file_of_predictions_that_cannot_be_is_refused_before_any_work(
    siafu: Siafu, out: str, message: str
) -> None:
    Path("there.csv").mkdir()
    done = siafu("predict", "no-run", "--out", out)
    assert (done.code, done.err) == (1, f"error: {message}\n")


def test_a_report_into_a_folder_that_is_not_there_is_refused(siafu: Siafu) -> None:
    siafu("train", "karate", "--epochs", 1, "--out", "run")
    done = siafu("report", "run", "--out", "absent/report.html")
    assert (done.code, "absent/report.html: there is no folder absent" in done.err) == (1, True)


def test_predictions_into_a_folder_that_is_not_there_are_refused(siafu: Siafu) -> None:
    siafu("train", "karate", "--epochs", 1, "--out", "run")
    found = siafu("predict", "run", "--out", "nowhere/p.parquet")
    assert (found.code, found.out) == (1, "")
    assert "nowhere" in found.err


def test_numbers_and_many_labels_are_predicted_in_columns_of_their_own(siafu: Siafu, tmp_path: Path) -> None:
    graph = community(240, degree=8, classes=3, features=12)
    assert graph.y is not None
    write_store(replace(graph, y=graph.y.float()), tmp_path / "numbers")
    write_store(
        replace(graph, y=torch.nn.functional.one_hot(graph.y, 3).to(torch.uint8)), tmp_path / "labels"
    )
    for name, columns in [("numbers", ["id", "value"]), ("labels", ["id", "labels", "probability"])]:
        assert siafu("train", f"./{name}", "--epochs", 2, "--out", f"run-{name}").code == 0
        assert siafu("predict", f"run-{name}").code == 0
        table = pq.read_table("predictions.parquet")
        assert table.column_names == columns
        assert table["id"].to_pylist() == list(range(240))


def test_several_seeds_print_mean_and_deviation(siafu: Siafu) -> None:
    found = siafu("train", COMMUNITY, "--epochs", 3, "--seeds", 3, "--json").json
    assert (found["seeds"], len(found["runs"])) == (3, 3)
    assert 0 <= found["test_accuracy"] <= 1
    assert 0 < found["test_accuracy_std"] < 1
    shown = siafu("train", COMMUNITY, "--epochs", 3, "--seeds", 3)
    assert re.search(r"gcn +test accuracy [\d.]+ ± [\d.]+ %, validation .*, mean of 3 seeds", shown.out)
    page = siafu("report", found["run"], "--json").json
    assert page["runs"] == found["runs"]


def test_the_baseline_is_printed_beside_the_model(siafu: Siafu) -> None:
    shown = siafu("train", COMMUNITY, "--epochs", 3, "--baseline", "--out", "run")
    assert re.search(
        r"gcn +test accuracy .* %, validation .* %\nmlp +test accuracy .*\(the same without the graph\)",
        shown.out,
    )
    assert siafu("resume", "run", "--json").json["baseline"]["model"] == "mlp"


def test_progress_goes_to_standard_error_and_results_to_standard_output(siafu: Siafu) -> None:
    found = siafu("train", COMMUNITY, "--epochs", 3, "--out", "run")
    assert "training 3/3 (100 %)" in found.err
    assert "training gcn for up to 3 epochs, seed 0, in run" in found.err
    assert "training" not in found.out
    assert "run      run\n" in found.out


def test_a_report_needs_nothing_from_elsewhere(siafu: Siafu) -> None:
    for name in ("one", "two"):
        siafu("train", COMMUNITY, "--epochs", 2, "--out", name)
    for paths in (["one"], ["one", "two"]):
        assert siafu("report", *paths, "--out", "page.html").code == 0
        page = Path("page.html").read_text(encoding="utf-8")
        markup = re.sub(r"<script\b[^>]*>.*?</script>", "", page, flags=re.DOTALL)
        assert not re.search(r"(src|href)\s*=\s*[\"']?\s*(https?:)?//", markup)
        assert not re.search(r"<script[^>]+src", page)
        assert "@import" not in markup


def test_flags_override_assignments_override_the_file_overrides_defaults(siafu: Siafu) -> None:
    Path("run.toml").write_text("[train]\nepochs = 9\nlr = 0.5\n[model]\nhidden = 4\nkind = 'sage'\n")
    sets = ("--set", "train.epochs=5", "--set", "model.hidden=8")
    assert siafu("train", "karate", "--config", "run.toml", *sets, "--epochs", 2, "--out", "run").code == 0
    from siafu.config import read_toml

    found = read_toml(Path("run/config.toml"))
    assert (found["train"]["epochs"], found["train"]["lr"]) == (2, 0.5)
    assert (found["model"]["hidden"], found["model"]["kind"], found["model"]["layers"]) == (8, "sage", 2)


def test_the_settings_of_a_former_run_make_the_same_run(siafu: Siafu) -> None:
    siafu("train", COMMUNITY, "--epochs", 3, "--seed", 4, "--model", "sage", "--out", "one")
    assert siafu("train", COMMUNITY, "--config", "one/config.toml", "--out", "two").code == 0
    assert Path("one/model.safetensors").read_bytes() == Path("two/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "karate", "--set", "model.hiden=3"],
            "model.hiden is not a setting; did you mean model.hidden?",
        ),
        (["train", "karate", "--set", "nonsense"], "--set nonsense: expected table.key=value"),
        (["train", "karate", "--model", "gnc"], "model.kind is 'gnc'; expected 'gcn'"),
        (["train", "karate", "--hidden", "0"], "model.hidden is 0; expected a number greater"),
        (["train", "karate", "--seeds", "0"], "seeds is 0; expected a number greater"),
        (
            ["train", "karate", "--config", "bad.toml"],
            "bad.toml: train.epoch is not a setting; did you mean train.epochs?",
        ),
        (["train", "karate", "--epochs", "many"], "--epochs"),
        (["train"], "DATA"),
        (["nonsense"], "No such command"),
        (["train", "karate", "--nonsense"], "No such option"),
    ],
)
def test_wrong_use_ends_with_two(siafu: Siafu, arguments: list[str], message: str) -> None:
    Path("bad.toml").write_text("[train]\nepoch = 3\n")
    found = siafu(*arguments)
    assert (found.code, found.out) == (2, "")
    assert message in found.err
    assert "Traceback" not in found.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "karat"], "error: no data set or path 'karat': did you mean karate"),
        (["train", "some/nowhere"], "error: some/nowhere: no such file or store"),
        (["train", "karate", "--config", "none.toml"], "error: none.toml: No such file or directory"),
        (["train", "rmat:nodes=8,edges=20"], "error: rmat: no labels to train on"),
        (["train", "karate", "--set", "data.fold=3"], "error: karate: fold 3 was asked for"),
        (["train", "karate", "--set", "train.metric=mae"], "error: train.metric is mae, which does not fit"),
        (["train", "karate", "--lr", "1e30"], "is nan; lower --lr (now 1e+30) or set train.clip"),
        (
            ["train", "karate", "--model", "custom"],
            "error: model.kind is custom: give your own module in Python",
        ),
        (["resume", "nowhere"], "error: nowhere: no such folder; give the folder of a run"),
        (["predict", "nowhere"], "error: nowhere: no such folder"),
        (["report", "nowhere"], "error: nowhere: no such folder"),
        (["info", "nowhere"], "error: nowhere is not a store"),
        (["import", "out", "--edges", "none.csv"], "none.csv"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_failure_ends_with_one_and_a_message_without_a_traceback(
    siafu: Siafu, arguments: list[str], message: str, as_json: bool
) -> None:
    found = siafu(*arguments, *(["--json"] if as_json else []))
    assert (found.code, found.out) == (1, "")
    assert message in found.err
    assert "Traceback" not in found.err
    assert not Path("out").exists()


def test_traceback_shows_where_an_error_came_from(siafu: Siafu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["siafu", "train", "karat", "--traceback"])
    with pytest.raises(ValueError, match="no data set or path 'karat'"):
        cli.main()


def test_an_internal_error_is_one_line_too(siafu: Siafu, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("siafu.store.open_any", fail)
    found = siafu("info", "store")
    assert (found.code, found.err) == (
        1,
        "error: KeyError: 'oops' (a fault of siafu; --traceback shows where)\n",
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_a_lack_of_memory_gets_its_own_message(
    siafu: Siafu, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("siafu.store.open_any", fail)
    assert siafu("info", "store").err.startswith("error: not enough memory; lower --hidden")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_stops_after_the_epoch_and_the_run_goes_on_exactly(
    siafu: Siafu, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    siafu("train", COMMUNITY, "--epochs", 6, "--out", "whole")
    show = TrainingProgress.epoch

    def interrupt(self: TrainingProgress, epoch: int, total: int | None, **fields: Any) -> None:
        show(self, epoch, total, **fields)
        if epoch == 3:
            os.kill(os.getpid(), getattr(signal, name))

    monkeypatch.setattr(TrainingProgress, "epoch", interrupt)
    stopped = siafu("train", COMMUNITY, "--epochs", 6, "--out", "run", "--json")
    assert stopped.code == 128 + getattr(signal, name)
    assert (stopped.json["finished"], stopped.json["stopped_by"], stopped.json["epochs"]) == (False, name, 3)
    for key, kind in PROMISED.items():
        assert type(stopped.json[key]) is kind, key
    assert f"stopped by {name} after epoch 3; go on with: siafu resume run" in stopped.err
    assert "not ended" in siafu("predict", "run").err
    assert not Path("run/metrics.json").exists()
    monkeypatch.setattr(TrainingProgress, "epoch", show)
    assert siafu("resume", "run", "--json").json["finished"]
    assert Path("run/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "handlers are put back"


def test_importing_and_asking_for_help_need_no_torch() -> None:
    code = (
        "import sys, siafu\n"
        "from siafu import cli\n"
        "sys.argv = ['siafu', '--help']\n"
        "try:\n    cli.main()\nexcept SystemExit as ended:\n    assert not ended.code\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'pydantic', 'plotly'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


def test_events_are_imported_and_said_to_be_a_graph_that_changes(siafu: Siafu, tmp_path: Path) -> None:
    _csv(tmp_path / "events.csv", "src,dst,t", [("ann", "bob", 25), ("bob", "cyd", 3), ("cyd", "ann", 4)])
    made = siafu("import", "calls", "--events", "events.csv", "--step", 10, "--undirected", "--json")
    assert made.code == 0
    assert "1 of 3 steps have no event; they are kept" in made.err
    assert "2 of 3 events come after one of a later time; sorted by step" in made.err
    assert "read events: src = src, dst = dst, time = t, ids = strings\n" in made.err
    columns = {"events": {"src": "src", "dst": "dst", "time": "t", "ids": "strings"}}
    assert json.loads(made.out)["columns"] == columns
    found = siafu("info", "calls", "--verify", "--json")
    about = json.loads(found.out)
    assert about | json.loads(made.out) == about
    assert (about["events"], about["steps"], about["largest_snapshot"]) == (3, 3, 6)
    assert (about["first_step"], about["last_step"]) == (3, 23)
    wrong = siafu("train", "calls", "--method", "full")
    assert (wrong.code, "use method snapshots" in wrong.err) == (1, True)


def test_import_names_the_options_for_what_it_will_not_guess_or_trust(siafu: Siafu, tmp_path: Path) -> None:
    _csv(tmp_path / "edges.csv", "src,dst", [(i, (i + 1) % 20) for i in range(20)])
    _csv(tmp_path / "y.csv", "id,label", [(i, 17 * i) for i in range(20)])
    tables = ("--edges", "edges.csv", "--labels", "y.csv")
    refused = siafu("import", "out", *tables)
    assert (refused.code, "324 classes for 20 labelled nodes" in refused.err) == (1, True)
    assert "--label-kind" in refused.err
    made = siafu("import", "out", *tables, "--label-kind", "number", "--json")
    assert made.code == 0
    assert json.loads(made.out)["columns"]["labels"] == {"id": "id", "y": "label", "kind": "numbers"}
    assert "read labels: id = id, y = label, kind = numbers" in siafu("info", "out").out
    wide = siafu("import", "other", "--edges", "edges.csv", "--max-line-bytes", "1024", "--max-ratio", "9")
    assert wide.code == 0
    wrong = siafu("import", "third", *tables, "--label-kind", "words")
    assert wrong.code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --edges, or --events"),
        (["--edges", "e.csv", "--events", "e.csv"], "give either --edges, or --events"),
        (["--edges", "e.csv", "--step", 10], "--step cuts the time of --events"),
        (["--events", "e.csv", "--step", 10, "--steps", 5], "give either --step or --steps"),
        (["--events", "e.csv", "--split", "s.csv"], "--split goes with --edges"),
        (
            ["--events", "e.csv", "--feature-dtype", "int8"],
            "--feature-dtype and --feature-layout go with --edges",
        ),
    ],
)
def test_options_of_import_that_do_not_go_together_are_wrong_use(
    siafu: Siafu, options: list[Any], message: str
) -> None:
    found = siafu("import", "out", *options)
    assert (found.code, message in found.err) == (2, True)
