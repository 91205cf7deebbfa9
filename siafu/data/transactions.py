"""Generate payments between accounts: a dynamic graph in the shape of AMLSim's simulations.

A few accounts pay and are paid often, most seldom. Some payments are repeated in the next step. Some accounts belong to
rings, which pass money round in a circle; finding them is the task. Events are generated step by step, so the graph may
be larger than memory. The same arguments give the same events on every machine. No file, no clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from siafu.data.random_stream import RandomStream
from siafu.dynamic import DynamicGraph, Protocol
from siafu.user_input import MAX_NODES

_RING = 5  # accounts
PROTOCOL = Protocol(task="node")
CLASS_NAMES = ("honest", "ring")


class Payments(NamedTuple):
    """The events of one step: payer, payee and amount, (n,) int32, int32, float32."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    weight: NDArray[np.float32]


@dataclass(frozen=True)
class Transactions:
    """Parameters of the generator.

    Attributes:
        nodes, steps, events: N, T, M; every step has as many events as the others, or one more.
        again: the share of the payments of a step that are made again in the next.
        rings: the share of accounts that belong to one; each ring passes money round about once in 20 steps.
        features: F, of each account; what an account is shows in them only a little.
        seed: of everything.
    """

    nodes: int = 20_000
    steps: int = 150
    events: int = 120_000
    again: float = 0.1
    rings: float = 0.05
    features: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if not _RING <= self.nodes <= MAX_NODES or self.steps < 1 or self.events < 1 or self.features < 0:
            raise ValueError(
                f"transactions: {self.nodes} nodes, {self.steps} steps, {self.events} events, {self.features} "
                f"features; expected at least {_RING} nodes, a step and an event"
            )
        if not (0 <= self.again <= 1 and 0 <= self.rings <= 1):
            raise ValueError(
                f"transactions: again {self.again}, rings {self.rings}; expected shares from 0 to 1"
            )

    @property
    def step_ptr(self) -> NDArray[np.int64]:
        """The first event of each step, and the number of events, (T + 1,)."""
        return np.arange(self.steps + 1, dtype=np.int64) * self.events // self.steps

    def by_step(self) -> Iterator[Payments]:
        """Yield the events of each step."""
        order = RandomStream(self.seed, "accounts").order(self.nodes).astype(np.int32)
        other = RandomStream(self.seed, "payees").order(self.nodes).astype(np.int32)
        members = self._members()
        nobody = np.empty(0, np.int32)
        before = Payments(nobody, nobody, np.empty(0, np.float32))
        for step, count in enumerate(np.diff(self.step_ptr).tolist()):
            draws = RandomStream(self.seed, f"step {step}")
            payer, payee = _skewed(order, 1.5, count, draws), _skewed(other, 2.0, count, draws)
            amount = np.round(100 + 500 * draws.uniform(count), 2).astype(np.float32)
            _pay_again(before, payer, payee, amount, share=self.again, draws=draws)
            _pass_round(members, payer, payee, draws)
            payee = np.where(payer == payee, (payee + 1) % self.nodes, payee).astype(np.int32)
            before = Payments(payer, payee, amount)
            yield before

    def labels(self) -> NDArray[np.int64]:
        """Return the labels, (N,): 1 for accounts of rings, 0 for others."""
        y = np.zeros(self.nodes, dtype=np.int64)
        y[self._members().ravel()] = 1
        return y

    def inputs(self) -> NDArray[np.float32] | None:
        """Return the features, (N, F), or None."""
        if not self.features:
            return None
        noise = RandomStream(self.seed, "features").noise(self.nodes, self.features)
        return noise + np.float32(0.5) * self.labels()[:, None].astype(np.float32)

    def graph(self) -> DynamicGraph:
        """Generate the whole graph in memory."""
        steps = list(self.by_step())
        src, dst, weight = (torch.from_numpy(np.concatenate(column)) for column in zip(*steps, strict=True))
        x = self.inputs()
        return DynamicGraph(
            src,
            dst,
            torch.from_numpy(self.step_ptr),
            self.nodes,
            weight=weight,
            x=None if x is None else torch.from_numpy(x),
            y=torch.from_numpy(self.labels()),
            step_time=torch.arange(self.steps, dtype=torch.float64),
            name="transactions",
            class_names=CLASS_NAMES,
            protocol=PROTOCOL,
        )

    def _members(self) -> NDArray[np.int32]:
        """Return the accounts of each ring, (rings, 5)."""
        rings = int(self.rings * self.nodes) // _RING
        return (
            RandomStream(self.seed, "rings")
            .order(self.nodes)[: rings * _RING]
            .reshape(-1, _RING)
            .astype(np.int32)
        )


def _skewed(order: NDArray[np.int32], power: float, count: int, draws: RandomStream) -> NDArray[np.int32]:
    """Draw accounts, those early in the order more often."""
    share = draws.uniform(count)
    skewed = share * (np.sqrt(share) if power == 1.5 else share)  # exactly rounded, unlike other powers
    return order[np.minimum((skewed * len(order)).astype(np.int64), len(order) - 1)]


def _pay_again(
    before: Payments,
    payer: NDArray[np.int32],
    payee: NDArray[np.int32],
    amount: NDArray[np.float32],
    *,
    share: float,
    draws: RandomStream,
) -> None:
    """Replace some payments of this step by payments of the previous one."""
    again = np.flatnonzero(draws.chance(share, len(payer))) if len(before.src) else np.empty(0, np.int64)
    which = draws.below(max(1, len(before.src)), len(again))
    payer[again], payee[again], amount[again] = before.src[which], before.dst[which], before.weight[which]


def _pass_round(
    members: NDArray[np.int32], payer: NDArray[np.int32], payee: NDArray[np.int32], draws: RandomStream
) -> None:
    """Replace the first payments of a step by those of rings that pass money round."""
    at_work = members[draws.chance(0.05, len(members))][: len(payer) // _RING]
    payer[: at_work.size] = at_work.ravel()
    payee[: at_work.size] = np.roll(at_work, -1, axis=1).ravel()
