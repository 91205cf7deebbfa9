"""A small graph, and one epoch of it made of tasks: stages by any compute, aggregates by torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, pairwise, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.nn import GatV2, Gnn, Layer, ModelConfig
from siafu.nn.dropout import set_keys
from siafu.nn.loss import sum_of_losses
from siafu.workers import stages
from siafu.workers.setup import Setup
from siafu.workers.task import Arrays, Direction, Key, Result, Task

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


def model_of(kind: str, *, layers: int = 2, dtype: torch.dtype = torch.float64, **settings: Any) -> Gnn:
    given = {"hidden": HIDDEN, "layers": layers, "dropout": 0.4, "input_dropout": 0.3} | KINDS[kind]
    model = Gnn(ModelConfig.model_validate(given | settings), in_features=WIDTH, out_features=OUTPUTS)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():  # no bias and no eps is zero, no gain is one
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.5
    return model.to(dtype)


def setup_of(
    model: Gnn,
    *,
    kept: bool = False,
    first: tuple[bool, ...] | None = None,
    task: str = "class",
    class_weight: tuple[float, ...] | None = None,
) -> Setup:
    num_layers = len(model.layers)
    first = (False,) * num_layers if first is None else first
    reads_dst = tuple(model.reads_dst(place) for place in range(num_layers))
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config = model.config.model_dump()
    return Setup(config, WIDTH, OUTPUTS, first, kept, reads_dst, task, 2.5, class_weight, SEED, dtype)


def labels_of(task: str) -> Tensor:
    """Of the labelled nodes."""
    if task == "class":
        return torch.tensor([2, 0, 1])
    y = rows(LABELLED.numel(), OUTPUTS, seed=9)
    if task == "labels":
        return (y > 0).double()
    y[0, 1] = y[2] = torch.nan
    return y


def weights_of(model: Gnn) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy().copy() for name, value in model.named_parameters()}


@dataclass
class Epoch:
    """What an epoch gave: outputs, loss and gradients of the weights; and its tasks with their results."""

    out: Tensor
    loss: Tensor
    grads: dict[str, Tensor]
    done: list[tuple[Task, Result]] = field(default_factory=list)


def whole(model: Gnn, setup: Setup, *, training: bool = True) -> Epoch:
    """The epoch by the whole model and autograd."""
    x = rows(NUM_NODES, WIDTH).to(next(model.parameters()).dtype)
    model.train(training)
    model.zero_grad()
    set_keys(model, seed=SEED, step=EPOCH)
    out = model(block_of(x, static=setup.kept), x)
    weight = None if setup.class_weight is None else out.new_tensor(setup.class_weight)
    y = labels_of(setup.task)
    y = y if setup.task == "class" else y.to(x.dtype)
    loss = sum_of_losses(setup.task, out[LABELLED], y, weight) / setup.scale  # type: ignore[arg-type]
    loss.backward()
    grads = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return Epoch(out.detach(), loss.detach(), grads)


class Staged:
    """The same epoch as tasks, one for each stage, direction and interval."""

    def __init__(self, compute: Compute, model: Gnn, setup: Setup, *, training: bool = True) -> None:
        self.compute, self.model, self.setup, self.training = compute, model, setup, training
        self.weights = weights_of(model)
        self.done: list[tuple[Task, Result]] = []
        self.grads: dict[str, Tensor] = {}

    def run(self) -> Epoch:
        """Forward, learn, backward."""
        x = rows(NUM_NODES, WIDTH).to(next(self.model.parameters()).dtype)
        self.model.train(self.training)
        set_keys(self.model, seed=SEED, step=EPOCH)
        self.block, self.given, self.reads = block_of(x, static=False), {0: x}, {}
        self.ends: dict[
            int, tuple[Tensor | None, Tensor]
        ] = {}  # what each layer aggregated, and what it gave
        last = self.setup.num_layers
        for number in range(last):
            self._to_aggregate(number)
        out = self._stage(last, Direction.FORWARD, self._rows(last))["z"]
        found = self._stage(last, Direction.LEARN, self._rows(last))
        loss, jumps = found["loss"], found
        for number in range(last - 1, 0 if self.setup.kept else -1, -1):
            found = self._stage(
                number, Direction.BACKWARD, self._rows(number) | self._ends(number, found, jumps)
            )
        return Epoch(out, loss, self.grads, self.done)

    def _to_aggregate(self, number: int) -> None:
        """A stage forward, and the aggregate after it."""
        z = self.given[0]
        if number or not self.setup.kept:
            found = self._stage(number, Direction.FORWARD, self._rows(number))
            z = found["z"].requires_grad_()
            assert ("h" in found) == stages.returns_h(self.setup, number)
            if number:
                self.given[number] = found.get("h", z.detach())
        layer = self.model.layers[number]
        assert isinstance(layer, Layer)
        m = layer.aggregate(self.block, z)
        assert isinstance(m, Tensor)
        self.ends[number] = z, m

    def _rows(self, number: int) -> dict[str, Tensor]:
        """What a stage reads, of all rows."""
        found = {"row_id": NODE_ID}
        if number:
            found["m"] = self.ends[number - 1][1].detach()
        if stages.reads_x(self.setup, number):
            found["x"] = self.given[max(0, number - 1)]
        return found | {f"h{place}": self.given[place] for place in stages.earlier(self.setup, number)}

    def _ends(self, number: int, after: dict[str, Tensor], jumps: dict[str, Tensor]) -> dict[str, Tensor]:
        """The gradients of what a stage gave; ``after`` are those that the next stage gave."""
        z, m = self.ends[number]
        layer = self.model.layers[number]
        vector = [layer.vector] if isinstance(layer, GatV2) else []
        grad_z, *of_vector = torch.autograd.grad(m, [z, *vector], after["grad_m"])
        if of_vector:
            self.grads[f"layers.{number}.vector"] = of_vector[0]
        if not stages.has_grad_h(self.setup, number):
            return {"grad_z": grad_z}
        read = [after.get("grad_x"), jumps.get(f"grad_h{number}")]
        return {"grad_z": grad_z, "grad_h": sum(grad for grad in read if grad is not None)}  # type: ignore[dict-item]

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


def with_all_between(kind: str, layers: int) -> Iterator[tuple[Gnn, Setup]]:
    """Models with all that may stand between their layers, each in one order of aggregates, in turn."""
    for options, (kept, first) in zip(options_of(layers), cycle(orders(kind, layers)), strict=False):
        model = model_of(kind, layers=layers, **options)
        yield model, setup_of(model, kept=kept, first=first)


def in_every_order(kind: str, layers: int) -> Iterator[tuple[Gnn, Setup]]:
    """Models whose layers aggregate in every order that they allow, with and without skip connections."""
    for kept, first in orders(kind, layers):
        for residual in (False, True):
            model = model_of(kind, layers=layers, residual=residual)
            yield model, setup_of(model, kept=kept, first=first)
