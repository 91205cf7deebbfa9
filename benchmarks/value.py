"""Where serverless pays: value, 1 / (time x dollars), of a graph server with leases beside the same server without.

    python benchmarks/value.py                             all models; takes some minutes, on a quiet machine
    python benchmarks/value.py --nodes 5000 --epochs 0     small graphs, no training to a target; a minute or two

The tasks of an epoch are measured here, on one thread: graph tasks, tensor tasks as a server does them (torch) and as a
function does them (NumPy), and the bytes that travel. Then they are replayed event by event: alone on a server with
perfect speed-up on its vCPUs, which favours it, and with 1 to 2,000 leases, which share the server's network. A server
has more nodes than are measured here, as many as fit into its memory: its intervals are the measured ones, again and
again. `sampled` and the pipeline are trained to the same validation target on the measured graph; as both pay for one
server alone, its value beside local only is the square of the ratio of their seconds. Prints a Markdown table.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from math import ceil, isclose
from pathlib import Path
from typing import Any

from core import require_core
from replay import Fleet, GraphTask, ReplayTimes, TensorTask, replay

from siafu.cost import Invocation, Meter, Rates, charge, read_prices, value

LEASES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2000)
SHOWN = (1, 32, 128, 2000)
LEASE_S = 840.0  # a function ends after 15 minutes, and its lease a little before


@dataclass(frozen=True)
class Regime:
    """A model on a graph server.

    Attributes:
        name: of the table's line.
        side: the arguments of ``value_side.py``.
        nodes: measured.
        rows: of an interval.
        server_nodes: of a server, in millions.
        epochs: of the pipeline and of `sampled`, in search of the target.
    """

    name: str
    side: tuple[str, ...]
    nodes: int
    rows: int
    server_nodes: float
    epochs: tuple[int, int]


REGIMES = (
    Regime("GCN, hidden 16", ("gcn",), 40_000, 2500, 5.0, (100, 10)),
    Regime("GAT, 8 heads of 8", ("gat",), 20_000, 2500, 2.5, (100, 10)),
    Regime("GIN, rows and MLP of 1024", ("gin", "--lr", "0.003"), 10_000, 2500, 0.6, (30, 15)),
    Regime("GCN, MLP 100-1024-47", ("gcn", "--hidden", "1024"), 20_000, 10_000, 5.0, (60, 10)),
    Regime(
        "GCN, MLP 100-4096-47", ("gcn", "--hidden", "4096", "--lr", "0.003"), 20_000, 10_000, 5.0, (30, 5)
    ),
    Regime(
        "GCN, MLP 100-8192-47", ("gcn", "--hidden", "8192", "--lr", "0.003"), 20_000, 10_000, 5.0, (15, 4)
    ),
)


@dataclass(frozen=True)
class Priced:
    """A replayed epoch and its price: V beside the first's, the server alone."""

    leases: int
    seconds: float
    dollars: float

    def value_beside(self, other: "Priced") -> float:
        return value(self.seconds, self.dollars) / value(other.seconds, other.dollars)


def main() -> None:
    args = _parse()
    rates = read_prices().rates(args.instance, args.function)
    lines, found = [], {}
    for regime in REGIMES:
        if args.only and regime.side[0] not in args.only:
            continue
        measured = _measure(regime, args)
        local, *others = (_priced(measured, regime, leases, args, rates) for leases in (0, *LEASES))
        lines.append(_line(regime, measured, local, others))
        print(lines[-1], flush=True)
        found[regime.name] = {
            "priced": [vars(each) for each in (local, *others)],
            "to_target": measured.get("to_target"),
        }
    _show(lines, args, rates)
    print(json.dumps({**vars(args), "found": found}))


