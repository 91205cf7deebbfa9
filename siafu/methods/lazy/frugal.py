"""The frugal recipe: closed-form heads and a few rounds of smoothing; validation selects the best candidate.

It sends a few megabytes in all, where end-to-end training sends gigabytes. The candidates, in this order:

- a ridge head on the inputs, which needs no message of rows; and its predictions, smoothed (A);
- a ridge head on the features of the last hop, blended with the first head; and its predictions, smoothed (B);
- if smoothing harmed, as on heterophilous graphs: a head on the features of all hops whose weights depend on a node's
  degree (D);
- if smoothing helped: a head on the inputs refitted on the most confident smoothed predictions; smoothed (C).

The decisions allow for the standard error of validation scores. Smoothing helped if the best smoothed candidate is more
than one error above the head on inputs, and at most one below the best candidate that is not smoothed. It harmed if it
is more than half an error below that one; or more than a whole error, if smoothing improves the head on inputs by three
errors, a sign of homophily. D is kept if it is at most one error below the best, like other stages (``procedure.py``).

All traffic is counted, also that of rejected candidates. Penalties, rounds of conjugate gradients and blends cost no
rows: they are compared on the nodes that a rank has. Known labels are training targets, but do not replace predictions
during smoothing: the model would then depend on its training nodes and not transfer to other graphs.
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
from siafu.context import NO_EXCHANGE, Context, HaloExchange
from siafu.methods.lazy.degree_heads import (
    DegreeScaledRows,
    concat_hops,
    count_knots,
    hop_scales,
    split_by_hop,
)
from siafu.methods.lazy.hop_features import compute_hop_features
from siafu.methods.lazy.ridge import LinearHead, RidgeRegression, RowSubset, fit_head
from siafu.methods.lazy.self_training import confident_targets
from siafu.methods.lazy.smoothing import search_smoothing
from siafu.methods.lazy.validation import index_of_best, val_scores
from siafu.nn.aggregates import gcn_scales
from siafu.nn.propagated import Propagated, of_unit_length, shares_of_knots
from siafu.nn.streamed import DenseRows
from siafu.training.scorer import OF_PROBABILITIES
from siafu.training.task import Task

_BLENDS = tuple(step / 10 for step in range(10, -1, -1))  # weight of hop features; the largest wins a tie


class FrugalConfig(BaseModel):
    """The search ranges of the frugal recipe, and the precision of its messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    penalties: tuple[float, ...] = Field((3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001), min_length=1)
    ridge_rounds: int = Field(12, ge=1)
    ridge_patience: int = Field(3, ge=1)
    temperatures: tuple[float, ...] = Field((8.0, 16.0), min_length=1)
    smooth_rounds: int = Field(10, ge=1)
    smooth_patience: int = Field(2, ge=1)
    share: float = Field(
        0.1, gt=0, lt=1
    )  # weight of a node's own probabilities in each round (PageRank's alpha)
    hops: int = Field(2, ge=0)  # 0: no features are sent, and B is left out
    confident: float = Field(0.8, gt=0, le=1)  # share of other nodes that C is refitted on
    sums: Precision = "int8"  # of the matrices that heads are fitted from
    sums_by_degree: Precision = (
        "fp32"  # of those of degree-dependent heads, which are more sensitive to rounding
    )
    scores: Precision = "int8"  # of features and scores of hops
    probabilities: Precision = "int4"  # of smoothed probabilities


@dataclass(frozen=True)
class CandidateReport:
    """The report of one candidate: its name, its validation score, and the bytes that this rank sent for it."""

    name: str
    score: float
    sent: dict[str, int]

    @property
    def sent_bytes(self) -> int:
        """The sum over labels."""
        return sum(self.sent.values())


