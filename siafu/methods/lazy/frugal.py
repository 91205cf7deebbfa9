"""The frugal recipe: closed-form heads and a few rounds of smoothing, each kept only where validation says so.

A few megabytes in all, where training end to end sends gigabytes. What is tried, in this order:

- a ridge head on the inputs, without any message of rows; and what it says, smoothed (A);
- a ridge head on inputs of two hops, blended with the first, and that smoothed (B);
- where smoothing did harm, as among nodes whose neighbours are unlike them: a head on inputs of all hops whose weights
  depend on a node's degree (D);
- where it helped: a head on the inputs that is fitted anew, on what the best smoothed is surest of; smoothed (C).

So few validation nodes tell such things with an error: smoothing helped where it is a standard error above the head on
inputs, and no more than one below the best that is not smoothed. It did harm where it is half of one below that; a
whole one, where it made of the head on inputs something three errors better, so that neighbours are alike. As with
other stages (``trainer.py``), D is kept where it is no more than an error below the best: it is asked where it is due.

What is tried is sent, and counted, whether it is kept or not. Penalties, rounds of conjugate gradients and blends cost
no rows: they are tried on the nodes that a rank has. Known labels are learned from, but not put in the place of what is
said of training nodes while it is smoothed: the model would then know its nodes, and be good for no others.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn.functional import one_hot

from siafu.comm.comm import Comm
from siafu.comm.compressed_halo import CompressedHalo
from siafu.comm.config import Precision
from siafu.comm.route import Route
from siafu.graph import Block
from siafu.methods.lazy.degree_heads import ByDegree, beside_each_other, by_hop, knots_of, scales_of_hops
from siafu.methods.lazy.hop_features import hop_rows
from siafu.methods.lazy.ridge import Head, Picked, Ridge, fit_head
from siafu.methods.lazy.self_training import confident
from siafu.methods.lazy.smoothing import search_smoothing
from siafu.methods.lazy.validation import first_best, val_scores
from siafu.nn.aggregates import gcn_scales
from siafu.nn.propagated import Propagated, of_unit_length, shares_of_knots
from siafu.nn.streamed import Rows
from siafu.training.task import Task

_BLENDS = tuple(step / 10 for step in range(10, -1, -1))  # how much of the hops; of equals, the most


class FrugalConfig(BaseModel):
    """What the frugal recipe tries, and in how many bits it sends."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    penalties: tuple[float, ...] = Field((3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001), min_length=1)
    ridge_rounds: int = Field(12, ge=1)
    ridge_patience: int = Field(3, ge=1)
    temperatures: tuple[float, ...] = Field((8.0, 16.0), min_length=1)
    smooth_rounds: int = Field(10, ge=1)
    smooth_patience: int = Field(2, ge=1)
    share: float = Field(0.1, gt=0, lt=1)  # of a node's own probabilities in each round
    hops: int = Field(2, ge=0)  # 0: no features travel, and B is left out
    confident: float = Field(0.8, gt=0, le=1)  # share of nodes that are fitted anew on
    sums: Precision = "int8"  # of the matrices of the heads
    sums_by_degree: Precision = (
        "fp32"  # of those whose weights depend on the degree, which rounding costs more
    )
    scores: Precision = "int8"  # of features and scores of hops
    probabilities: Precision = "int4"  # of what is smoothed


@dataclass(frozen=True)
class Tried:
    """One thing that was tried: its name, its score on the validation nodes, and what this rank sent for it."""

    name: str
    score: float
    sent: dict[str, int]

    @property
    def sent_bytes(self) -> int:
        """All that was sent."""
        return sum(self.sent.values())


@dataclass(frozen=True, eq=False)
class Frugal:
    """What came of the recipe.

    Attributes:
        model: the best that was tried.
        out: (D, C), what it says of the nodes here.
        block: the block whose halo travels packed; on it the model says ``out`` again, in the fewest bytes.
        tried: what was tried, in order.
        chosen: the place of the best among them.
        sent: bytes that this rank sent, by label.
    """

    model: Propagated
    out: Tensor
    block: Block
    tried: tuple[Tried, ...]
    chosen: int
    sent: dict[str, int]


@dataclass(frozen=True, eq=False)
class Candidate:
    """Weights of hops, how what they say is smoothed, and what comes of it.

    ``z`` and ``q`` are (D, C) float64: scores, and smoothed probabilities where there are rounds.
    """

    weights: dict[int, Tensor]
    bias: Tensor
    score: float
    z: Tensor
    q: Tensor
    temperature: float
    rounds: int = 0
    knots: int = 1


