"""Training at four levels of decentralisation: accuracy, bytes and seconds on the network of full, sampled and lazy.

    SIAFU_DATA=... python benchmarks/decentral.py [--data cora] [--seed 0] [--parts 2 8 64] [--out decentral.html]

Levels: data centre and WAN with four random parts, proximity with two, edge with a client for each node; links as in
``siafu.comm.network_profiles``. A coordinator adds up gradients or weights, at every level and for every method alike.
Lazy training is simulated, client by client, and every byte counted. Full and sampled training give the same weights
for any number of parts, so their accuracy is that of one rank, and their bytes follow from who reads whose rows:

- *full* sends the inputs of boundary nodes once; then in every epoch the narrower side of the second layer forwards,
  its gradients backwards, and each part the gradients of all weights;
- *sampled* aggregates the inputs of all nodes once, for which those of boundary nodes travel; inputs and aggregates of
  the neighbours of training nodes are fetched once and kept; in every epoch neighbours are named, and parts with
  training nodes send gradients, once: all training nodes are one minibatch.

Both send fp32, as published. Evaluation is left out for them, in their favour, and counted for lazy training, which
cannot do without. Seconds are those of messages alone: computing is not in them. The picture has curves over parts and
over bandwidth.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from core import require_core
from torch import Tensor

import siafu
from siafu.comm import single_rank_comm
from siafu.comm.network_profiles import NETWORK_PROFILES, NetworkProfile, TransferStep, transfer_seconds
from siafu.comm.rounds import MemberLinks, member_links
from siafu.comm.simulated_rounds import framed_bytes
from siafu.config import build
from siafu.event_log import NullEventLog
from siafu.files import write_atomically
from siafu.graph import Graph
from siafu.methods import RankContext, build_procedure
from siafu.methods.lazy.clients import ClientsProcedure
from siafu.methods.lazy.frugal_clients import FrugalClientsProcedure
from siafu.methods.lazy.traffic import message_bytes, parameter_bytes
from siafu.partition.assign import assign
from siafu.partition.cut import whole_part
from siafu.results.format import fmt_bytes, fmt_seconds
from siafu.results.report.frame import Figure, frame
from siafu.results.report.page import element, figure, join, page, section, table
from siafu.training.loop import Loop
from siafu.training.procedure import Monitor

HIDDEN = 64
AT: dict[str, int | str] = {"data centre": 4, "wan": 4, "proximity": 2, "edge": "node"}
LAZY: dict[str, dict[str, Any]] = {
    "lazy published": {"recipe": "published"},
    "lazy logits": {"recipe": "logits"},
    "lazy frugal": {"recipe": "frugal"},
}
BANDWIDTHS = [10 ** (place / 2) for place in range(10, 21)]  # bits a second
QUIET = Monitor(NullEventLog())


@dataclass(frozen=True)
class Found:
    """One method among some members: what it reached, what all sent, and the steps in which they did."""

    accuracy: float
    messages: int
    parameters: int
    per_client: float
    per_training_client: float
    steps: list[TransferStep]

    @property
    def total(self) -> int:
        """All bytes."""
        return self.messages + self.parameters


def owners(graph: Graph, clients: int | str) -> Tensor:
    if clients == "node":
        return torch.arange(graph.num_nodes)
    return assign(graph, parts=int(clients), by="hash").long()


class Ledger:
    """Counts steps of all members by hand: what each sends and receives."""

    def __init__(self, graph: Graph, owner: Tensor) -> None:
        self.owner, self.num_members = owner, int(owner.max()) + 1
        self.links: MemberLinks = member_links(graph.indptr, graph.indices, owner)
        self.each = torch.zeros(self.num_members, dtype=torch.int64)
        self.steps: list[TransferStep] = []
        self.messages = self.parameters = 0

    def link(self, payload: Tensor, *, back: bool = False, times: int = 1) -> None:
        """Messages of so many bytes over each link, (L,); none where there are none."""
        total = torch.where(payload > 0, payload + framed_bytes(0), 0)
        sender, reader = self.links.pair.unbind(1)
        self._count(total, *((reader, sender) if back else (sender, reader)), times=times)

    def between(self, pair: Tensor, payload: Tensor, *, times: int = 1) -> None:
        """So many bytes, (K,), from one member to another, (K, 2); what goes the same way is one message."""
        ways, place = pair.unique(dim=0, return_inverse=True)
        total = torch.zeros_like(ways[:, 0]).index_add_(0, place, payload) + framed_bytes(0)
        self._count(total, *ways.unbind(1), times=times)

    def update(self, count: int, who: Tensor, *, times: int) -> None:
        """So many numbers of 4 bytes from each, (P,) bool, to the coordinator, and back."""
        size = framed_bytes(4 * count)
        self.each += 2 * times * size * who
        self.parameters += 2 * times * size * int(who.sum())
        self.steps += [TransferStep(times * size, 0, times), TransferStep(0, times * size, times)]

    def rows_of_links(self, width: int) -> Tensor:
        """The bytes of all rows of each link, so many numbers wide, (L,)."""
        count = torch.bincount(self.links.link, minlength=self.links.pair.shape[0])
        return 4 * width * count

    def found(self, accuracy: float, trains: Tensor) -> Found:
        each = self.each.double()
        means = float(each.mean()), float(each[trains].mean())
        return Found(accuracy, self.messages, self.parameters, *means, self.steps)

    def _count(self, total: Tensor, sender: Tensor, reader: Tensor, *, times: int) -> None:
        nobody = torch.zeros(self.num_members, dtype=torch.int64)
        sent, received = nobody.index_add(0, sender, total), nobody.index_add(0, reader, total)
        self.each += times * (sent + received)
        self.messages += times * int(total.sum())
        self.steps.append(TransferStep(times * int(sent.max()), times * int(received.max()), times))


def trains_of(graph: Graph, owner: Tensor) -> Tensor:
    found = torch.zeros(int(owner.max()) + 1, dtype=torch.bool)
    found[owner[torch.as_tensor(graph.train_mask)]] = True
    return found


def weights_of(graph: Graph) -> tuple[int, int]:
    """The classes, and the numbers of a GCN of two layers."""
    assert graph.x is not None
    assert graph.y is not None
    classes = int(graph.y.max()) + 1
    return classes, graph.x.shape[1] * HIDDEN + HIDDEN + HIDDEN * classes + classes


def full(graph: Graph, owner: Tensor, run: dict[str, Any]) -> Found:
    """End to end: rows of every layer in both directions in every epoch, and all weights of all members."""
    assert graph.x is not None
    ledger, (classes, numbers) = Ledger(graph, owner), weights_of(graph)
    narrow, epochs = min(classes, HIDDEN), run["epochs"]
    ledger.link(ledger.rows_of_links(graph.x.shape[1]))
    ledger.link(ledger.rows_of_links(narrow), times=epochs)
    ledger.link(ledger.rows_of_links(narrow), back=True, times=epochs)
    ledger.update(numbers, torch.ones(ledger.num_members, dtype=torch.bool), times=epochs)
    return ledger.found(run["test_accuracy"], trains_of(graph, owner))


def sampled(graph: Graph, owner: Tensor, run: dict[str, Any]) -> Found:
    """Minibatches: inputs once, rows of neighbours once, names of neighbours and all weights in every epoch."""
    assert graph.x is not None
    ledger, (_, numbers) = Ledger(graph, owner), weights_of(graph)
    trains, width = trains_of(graph, owner), graph.x.shape[1]
    seeds = torch.as_tensor(graph.train_mask).nonzero()[:, 0]
    fetched = _elsewhere(_read(graph, torch.stack([seeds, owner[seeds]], 1)), owner)
    ledger.link(ledger.rows_of_links(width))
    ledger.between(fetched.flip(1), torch.full_like(fetched[:, 0], 4), times=run["epochs"])
    ledger.between(fetched, torch.full_like(fetched[:, 0], 2 * 4 * width))
    ledger.update(numbers, trains, times=run["epochs"])
    return ledger.found(run["test_accuracy"], trains)


def _read(graph: Graph, wanted: Tensor) -> Tensor:
    """Which nodes are read by whom, (K, 2), if nodes ``wanted`` by whom, (R, 2), are computed."""
    row = torch.arange(graph.num_nodes).repeat_interleave(graph.indptr.diff())
    count = graph.indptr.diff()[wanted[:, 0]]
    place = torch.arange(int(count.sum())) - (count.cumsum(0) - count).repeat_interleave(count)
    edge = graph.indptr[wanted[:, 0]].repeat_interleave(count) + place
    assert bool((row[edge] == wanted[:, 0].repeat_interleave(count)).all())
    return torch.stack([graph.indices[edge].long(), wanted[:, 1].repeat_interleave(count)], 1).unique(dim=0)


def _elsewhere(read: Tensor, owner: Tensor) -> Tensor:
    """Owner and reader of what another owns, (K, 2)."""
    pair = torch.stack([owner[read[:, 0]], read[:, 1]], 1)
    return pair[pair[:, 0] != pair[:, 1]]


def lazy(graph: Graph, clients: int | str, *, settings: dict[str, Any], seed: int) -> Found:
    """Lazy training among clients, as it is simulated."""
    tree = build(
        {
            "method": "lazy",
            "seed": seed,
            "model": {"hidden": HIDDEN},
            "partition": {"by": "hash"},
            "lazy": settings | {"clients": clients},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_procedure(
            RankContext(single_rank_comm(), whole_part(graph), tree, None, Path(folder))
        )
        Loop(trainer, tree.train).fit(QUIET)
    assert isinstance(trainer, ClientsProcedure | FrugalClientsProcedure)
    sent = trainer.sent.update()
    told = trainer.metrics(0.0)
    return Found(
        trainer.task.score(trainer.outputs(), "test") or 0.0,
        message_bytes(sent),
        parameter_bytes(sent),
        told["bytes_per_client"],
        told["bytes_per_training_client"],
        trainer.rounds.steps,
    )


def methods(graph: Graph, seed: int) -> dict[str, Callable[[int | str], Found]]:
    """Every method as a function of who the members are; what does not depend on them is trained once."""
    once = {name: trained(graph, name, seed) for name in ("full", "sampled")}
    found: dict[str, Callable[[int | str], Found]] = {
        "full": lambda clients: full(graph, owners(graph, clients), once["full"]),
        "sampled": lambda clients: sampled(graph, owners(graph, clients), once["sampled"]),
    }
    for name, settings in LAZY.items():
        found[name] = partial(lazy, graph, settings=settings, seed=seed)
    return found


def trained(graph: Graph, method: str, seed: int) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    if method == "sampled":
        batch = {"batch_size": int(torch.as_tensor(graph.train_mask).sum())}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        run = siafu.train(graph, model="gcn", method=method, hidden=HIDDEN, seed=seed, out=out, **batch)
        return run.metrics


def show(level: str, found: dict[str, Found]) -> None:
    link, members = NETWORK_PROFILES[level], AT[level]
    who = "a client for each node" if members == "node" else f"{members} parts"
    print(f"\n{level}: {who}, {link.up / 1e6:g} Mb/s, {1000 * link.latency_s:g} ms")
    head = ("accuracy", "messages MB", "parameters MB", "a client MB", "a training one", "network s")
    print(f"  {'':15}" + "".join(f"{text:>15}" for text in head))
    for name, one in found.items():
        counts = (one.messages, one.parameters, one.per_client, one.per_training_client)
        numbers = "".join(f"{count / 1e6:15.3f}" for count in counts)
        print(f"  {name:15}{one.accuracy:15.3f}{numbers}{transfer_seconds(one.steps, link):15.1f}")


def lines(curves: dict[str, list[tuple[float, float]]], *, x: str, y: str, unit: str) -> Figure:
    """Lines on two logarithmic axes, one for each method."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [place for place, _ in points],
            "y": [value for _, value in points],
            "line": {"color": f"--run{number}", "width": 2},
            "marker": {"color": f"--run{number}"},
        }
        for number, (name, points) in enumerate(curves.items())
    ]
    drawn = frame(traces, y={"title": y, "type": "log", "tickformat": unit}, height=360)
    drawn["layout"]["xaxis"] |= {"type": "log", "title": {"text": x}, "tickformat": "~s"}
    return drawn


