"""A billion edges through the pipeline: one epoch of GCN on graph servers of one ordinary machine, 4 or `--ranks`.

    python benchmarks/billion_pipeline.py --folder /data              R-MAT of 16.8M nodes and 1e9 edges; 40 GB of disk
    python benchmarks/billion_pipeline.py --scale 16 --edges 4000000  a 250th of it, in a minute
    python benchmarks/billion_pipeline.py --prepared /data/billion    the store and parts that billion.py left there

Every step is the real command, as in ``billion.py``, which trains the same model with ``full``. Features and their
aggregate stay on disk (data.inputs=stream). Tensor tasks are done in line, as there are more ranks than cores;
``--set pipeline.workers=processes`` has processes do them.
"""

import argparse

from billion import FEATURES, HIDDEN, PARTS, add_places, place, prepare, show, train
from core import require_core


def main() -> None:
    args = _parse()
    print(f"R-MAT, {1 << args.scale:,} nodes, {args.edges:,} edges, {FEATURES} features, GCN hidden {HIDDEN}")
    print(f"{'':12} {'time':>11} {'anonymous':>12} {'disk':>12}", flush=True)
    model = ["--model", "gcn", "--method", "pipeline", "--hidden", str(HIDDEN), "--epochs", str(args.epochs)]
    own = ["data.inputs=stream", "pipeline.workers=inline", f"pipeline.intervals={args.intervals}"]
    with place(args.prepared, args.folder) as folder:
        phases = prepare(folder, 1 << args.scale, args.edges, trained=0.5, ranks=args.ranks)
        phase, found = train(folder, model, [*own, *args.set], ranks=args.ranks)
    print(f"{found['tasks']:,} tasks, of at most {args.intervals} intervals a rank")
    show([*phases, phase], found)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=int, default=24, help="2 to this power are the nodes")
    parser.add_argument("--edges", type=int, default=1_000_000_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--intervals", type=int, default=32, help="of each rank")
    parser.add_argument("--ranks", type=int, default=PARTS, help="graph servers; 1 needs no partition")
    parser.add_argument("--set", action="append", default=[], help="further settings of siafu train")
    add_places(parser)
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