def _measure(regime: Regime, args: argparse.Namespace) -> dict[str, Any]:
    """The tasks of an epoch, by a process that has one thread from its beginning."""
    nodes = min(regime.nodes, args.nodes)
    full, sampled = (min(epochs, args.epochs) for epochs in regime.epochs)
    command = [sys.executable, str(Path(__file__).with_name("value_side.py")), *regime.side]
    command += ["--nodes", str(nodes), "--degree", str(args.degree)]
    command += ["--intervals", str(max(1, nodes // regime.rows))]
    command += ["--epochs", str(full), "--sampled-epochs", str(sampled)]
    one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        command, env=dict(os.environ) | one, stdout=subprocess.PIPE, text=True, check=True
    )  # what it complains of, it says itself
    return json.loads(done.stdout.splitlines()[-1])


def _priced(
    measured: dict[str, Any], regime: Regime, leases: int, args: argparse.Namespace, rates: Rates
) -> Priced:
    """An epoch with so many leases, as one of many."""
    fleet = Fleet(
        leases,
        bytes_per_s=args.lease_mb_s * 1e6,
        latency_s=args.latency,
        speed=args.speed,
        server_bytes_per_s=args.server_gbit_s * 1e9 / 8,
    )
    took = _replayed(measured, regime, fleet, args)
    meter = Meter().with_servers(1, seconds=args.run_epochs * took.seconds)
    if leases:
        whole_s = args.run_epochs * took.seconds
        calls = ceil(whole_s / LEASE_S)
        lease = Invocation(whole_s / calls, init_s=args.init, memory_mb=args.memory_mb)
        for _ in range(leases * calls):
            meter = meter.with_invocation(lease, rates.function)
    return Priced(leases, took.seconds, charge(meter, rates).dollars / args.run_epochs)


def _replayed(
    measured: dict[str, Any], regime: Regime, fleet: Fleet, args: argparse.Namespace
) -> ReplayTimes:
    """The measured intervals, as often as a server has them."""
    count = measured["intervals"]
    times = max(1, round(regime.server_nodes * 1e6 / measured["nodes"]))
    lacks = min(1.0, fleet.leases / (count * times))  # of tasks whose worker has not these weights yet
    travel = {
        (phase, interval): int(rows + lacks * weights + args.moved * static) if fleet.leases else 0
        for phase, interval, _, _, rows, weights, static in measured["tensor"]
    }
    graph, tensor = [], []
    for again in range(times):
        for phase, interval, seconds in measured["graph"]:
            graph.append(GraphTask(phase, again * count + interval, seconds / args.vcpus))
        for phase, interval, torch_s, numpy_s, *_ in measured["tensor"]:
            seconds = numpy_s if fleet.leases else torch_s / args.vcpus
            tensor.append(TensorTask(phase, again * count + interval, seconds, travel[phase, interval]))
    by_key = {(task.phase, task.interval): task.seconds for task in graph}
    if fleet.leases:  # what passes the wire takes the server's time too
        handled = {(t.phase, t.interval): t.bytes * args.ns_per_byte * 1e-9 / args.vcpus for t in tensor}
        graph = [GraphTask(*key, by_key.get(key, 0.0) + seconds) for key, seconds in handled.items()]
    return replay(graph, tensor, fleet, staleness=0)


def _line(regime: Regime, measured: dict[str, Any], local: Priced, others: list[Priced]) -> str:
    """A line of the table."""
    best = max(others, key=lambda each: each.value_beside(local))
    graph_s = sum(seconds for *_, seconds in measured["graph"])
    tensor_s = sum(torch_s for _, _, torch_s, *_ in measured["tensor"])
    at = " | ".join(f"{each.value_beside(local):.2f}x" for each in others if each.leases in SHOWN)
    worth = best.value_beside(local)
    verdict = "**pays**" if worth > 1 else "does not pay"
    return (
        f"| {regime.name} | {tensor_s / (graph_s + tensor_s):.0%} | {local.seconds:.2f} s, "
        f"${1e3 * local.dollars:.3f} | {at} | {best.leases}: {local.seconds / best.seconds:.2f}x as fast for "
        f"{best.dollars / local.dollars:.2f}x the money | {worth:.2f}x | {verdict} | {_sampled(measured)} |"
    )


def _sampled(measured: dict[str, Any]) -> str:
    reached = measured.get("to_target")
    if reached is None or reached["pipeline"] is None:
        return "not measured"
    if reached["sampled"] is None:
        return "target not reached"
    ratio = reached["pipeline"]["seconds"] / reached["sampled"]["seconds"]
    return f"{ratio**2:.2f}x ({reached['sampled']['epochs']} epochs for {reached['pipeline']['epochs']})"


def _show(lines: list[str], args: argparse.Namespace, rates: Rates) -> None:
    shown = " | ".join(f"{leases:,}" for leases in SHOWN)
    print(
        f"\n| model | tensor work | local only, an epoch: time, 1e-3 dollars | V at {shown} leases ", end=""
    )
    print("| most value, at leases | V | serverless | V of `sampled` |")
    print(f"|---|---|---|{'---|' * len(SHOWN)}---|---|---|---|")
    print("\n".join(lines))
    speed = "as fast as" if isclose(args.speed, 1) else f"{args.speed:g} times as fast as"
    print(
        f"\nV beside local only. Prices of {rates.instance.date}: {args.instance} "
        f"${rates.instance.per_hour}/h with {args.vcpus} vCPUs and {args.server_gbit_s:g} Gbit/s, parameter servers "
        f"included; {args.function} ${rates.function.per_gb_second:g} a GB-s, {args.memory_mb} MB, a vCPU {speed} the "
        f"server's; {args.lease_mb_s:g} MB/s and {args.latency * 1e3:g} ms a task for each lease, {args.init:g} s of "
        f"start every {LEASE_S:g} s, billed; {args.ns_per_byte:g} ns of a server's vCPU for each byte; runs of "
        f"{args.run_epochs} epochs; every lease is billed from beginning to end, idle or not. Within a zone bytes are "
        f"free. Beside two such servers, if they were exactly twice as fast, all of this would be halved."
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1_000_000, help="measure no more nodes than this")
    parser.add_argument("--degree", type=float, default=25)
    parser.add_argument("--epochs", type=int, default=1000, help="at most, in search of the target; 0: none")
    parser.add_argument("--only", nargs="+", help="of gcn, gat, gin")
    parser.add_argument("--instance", default="c5n.2xlarge")
    parser.add_argument("--vcpus", type=int, default=8, help="of the instance")
    parser.add_argument("--server-gbit-s", type=float, default=10.0, help="what it sustains")
    parser.add_argument("--function", default="lambda-x86")
    parser.add_argument("--memory-mb", type=int, default=1769, help="of a lease: one vCPU")
    parser.add_argument("--speed", type=float, default=1.0, help="of a lease's vCPU, beside one here")
    parser.add_argument("--lease-mb-s", type=float, default=75.0)
    parser.add_argument("--latency", type=float, default=0.01, help="of a task, in seconds")
    parser.add_argument("--init", type=float, default=0.5, help="seconds of a function's start")
    parser.add_argument("--ns-per-byte", type=float, default=0.6, help="of a server's vCPU, for a byte")
    parser.add_argument(
        "--moved",
        type=float,
        default=0.1,
        help="tasks whose lease has not their static rows, as by scheduler.py",
    )
    parser.add_argument("--run-epochs", type=int, default=100, help="of the run that is priced")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