def over_parts(by_parts: dict[int, dict[str, Found]], value: Callable[[Found], float]) -> dict[str, Any]:
    names = next(iter(by_parts.values()))
    return {name: [(parts, value(found[name])) for parts, found in by_parts.items()] for name in names}


def picture(levels: dict[str, dict[str, Found]], by_parts: dict[int, dict[str, Found]], title: str) -> str:
    """One page with the table and the curves."""
    wan = NETWORK_PROFILES["wan"]
    rows = [
        [
            f"{level}: {name}",
            f"{one.accuracy:.3f}",
            *(fmt_bytes(count) for count in (one.messages, one.parameters, one.per_training_client)),
            fmt_seconds(transfer_seconds(one.steps, NETWORK_PROFILES[level])),
        ]
        for level, found in levels.items()
        for name, one in found.items()
    ]
    head = ["level: method", "test accuracy", "messages", "parameters", "a training client", "network"]
    sent = lines(over_parts(by_parts, lambda one: one.total), x="parts", y="bytes", unit="~s")
    took = lines(
        over_parts(by_parts, lambda one: transfer_seconds(one.steps, wan)), x="parts", y="seconds", unit="~g"
    )
    some = levels["wan"]
    widths = {
        name: [
            (each, transfer_seconds(one.steps, NetworkProfile(each, each, wan.latency_s)))
            for each in BANDWIDTHS
        ]
        for name, one in some.items()
    }
    wide = lines(widths, x="bits a second", y="seconds", unit="~g")
    pictures = [
        figure("parts", sent, "Bytes over parts", "all that all sent"),
        figure("seconds", took, "Seconds over parts", "on 100 Mb/s and 50 ms, computing left out"),
        figure("bandwidth", wide, "Seconds over bandwidth", "four parts, 50 ms"),
    ]
    body = [section("Levels", table(head, rows, numbers=True)), section("Curves", join(pictures))]
    return page(title, element("main", element("h1", title), *body))


def plain(found: dict[Any, dict[str, Found]]) -> dict[str, Any]:
    return {
        str(key): {name: vars(one) | {"steps": len(one.steps)} for name, one in each.items()}
        for key, each in found.items()
    }


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cora")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", type=int, nargs="*", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--out", type=Path, default=Path("decentral.html"))
    args = parser.parse_args(None if arguments is None else list(arguments))
    graph = siafu.load(args.data)
    among, memo = methods(graph, args.seed), dict[tuple[str, int | str], Found]()

    def found(clients: int | str) -> dict[str, Found]:
        for name, method in among.items():
            if (name, clients) not in memo:
                memo[name, clients] = method(clients)
        return {name: memo[name, clients] for name in among}

    levels = {}
    for level, clients in AT.items():
        levels[level] = found(clients)
        show(level, levels[level])
    by_parts = {parts: found(parts) for parts in args.parts}
    title = f"Levels of decentralisation: {graph.name}"
    write_atomically(args.out, picture(levels, by_parts, title).encode())
    print(f"\npicture: {args.out}")
    print(json.dumps({"levels": plain(levels), "parts": plain(by_parts)}))


if __name__ == "__main__":
    require_core()
    main()
