"""A billion edges on one ordinary machine, sampled: import, partition into 4, one epoch of SAGE on 4 ranks.

    python benchmarks/billion_sampled.py --folder /data                             50M nodes, 1e9 edges
    python benchmarks/billion_sampled.py --nodes 1000000 --edges 20000000           a fiftieth of it
    python benchmarks/billion_sampled.py --prepared /data/sampled                   keeps the store and its parts

3 layers, fanouts 15, 10, 5, minibatches of 1024; a hundredth of the nodes is trained on, as in graphs of this size.
What is measured is what ``billion.py`` measures: every step is the real command, and of all its processes together the
anonymous memory is sampled, and of the folder the disk.
"""

import argparse

from billion import FEATURES, HIDDEN, add_places, place, prepare, show, train
from core import require_core
from sampled_side import BATCH, FANOUTS


def main() -> None:
    args = _parse()
    about = f"{args.nodes:,} nodes, {args.edges:,} edges, {FEATURES} features, SAGE hidden {args.hidden}"
    print(f"R-MAT, {about}, {args.trained:.1%} of the nodes trained on")
    print(f"{'':12} {'time':>11} {'anonymous':>12} {'disk':>12}", flush=True)
    model = ["--model", "sage", "--method", "sampled", "--layers", str(len(FANOUTS))]
    model += ["--hidden", str(args.hidden), "--epochs", str(args.epochs)]
    settings = [f"sampled.fanout={','.join(map(str, FANOUTS))}", f"sampled.batch_size={BATCH}", *args.set]
    with place(args.prepared, args.folder) as folder:
        phases = prepare(folder, args.nodes, args.edges, trained=args.trained)
        phase, found = train(folder, model, settings)
    spent = ", ".join(f"{what} {found[f'{what}_seconds']:.1f} s" for what in ("sample", "fetch", "compute"))
    print(f"{'':12} of which on rank 0: {spent}")
    show([*phases, phase], found)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=50_000_000)
    parser.add_argument("--edges", type=int, default=1_000_000_000)
    parser.add_argument("--trained", type=float, default=0.01, help="the share of nodes that are trained on")
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="further settings of siafu train")
    add_places(parser)
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
