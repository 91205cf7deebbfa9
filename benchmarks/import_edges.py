"""Import a generated file of edges and print the time, the rate and the largest resident memory.

    python benchmarks/import_edges.py --edges 100000000 --format csv

The file is made in a temporary folder, which is removed afterwards. The import runs in its own process, whose
memory is measured. One line of a table and one line of JSON are printed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from core import require_core

_BATCH = 1 << 20


def main() -> None:
    options = _parse()
    if options.child:
        _import_here(*options.child, undirected=options.undirected)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder) / f"edges.{options.format}"
        _generate(source, options)
        command = [sys.executable, __file__, "--child", str(source), str(Path(folder) / "store")]
        command += ["--undirected"] if options.undirected else []
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        _print(json.loads(found.splitlines()[-1]), source, options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--nodes", type=int, default=None, help="default: a twentieth of the edges")
    parser.add_argument("--format", choices=["csv", "parquet", "npy"], default="csv")
    parser.add_argument("--ids", choices=["rows", "sparse", "strings"], default="rows")
    parser.add_argument("--undirected", action="store_true")
    parser.add_argument("--folder", default=None, help="where to make the temporary folder")
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    return parser.parse_args()


def _import_here(source: str, out: str, *, undirected: bool) -> None:
    from siafu.data.importing import import_graph

    started = time.perf_counter()
    store = import_graph(out, edges=source, undirected=undirected)
    seconds = time.perf_counter() - started
    manifest = store.manifest
    found = {"nodes": manifest.num_nodes, "edges": manifest.num_edges}
    print(json.dumps({**found, "seconds": seconds, "peak_rss_bytes": _peak_rss_bytes()}))


def _peak_rss_bytes() -> int:
    """The largest resident memory of this program; getrusage would count that of the parent as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _generate(path: Path, options: argparse.Namespace) -> None:
    """Write edges whose targets are skewed: few nodes have many."""
    nodes = options.nodes or max(2, options.edges // 20)
    random = np.random.default_rng(0)
    if options.format == "npy":
        np.save(path, _edges(random, options.edges, nodes).T)
        return
    writer = None
    for start in range(0, options.edges, _BATCH):
        src, dst = _edges(random, min(_BATCH, options.edges - start), nodes)
        batch = pa.record_batch({"src": _named(src, options.ids), "dst": _named(dst, options.ids)})
        if writer is None:
            new = pa_csv.CSVWriter if options.format == "csv" else pq.ParquetWriter
            writer = new(str(path), batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def _edges(random: np.random.Generator, count: int, nodes: int) -> np.ndarray:
    src = random.integers(0, nodes, count)
    dst = (random.random(count) ** 2 * nodes).astype(np.int64)
    return np.stack([src, dst])


def _named(rows: np.ndarray, ids: str) -> pa.Array:
    match ids:
        case "sparse":
            return pa.array(rows * 1_000_003 + 7)
        case "strings":
            return pa.array(np.char.add("user-", rows.astype(str)))
    return pa.array(rows)


def _print(found: dict[str, float], source: Path, options: argparse.Namespace) -> None:
    size = source.stat().st_size
    row = {
        "format": options.format,
        "ids": options.ids,
        "undirected": options.undirected,
        "edges_read": options.edges,
        **found,
        "file_bytes": size,
        "mb_per_second": size / 1e6 / found["seconds"],
    }
    print(
        f"{options.format:8} {options.ids:8} {options.edges:>13,} edges {found['nodes']:>12,} nodes "
        f"{found['seconds']:8.1f} s {row['mb_per_second']:8.1f} MB/s "
        f"{found['peak_rss_bytes'] / 1e6:8.0f} MB peak RSS"
    )
    print(json.dumps(row))


if __name__ == "__main__":
    require_core()
    main()
