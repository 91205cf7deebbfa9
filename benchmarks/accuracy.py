"""Test accuracy on public citation graphs with the default settings, mean of ten seeds, beside the published figures.

SIAFU_DATA=... python benchmarks/accuracy.py [--seeds 10]
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from core import require_core

import siafu
from siafu.data import community, random_labels

# (data, model, published per cent)
ROWS = [
    ("cora", "gcn", 81.5),
    ("citeseer", "gcn", 70.3),
    ("pubmed", "gcn", 79.0),
    ("cora", "gat", 83.0),
]


def accuracies(graph: siafu.Graph, model: str, seeds: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            siafu.train(graph, model=model, seed=seed, out=Path(folder, str(seed))) for seed in range(seeds)
        ]
        return [100 * run.test_accuracy for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", help="such as cora-gcn")
    args = parser.parse_args()
    found = []
    print(f"{'data':10} {'model':6} {'mean':>6} {'std':>5} {'published':>10}")
    for name, model, published in ROWS:
        if args.only and f"{name}-{model}" not in args.only:
            continue
        scores = accuracies(siafu.load(name), model, args.seeds)
        mean, std = statistics.fmean(scores), statistics.stdev(scores)
        print(f"{name:10} {model:6} {mean:6.2f} {std:5.2f} {published:10.1f}", flush=True)
        found.append({"data": name, "model": model, "mean": mean, "std": std, "published": published})
    if not args.only:
        noise = random_labels(community(5_000, degree=20, features=50, classes=10, seed=0), seed=1)
        (score,) = accuracies(noise, "gcn", 1)
        print(f"{'noise':10} {'gcn':6} {score:6.2f} {'':5} {10.0:10.1f}  random labels of 10 classes: chance")
        found.append({"data": "random labels, 10 classes", "model": "gcn", "mean": score, "chance": 10.0})
    print(json.dumps(found))


if __name__ == "__main__":
    require_core()
    main()
