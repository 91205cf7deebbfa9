"""A small graph, and one epoch of it made of tasks: stages by any compute, aggregates by torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, pairwise, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.nn import Gnn, Model, ModelConfig, build_model
from siafu.nn.aggregates import aggregate, aggregate_static
from siafu.nn.dropout import set_keys
from siafu.nn.loss import sum_of_losses
from siafu.nn.model import Order
from siafu.workers import stages
from siafu.workers.setup import Setup
from siafu.workers.task import Arrays, Direction, Key, Result, Task
from siafu.workers.trace import trace

Compute = Callable[[Task, Arrays], Result]

# 0 has a loop, 6 no edge, 5 only out-edges.
EDGES = torch.tensor([[0, 1, 0, 3, 0, 3, 1, 0, 4, 2, 5], [0, 0, 1, 1, 1, 3, 4, 4, 4, 4, 1]])
NODE_ID = torch.tensor([3, 0, 6, 2, 9, 1, 40])
NUM_NODES, WIDTH, HIDDEN, OUTPUTS = 7, 5, 8, 3
ENDS = [0, 3, 3, 7]  # of intervals; one is empty
LABELLED = torch.tensor([3, 4, 6])  # none in the first interval
EPOCH, SEED, VERSION = 4, 11, 2

KINDS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "sage": {"kind": "sage"},
    "sage max": {"kind": "sage", "reduce": "max"},
    "gat": {"kind": "gat", "heads": 2, "output_heads": 3},
    "gatv2": {"kind": "gatv2", "heads": 2, "output_heads": 3},
    "gin": {"kind": "gin"},
    "mlp": {"kind": "mlp"},
}
ATTENTION = ("gat", "gatv2")
OTHERS: dict[str, dict[str, Any]] = {  # models that are no stack of one kind of layer
    "appnp": {"kind": "appnp", "hops": 4, "teleport": 0.2},
    "sgc": {"kind": "sgc", "dropout": 0.4, "layers": 3},
    "gcn2": {"kind": "gcn2", "layers": 4},
}


def options_of(layers: int) -> list[dict[str, Any]]:
    """What may stand between layers: all of it for three, each half for one and two."""
    found = [
        {"norm": norm, "residual": residual, "jump": jump}
        for norm, residual, jump in product(["none", "layer"], [False, True], ["none", "cat", "max"])
    ]
    return {1: found[::2], 2: found[1::2]}.get(layers, found)


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def block_of(x: Tensor, *, static: bool) -> Any:
    graph = Graph.from_edges(EDGES, num_nodes=NUM_NODES)
    block = graph.block
    block = type(block)(block.indptr, block.indices, NUM_NODES, node_id=NODE_ID)
    return block.with_static(x) if static else block


def orders(kind: str, layers: int) -> Iterator[tuple[bool, tuple[bool, ...]]]:
    """Whether the first aggregate is kept, and which layers aggregate first: what a kind allows."""
    for kept in (True, False)[kind in ATTENTION :]:
        for every in (True, False):
            if every == (kind not in ATTENTION) or kind not in (*ATTENTION, "sage max"):
                yield kept, (every,) * layers
        if kind in ("gcn", "sage", "gin") and layers > 1:
            yield kept, tuple(place % 2 == 0 for place in range(layers))


def model_of(kind: str, *, layers: int = 2, dtype: torch.dtype = torch.float64, **settings: Any) -> Model:
    given = {"hidden": HIDDEN, "layers": layers, "dropout": 0.4, "input_dropout": 0.3} | (KINDS | OTHERS)[
        kind
    ]
    model = build_model(ModelConfig.model_validate(given | settings), in_features=WIDTH, out_features=OUTPUTS)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():  # no bias and no eps is zero, no gain is one
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return model.to(dtype)


def setup_of(
    model: Model,
    *,
    kept: int = 0,
    first: tuple[bool, ...] | None = None,
    task: str = "class",
    class_weight: tuple[float, ...] | None = None,
    gamma: float = 0.0,
) -> Setup:
    first = (not isinstance(model, Gnn),) * model.num_aggregates if first is None else first
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return Setup(
        trace(model, Order(first, int(kept))), int(kept), task, 2.5, class_weight, SEED, dtype, gamma
    )


def labels_of(task: str) -> Tensor:
    """Of the labelled nodes."""
    if task == "class":
        return torch.tensor([2, 0, 1])
    y = rows(LABELLED.numel(), OUTPUTS, seed=9)
    if task == "labels":
        return (y > 0).double()
    y[0, 1] = y[2] = torch.nan
    return y


def weights_of(model: Model) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in model.named_parameters()}


@dataclass
class Epoch:
    """What an epoch gave: outputs, loss and gradients of the weights; and its tasks with their results."""

    out: Tensor
    loss: Tensor
    grads: dict[str, Tensor]
    done: list[tuple[Task, Result]] = field(default_factory=list)


def whole(model: Model, setup: Setup, *, training: bool = True) -> Epoch:
    """The epoch by the whole model and autograd."""
    x = rows(NUM_NODES, WIDTH).to(next(model.parameters()).dtype)
    model.train(training)
    model.zero_grad()
    set_keys(model, seed=SEED, step=EPOCH)
    out = model(block_of(x, static=setup.kept > 0), x)
    weight = None if setup.class_weight is None else out.new_tensor(setup.class_weight)
    y = labels_of(setup.task)
    y = y if setup.task == "class" else y.to(x.dtype)
    loss = sum_of_losses(setup.task, out[LABELLED], y, weight, setup.gamma) / setup.scale  # type: ignore[arg-type]
    loss.backward()
    grads = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return Epoch(out.detach(), loss.detach(), grads)


class Staged:
    """The same epoch as tasks, one for each stage, direction and interval."""

    def __init__(self, compute: Compute, model: Model, setup: Setup, *, training: bool = True) -> None:
        self.compute, self.model, self.setup, self.training = compute, model, setup, training
        self.weights = weights_of(model)
        self.done: list[tuple[Task, Result]] = []
        self.grads: dict[str, Tensor] = {}

    def run(self) -> Epoch:
        """Forward, learn, backward."""
        x = rows(NUM_NODES, WIDTH).to(next(self.model.parameters()).dtype)
        self.model.train(self.training)
        set_keys(self.model, seed=SEED, step=EPOCH)
        self.block, self.x = block_of(x, static=False), x
        self.given: dict[int, Tensor] = {}  # rows of stages that later ones read
        self.grad_h: dict[str, Tensor] = {}  # their gradients so far
        self.ends: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # the rows that each aggregate reads, and what it gives
        last, kept = self.setup.num_aggregates, self.setup.kept
        if kept:
            m = aggregate_static(block_of(x, static=True), self.model.kinds(kept), x)
            assert isinstance(m, Tensor)
            self.ends[kept - 1] = x, m
        for number in range(kept, last):
            self._to_aggregate(number)
        out = self._stage(last, Direction.FORWARD, self._rows(last))["z"]
        found = self._stage(last, Direction.LEARN, self._rows(last))
        loss = found["loss"]
        for number in range(last - 1, kept - 1, -1):
            self._note(found)
            found = self._stage(
                number, Direction.BACKWARD, self._rows(number) | self._ends(number, found["grad_m"])
            )
        return Epoch(out, loss, self.grads, self.done)

    def _to_aggregate(self, number: int) -> None:
        """A stage forward, and the aggregate after it."""
        found = self._stage(number, Direction.FORWARD, self._rows(number))
        z = found["z"].requires_grad_()
        assert ("h" in found) == stages.returns_h(self.setup, number)
        self.given[number] = found.get("h", z.detach())
        m = aggregate(self.model.kind(number), self.block, z, **self._edges(number))
        assert isinstance(m, Tensor)
        self.ends[number] = z, m

    def _edges(self, number: int) -> dict[str, Any]:
        """The dropout of edges and the weights that an aggregate reads."""
        weights = tuple(self.model.edge_weights(number).values())
        return {"weights": weights, "dropout": self.model.edge_dropout(number)}

    def _rows(self, number: int) -> dict[str, Tensor]:
        """The rows that a stage reads, all of them."""
        found = {"row_id": NODE_ID}
        if number:
            found["m"] = self.ends[number - 1][1].detach()
        if stages.reads_x(self.setup, number):
            found["x"] = self.x
        return found | {f"h{place}": self.given[place] for place in stages.earlier(self.setup, number)}

    def _note(self, found: dict[str, Tensor]) -> None:
        """Add up the gradients of rows that several stages read."""
        for name, grad in found.items():
            if name.startswith("grad_h"):
                self.grad_h[name] = self.grad_h[name] + grad if name in self.grad_h else grad

    def _ends(self, number: int, grad_m: Tensor) -> dict[str, Tensor]:
        """The gradients of the rows that a stage gave."""
        z, m = self.ends[number]
        named = self.model.edge_weights(number)
        grad_z, *of_weights = torch.autograd.grad(m, [z, *named.values()], grad_m)
        for name, grad in zip(named, of_weights, strict=True):
            self.grads[name] = grad
        if not stages.has_grad_h(self.setup, number):
            return {"grad_z": grad_z}
        return {"grad_z": grad_z, "grad_h": self.grad_h[f"grad_h{number}"]}

    def _stage(self, number: int, direction: Direction, given: dict[str, Tensor]) -> dict[str, Tensor]:
        """All intervals of a stage: their rows one after another, their losses and gradients added up."""
        results = []
        for interval, (begin, end) in enumerate(pairwise(ENDS)):
            arrays = {name: value.detach()[begin:end].numpy() for name, value in given.items()}
            if direction == Direction.LEARN:
                here = (begin <= LABELLED) & (end > LABELLED)
                y = labels_of(self.setup.task)[here]
                arrays |= {"rows": (LABELLED[here] - begin).numpy(), "y": y.numpy()}
            key = Key(EPOCH, number, direction, interval)
            results.append(self._task(Task(key, VERSION, arrays, self.training)))
        names = results[0].arrays
        assert all(result.arrays.keys() == names.keys() for result in results)
        for result in results:
            for name, grad in result.grads.items():
                add = torch.from_numpy(grad)
                self.grads[name] = add if name not in self.grads else self.grads[name] + add
        found = {name: [torch.from_numpy(result.arrays[name]) for result in results] for name in names}
        return {name: sum(each) if name == "loss" else torch.cat(each) for name, each in found.items()}  # type: ignore[misc]

    def _task(self, task: Task) -> Result:
        """A task whose arrays and weights stay as they are."""
        given = {**task.arrays, **self.weights}
        before = {name: array.tobytes() for name, array in given.items()}
        result = self.compute(task, self.weights)
        changed = [name for name, array in given.items() if array.tobytes() != before[name]]
        assert not changed, f"{task.key} has overwritten {changed}"
        self.done.append((task, result))
        return result


def with_all_between(kind: str, layers: int) -> Iterator[tuple[Model, Setup]]:
    """Models with all that may stand between their layers, each in one order of aggregates, in turn."""
    for options, (kept, first) in zip(options_of(layers), cycle(orders(kind, layers)), strict=False):
        model = model_of(kind, layers=layers, **options)
        yield model, setup_of(model, kept=kept, first=first)


def in_every_order(kind: str, layers: int) -> Iterator[tuple[Model, Setup]]:
    """Models whose layers aggregate in every order that they allow, with and without skip connections."""
    for kept, first in orders(kind, layers):
        for residual in (False, True):
            model = model_of(kind, layers=layers, residual=residual)
            yield model, setup_of(model, kept=kept, first=first)