def train_frugal(comm: Comm, block: Block, route: Route, x: Rows, task: Task, config: FrugalConfig) -> Frugal:
    """Fit the frugal recipe on one rank's part of a graph. Collective.

    ``route`` is that of the block's halo. Inputs that are streamed are not passed on over the graph: B is left out.
    """
    return Recipe(comm, block, route, x, task, config).run()


def _check(task: Task) -> None:
    if task.kind != "class":
        raise ValueError(
            f"lazy.recipe is frugal, which learns one class a node, but the labels are of kind {task.kind}; set it to "
            "published"
        )
    if not task.count["val"]:
        raise ValueError(
            "lazy.recipe is frugal, which keeps what the validation nodes find good, but there are none; give "
            "val_mask (in Python) or --split (on import), or set it to published"
        )


class Recipe:
    """What is tried, one after another, on the nodes of one rank."""

    def __init__(
        self, comm: Comm, block: Block, route: Route, x: Rows, task: Task, config: FrugalConfig
    ) -> None:
        _check(task)
        self.comm, self.route, self.task, self.config = comm, route, task, config
        self.x = of_unit_length(x)
        self.halo = CompressedHalo(comm, route, num_own=block.num_dst)
        others = None if block.others is None else self.halo
        self.block = replace(block, others=others, memo={})
        self.train, self.val = task.rows["train"], task.rows["val"]
        self.known = one_hot(task.y[self.train], task.num_outputs).double()
        self.there = torch.ones(block.num_dst, dtype=torch.bool)  # nodes of those who take part
        self.best: Candidate | None = None
        self.made: list[Candidate] = []
        self.tried: list[Tried] = []
        self.before = comm.meter.sent

    def run(self) -> Frugal:
        """Try everything. Collective."""
        self.halo.begin("halo degrees")
        gcn_scales(self.block, torch.float64)
        plain = self._try("head on inputs", lambda: self._plain(self.train, self.known))
        self._try("A: the same, smoothed", lambda: self._smoothed(plain))
        if isinstance(self.x, Tensor) and self.config.hops:
            self._try_hops(plain, self.x)
        if self._above(plain) > 1 and self._gain() >= -1:
            rows, target = confident(
                self.smoothest.q, self.task, share=self.config.confident, among=self.there
            )
            again = self._try("head fitted anew", lambda: self._plain(rows, target))
            self._try("C: the same, smoothed", lambda: self._smoothed(again))
        return self._result()

    def _try_hops(self, plain: Candidate, x: Tensor) -> None:
        """Heads on inputs of hops. Collective."""
        rows, last = list[Tensor](), self.config.hops

        def of_last() -> Candidate:
            rows.extend(self._hop_rows(x))
            return self._blended(plain, last, rows[-1], x)

        made = self._try(f"heads on inputs and {last} hops", of_last)
        self._try("B: the same, smoothed", lambda: self._smoothed(made))
        if self._does_harm(plain):
            before = self.kept
            by_degree = self._try("D: heads on hops by degree", lambda: self._by_degree(rows, x))
            if self._errors(before, by_degree) >= -1:
                self.best = by_degree

    def _does_harm(self, plain: Candidate) -> bool:
        alike = self._errors(plain, self.made[1]) >= 3
        return self._above(plain) <= 1 or self._gain() < (-1 if alike else -0.5)

    def _gain(self) -> float:
        """By how many standard errors the best smoothed candidate is above the best other."""
        others = [each for each in self.made if not each.rounds]
        return self._above(max(others, key=lambda each: each.score))

    def _above(self, other: Candidate) -> float:
        """By how many standard errors the best smoothed candidate is above another."""
        return self._errors(other, self.smoothest)

    def _errors(self, of: Candidate, other: Candidate) -> float:
        """By how many standard errors of the first's score the second is above it."""
        error = sqrt(max(1e-9, of.score * (1 - of.score)) / self.task.count["val"])
        return (other.score - of.score) / error

    @property
    def smoothest(self) -> Candidate:
        """The best so far that is smoothed."""
        return max((each for each in self.made if each.rounds), key=lambda each: each.score)

    @property
    def kept(self) -> Candidate:
        """The best so far."""
        assert self.best is not None
        return self.best

    def _result(self) -> Frugal:
        best, model = self.kept, self._model(self.kept)
        sent = _since(self.before, self.comm.meter.sent)
        chosen = next(place for place, made in enumerate(self.made) if made is best)
        return Frugal(model, model.said(best.z, best.q), self.block, tuple(self.tried), chosen, sent)

    def _try(self, name: str, make: Callable[[], Candidate]) -> Candidate:
        """Make a candidate, count what that sends, and keep it if it is better than all before. Collective."""
        before = self.comm.meter.sent
        made = make()
        self.tried.append(Tried(name, made.score, _since(before, self.comm.meter.sent)))
        self.made.append(made)
        if self.best is None or made.score > self.best.score:
            self.best = made
        return made

    def _plain(self, rows: Tensor, target: Tensor) -> Candidate:
        """A head on the inputs of some rows."""
        head = self._head(Picked(self.x, rows), target, Picked(self.x, self.val))
        z = Picked(self.x).times(head.weight) + head.bias.double()
        return self._candidate({0: head.weight}, head.bias, head.score, z)

    def _head(self, rows: Picked, target: Tensor, rows_val: Picked, *, sums: Precision | None = None) -> Head:
        config, weight = self.config, None
        if self.task.class_weight is not None:
            weight = target @ self.task.class_weight.double()
        return fit_head(
            self._ridge(rows, target, weight, sums=sums or config.sums),
            rows_val,
            self.task,
            penalties=config.penalties,
            rounds=config.ridge_rounds,
            patience=config.ridge_patience,
        )

    def _ridge(self, rows: Picked, target: Tensor, weight: Tensor | None, *, sums: Precision) -> Ridge:
        return Ridge(rows, target, self.comm, precision=sums, weight=weight)

    def _hop_rows(self, x: Tensor) -> list[Tensor]:
        """Inputs of each hop, of training nodes, then of validation nodes."""
        config, wanted = self.config, torch.cat([self.train, self.val])
        return hop_rows(
            self.comm, self.block, self.route, x, wanted=wanted, hops=config.hops, precision=config.scores
        )

    def _blended(self, made: Candidate, hop: int, rows: Tensor, x: Tensor) -> Candidate:
        """A head on the inputs of a hop, mixed with a candidate as the validation nodes find best."""
        train, val = torch.arange(rows.shape[0]).split([self.train.numel(), self.val.numel()])
        head = self._head(Picked(rows, train), self.known, Picked(rows, val))
        z_val = Picked(rows, val).times(head.weight) + head.bias.double()
        mixed = [made.z[self.val].lerp(z_val, blend) for blend in _BLENDS]
        blend = _BLENDS[first_best(val_scores(self.task, mixed))]
        weights = {each: (1 - blend) * weight for each, weight in made.weights.items() if blend < 1}
        if blend > 0:
            weights[hop] = blend * head.weight
        return self._as_said(self._candidate(weights, made.bias.lerp(head.bias, blend), 0.0, made.z), x)

    def _by_degree(self, rows: list[Tensor], x: Tensor) -> Candidate:
        """A head on the inputs of all hops whose weights depend on a node's degree."""
        knots = knots_of(self.block, self.comm, among=self.there)
        nodes = torch.cat([self.train, self.val])
        train, val = torch.arange(nodes.numel()).split([self.train.numel(), self.val.numel()])
        scales = scales_of_hops([each[train] for each in rows], self.comm)
        beside, shares = beside_each_other(rows, scales), shares_of_knots(self.block, knots)[nodes]
        rows_train, rows_val = (ByDegree(beside, shares, some) for some in (train, val))
        head = self._head(rows_train, self.known, rows_val, sums=self.config.sums_by_degree)
        weights, bias = by_hop(head, scales, knots=knots)
        made = self._candidate(weights, bias, head.score, self.kept.z)
        return self._as_said(replace(made, knots=knots), x)

    def _as_said(self, made: Candidate, x: Tensor) -> Candidate:
        """A candidate with what its model says, scores rounded on their way. Collective."""
        self.halo.begin("halo scores")
        z = self._model(made).scores(self.block, x)
        (score,) = val_scores(self.task, [z[self.val]])
        return replace(made, z=z, q=z, score=score)

    def _smoothed(self, made: Candidate) -> Candidate:
        config = self.config
        self.halo.begin("halo smoothing")
        found = search_smoothing(
            self.block,
            made.z,
            self.task,
            temperatures=config.temperatures,
            rounds=config.smooth_rounds,
            patience=config.smooth_patience,
            share=config.share,
            precision=config.probabilities,
        )
        return replace(made, temperature=found.temperature, rounds=found.rounds, q=found.q, score=found.score)

    def _candidate(self, weights: dict[int, Tensor], bias: Tensor, score: float, z: Tensor) -> Candidate:
        return Candidate(weights, bias, score, z, z, self.config.temperatures[0])

    def _model(self, made: Candidate) -> Propagated:
        config = self.config
        return Propagated(
            made.weights,
            made.bias,
            temperature=made.temperature,
            rounds=made.rounds,
            share=config.share,
            scores=config.scores,
            probabilities=config.probabilities,
            knots=made.knots,
        )


def _since(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """What was sent between two looks at a meter."""
    return {label: count - before.get(label, 0) for label, count in now.items() if count != before.get(label)}
