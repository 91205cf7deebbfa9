"""The commands that use finished runs: ``predict`` and ``report``."""

from pathlib import Path
from typing import Annotated

import typer

from siafu.cli.output import Json, print_result, say
from siafu.cli.train import RunPath


def predict(
    path: RunPath,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="By default the training data of the run.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write: .parquet or .csv.")] = Path(
        "predictions.parquet"
    ),
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Also write the last hidden rows.")
    ] = False,
    pairs: Annotated[
        Path | None, typer.Option(help="Score pairs of nodes: Parquet, CSV, TSV or .npy with src and dst.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict every node with a trained model, or score given pairs, and write a file."""
    from siafu import inference
    from siafu.inference.export import check_out
    from siafu.results.progress import LiveProgress

    check_out(out)
    run = inference.open_run(path)
    with LiveProgress() as progress:
        graph = inference.source_graph(run, data, progress=progress)
    if pairs is not None:
        count = inference.predict_pairs(run, graph, pairs, out=out)
        print_result(
            {"run": str(path), "out": str(out), "pairs": count},
            as_json,
            f"wrote the scores of {count:,} pairs to {out}",
        )
        return
    inference.predict(run, graph, embeddings=embeddings, out=out, say=say)
    found = {"run": str(path), "out": str(out), "nodes": graph.num_nodes}
    how = ""
    if inference.decides_by_threshold(run, graph):
        found |= {key: run.metrics[key] for key in ("threshold", "positive_class")}
        how = f"; predicted {run.decision}"
    print_result(found, as_json, f"wrote the predictions of {graph.num_nodes:,} nodes to {out}{how}")


def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="One run, several side by side, or one search.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML page about one run, several, or a search."""
    from siafu.results.read import read_run
    from siafu.results.report import write_report, write_search_report
    from siafu.results.search import is_search, read_search

    if search := next(filter(is_search, paths), None):
        if len(paths) > 1:
            raise ValueError(f"{search}: a search, which has a report of its own; give it alone")
        write_search_report(read_search(search), out)
        print_result({"out": str(out), "search": str(search)}, as_json, f"wrote {out}")
        return
    runs = [each for path in paths for each in sorted(path.glob("seed-[0-9]*"), key=_seed_number) or [path]]
    records = [read_run(path) for path in runs]
    write_report(records, out)
    damaged = {str(record.path): list(record.damage) for record in records if record.damage}
    for path, texts in damaged.items():
        say("\n".join(f"{path}: {text}" for text in texts))
    found = {"out": str(out), "runs": [str(path) for path in runs], "damaged": damaged}
    print_result(found, as_json, f"wrote {out}")


def _seed_number(path: Path) -> int:
    """Return the number at the end of a folder's name."""
    return int(path.name.rpartition("-")[2])