@dataclass(frozen=True, eq=False)
class FrugalResult:
    """The result of the recipe.

    Attributes:
        model: the model of the chosen candidate.
        out: (D, C), its output for the nodes here.
        context: the context with a compressed halo, in which the model computes ``out`` again in the fewest bytes.
        tried: the candidates, in order.
        chosen: the index of the chosen candidate.
        sent: bytes that this rank sent, by label.
    """

    model: Propagated
    out: Tensor
    context: Context
    tried: tuple[CandidateReport, ...]
    chosen: int
    sent: dict[str, int]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A candidate model: weights by hop, smoothing, and outputs.

    ``z`` and ``q`` are (D, C) float64: scores, and smoothed probabilities if there are rounds.
    """

    weights: dict[int, Tensor]
    bias: Tensor
    score: float
    z: Tensor
    q: Tensor
    temperature: float
    rounds: int = 0
    knots: int = 1


def train_frugal(
    comm: Comm, context: Context, route: Route, x: DenseRows, task: Task, config: FrugalConfig
) -> FrugalResult:
    """Fit the frugal recipe on one rank's part of a graph. Collective.

    ``route`` is that of the halo. Streamed inputs are not propagated over the graph: B and D are left out.
    """
    return FrugalRecipe(comm, context, route, x, task, config).run()


def _check(task: Task) -> None:
    if task.kind != "class":
        raise ValueError(
            f"lazy.recipe is frugal, which learns one class a node, but the labels are of kind {task.kind}; set it to "
            "published"
        )
    if task.gamma:
        raise ValueError(
            "lazy.recipe is frugal, which fits squared errors in closed form, but train.loss is focal; leave it at "
            "cross_entropy, or set lazy.recipe to published"
        )
    if task.metric in OF_PROBABILITIES:
        raise ValueError(
            f"lazy.recipe is frugal, which compares scores that are no probabilities, but train.metric is "
            f"{task.metric}; choose another metric"
        )
    if not task.count["val"]:
        raise ValueError(
            "lazy.recipe is frugal, which keeps what the validation nodes find good, but there are none; give "
            "val_mask (in Python) or --split (on import), or set it to published"
        )


class FrugalRecipe:
    """Fits the candidates one after another on the nodes of one rank."""

    def __init__(
        self, comm: Comm, context: Context, route: Route, x: DenseRows, task: Task, config: FrugalConfig
    ) -> None:
        _check(task)
        self.comm, self.route, self.task, self.config = comm, route, task, config
        self.x = of_unit_length(x)
        self.halo = CompressedHalo(comm, route, num_own=context.num_dst)
        exchange: HaloExchange = self.halo if context.has_halo else NO_EXCHANGE
        self.context = replace(context, exchange=exchange, cache={})
        self.train, self.val = task.rows["train"], task.rows["val"]
        self.train_targets = one_hot(task.y[self.train], task.num_outputs).double()
        self.available = torch.ones(context.num_dst, dtype=torch.bool)  # nodes that take part
        self.best: Candidate | None = None
        self.candidates: list[Candidate] = []
        self.tried: list[CandidateReport] = []
        self.before = comm.meter.sent

    def run(self) -> FrugalResult:
        """Fit all candidates and choose one. Collective."""
        self.halo.begin("halo degrees")
        gcn_scales(self.context, torch.float64)
        plain = self._try("head on inputs", lambda: self._input_head(self.train, self.train_targets))
        self._try("A: the same, smoothed", lambda: self._smoothed(plain))
        if isinstance(self.x, Tensor) and self.config.hops:
            self._try_hops(plain, self.x)
        if self._smoothing_gain_over(plain) > 1 and self._smoothing_gain() >= -1:
            rows, target = confident_targets(
                self.best_smoothed.q, self.task, share=self.config.confident, among=self.available
            )
            again = self._try("head fitted anew", lambda: self._input_head(rows, target))
            self._try("C: the same, smoothed", lambda: self._smoothed(again))
        return self._result()

    def _try_hops(self, plain: Candidate, x: Tensor) -> None:
        """Fit the heads on hop features. Collective."""
        rows, last = list[Tensor](), self.config.hops

        def of_last() -> Candidate:
            rows.extend(self._hop_rows(x))
            return self._blended_head(plain, last, rows[-1], x)

        made = self._try(f"heads on inputs and {last} hops", of_last)
        self._try("B: the same, smoothed", lambda: self._smoothed(made))
        if self._smoothing_harms(plain):
            before = self.best_so_far
            by_degree = self._try("D: heads on hops by degree", lambda: self._degree_head(rows, x))
            if self._standard_errors(before, by_degree) >= -1:
                self.best = by_degree

    def _smoothing_harms(self, plain: Candidate) -> bool:
        alike = self._standard_errors(plain, self.candidates[1]) >= 3
        return self._smoothing_gain_over(plain) <= 1 or self._smoothing_gain() < (-1 if alike else -0.5)

    def _smoothing_gain(self) -> float:
        """The standard errors by which the best smoothed candidate is above the best that is not smoothed."""
        others = [each for each in self.candidates if not each.rounds]
        return self._smoothing_gain_over(max(others, key=lambda each: each.score))

    def _smoothing_gain_over(self, other: Candidate) -> float:
        """The standard errors by which the best smoothed candidate is above another candidate."""
        return self._standard_errors(other, self.best_smoothed)

    def _standard_errors(self, of: Candidate, other: Candidate) -> float:
        """The standard errors of the first candidate's score by which the second is above it."""
        error = sqrt(max(1e-9, of.score * (1 - of.score)) / self.task.count["val"])
        return (other.score - of.score) / error

    @property
    def best_smoothed(self) -> Candidate:
        """The best smoothed candidate so far."""
        return max((each for each in self.candidates if each.rounds), key=lambda each: each.score)

    @property
    def best_so_far(self) -> Candidate:
        """The best candidate so far."""
        assert self.best is not None
        return self.best

    def _result(self) -> FrugalResult:
        best, model = self.best_so_far, self._model(self.best_so_far)
        sent = _bytes_since(self.before, self.comm.meter.sent)
        chosen = next(place for place, made in enumerate(self.candidates) if made is best)
        return FrugalResult(model, model.said(best.z, best.q), self.context, tuple(self.tried), chosen, sent)

    def _try(self, name: str, make: Callable[[], Candidate]) -> Candidate:
        """Fit a candidate, count its traffic, and keep it if it is better than all before. Collective."""
        before = self.comm.meter.sent
        made = make()
        self.tried.append(CandidateReport(name, made.score, _bytes_since(before, self.comm.meter.sent)))
        self.candidates.append(made)
        if self.best is None or made.score > self.best.score:
            self.best = made
        return made

    def _input_head(self, rows: Tensor, target: Tensor) -> Candidate:
        """Fit a head on the inputs of some rows."""
        head = self._fit_head(RowSubset(self.x, rows), target, RowSubset(self.x, self.val))
        z = RowSubset(self.x).matmul(head.weight) + head.bias.double()
        return self._candidate({0: head.weight}, head.bias, head.score, z)

    def _fit_head(
        self, rows: RowSubset, target: Tensor, rows_val: RowSubset, *, sums: Precision | None = None
    ) -> LinearHead:
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

    def _ridge(
        self, rows: RowSubset, target: Tensor, weight: Tensor | None, *, sums: Precision
    ) -> RidgeRegression:
        return RidgeRegression(rows, target, self.comm, precision=sums, weight=weight)

    def _hop_rows(self, x: Tensor) -> list[Tensor]:
        """Compute the features of each hop, for training nodes, then validation nodes. Collective."""
        config, wanted = self.config, torch.cat([self.train, self.val])
        return compute_hop_features(
            self.comm, self.context, self.route, x, wanted=wanted, hops=config.hops, precision=config.scores
        )

    def _blended_head(self, made: Candidate, hop: int, rows: Tensor, x: Tensor) -> Candidate:
        """Fit a head on the features of a hop, and blend it with a candidate by validation score."""
        train, val = torch.arange(rows.shape[0]).split([self.train.numel(), self.val.numel()])
        head = self._fit_head(RowSubset(rows, train), self.train_targets, RowSubset(rows, val))
        z_val = RowSubset(rows, val).matmul(head.weight) + head.bias.double()
        mixed = [made.z[self.val].lerp(z_val, blend) for blend in _BLENDS]
        blend = _BLENDS[index_of_best(val_scores(self.task, mixed))]
        weights = {each: (1 - blend) * weight for each, weight in made.weights.items() if blend < 1}
        if blend > 0:
            weights[hop] = blend * head.weight
        return self._with_model_scores(
            self._candidate(weights, made.bias.lerp(head.bias, blend), 0.0, made.z), x
        )

    def _degree_head(self, rows: list[Tensor], x: Tensor) -> Candidate:
        """Fit a head on the features of all hops whose weights depend on a node's degree."""
        knots = count_knots(self.context.block, self.comm, among=self.available)
        nodes = torch.cat([self.train, self.val])
        train, val = torch.arange(nodes.numel()).split([self.train.numel(), self.val.numel()])
        scales = hop_scales([each[train] for each in rows], self.comm)
        beside, shares = concat_hops(rows, scales), shares_of_knots(self.context.block, knots)[nodes]
        rows_train, rows_val = (DegreeScaledRows(beside, shares, some) for some in (train, val))
        head = self._fit_head(rows_train, self.train_targets, rows_val, sums=self.config.sums_by_degree)
        weights, bias = split_by_hop(head, scales, knots=knots)
        made = self._candidate(weights, bias, head.score, self.best_so_far.z)
        return self._with_model_scores(replace(made, knots=knots), x)

    def _with_model_scores(self, made: Candidate, x: Tensor) -> Candidate:
        """Recompute a candidate's scores with its model, which rounds them between hops. Collective."""
        self.halo.begin("halo scores")
        z = self._model(made).scores(self.context, x)
        (score,) = val_scores(self.task, [z[self.val]])
        return replace(made, z=z, q=z, score=score)

    def _smoothed(self, made: Candidate) -> Candidate:
        config = self.config
        self.halo.begin("halo smoothing")
        found = search_smoothing(
            self.context,
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


def _bytes_since(before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """Subtract two readings of a byte meter."""
    return {label: count - before.get(label, 0) for label, count in now.items() if count != before.get(label)}
