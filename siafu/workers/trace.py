"""Record the stages of a model as programs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from siafu.nn.dropout import Dropout
from siafu.nn.model import Model, Order, StageRows
from siafu.nn.ops import Finish
from siafu.workers.program import ROW, VALUE, WEIGHT, Instruction, Program


@dataclass(frozen=True)
class TracedValue:
    """Rows, or a product of weights, that a program computes.

    Attributes:
        name: in the program.
        width: the size of its last dimension.
    """

    name: str
    width: int


def trace(model: Model, order: Order) -> tuple[Program, ...]:
    """Record the stages of a model from the first that is run."""
    return tuple(_trace_stage(model, number, order) for number in range(order.kept, model.num_aggregates + 1))


def _trace_stage(model: Model, number: int, order: Order) -> Program:
    names = model.reads(number)
    reads = (("m",) if number else ()) + names
    m = TracedValue(f"{ROW}m", model.m_features(number - 1, order)) if number else None
    h = {
        int(name[1:]): TracedValue(f"{ROW}{name}", model.h_features(int(name[1:])))
        for name in names
        if name != "x"
    }
    rows = StageRows(m=m, x=TracedValue(f"{ROW}x", model.in_features) if "x" in names else None, h=h)
    ops = TraceOps(model)
    h_out, z_out = model.stage(ops, number, rows, order)
    given = [row.width for row in (m, rows.x, *h.values()) if row is not None]
    return Program(
        reads,
        tuple(ops.weights()),
        tuple(ops.instructions),
        h_out.name,
        z_out.name,
        max([*given, ops.widest]),
    )


class TraceOps:
    """The operations of :class:`siafu.nn.ops.Ops`, recorded as instructions."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(value): name for name, value in model.named_parameters()}
        dropouts = (module for module in model.modules() if isinstance(module, Dropout))
        self._places = {id(drop): place for place, drop in enumerate(dropouts)}
        self._read: set[str] = set()
        self.instructions: list[Instruction] = []
        self.widest = 1

    def weights(self) -> list[str]:
        """The weights that were read, in the model's order."""
        return [name for name in self._names.values() if name in self._read]

    def linear(
        self, terms: Sequence[tuple[Any, Any]], *, add: Any = None, finish: Finish | None = None
    ) -> TracedValue:
        """``finish(add + sum of x W)``."""
        finish = finish or Finish()
        inputs = [add, finish.bias, *(each for term in terms for each in term)]
        return self._record("linear", inputs, width=_width(terms[0][1]), **self._options(finish))

    def project(self, x: Any, weight: Any, bias: Any) -> TracedValue:
        """``x W + b``."""
        return self.linear([(x, weight)], add=bias)

    def finish(self, z: Any, finish: Finish, *, in_place: bool = True) -> TracedValue:
        """``dropout(activation(z + bias))``."""
        return self._record("finish", [z, finish.bias], width=_width(z), **self._options(finish))

    def drop(self, x: Any, drop: Dropout) -> Any:
        """Dropout."""
        return self._record("drop", [x], width=_width(x), **self._dropout(drop)) if drop.rate else x

    def add(self, one: Any, other: Any) -> TracedValue:
        """The sum."""
        return self._record("add", [one, other], width=_width(one))

    def mix(self, one: Any, other: Any, share: float) -> TracedValue:
        """``(1 - share) one + share other``."""
        return self._record("mix", [one, other], width=_width(one), share=share)

    def scale_by_one_plus(self, x: Any, eps: Any) -> TracedValue:
        """``(1 + eps) x``."""
        return self._record("scale_by_one_plus", [x, eps], width=_width(x))

    def concat(self, values: Sequence[Any]) -> TracedValue:
        """Side by side."""
        return self._record("concat", values, width=sum(map(_width, values)))

    def maximum(self, values: Sequence[Any]) -> TracedValue:
        """The largest of each element."""
        return self._record("maximum", values, width=_width(values[0]))

    def mean_of_heads(self, x: Any, heads: int) -> TracedValue:
        """The mean over heads."""
        return self._record("mean_of_heads", [x], width=_width(x) // heads, heads=heads)

    def head_scores(self, weight: Any, vector: Any) -> TracedValue:
        """Each head's columns times its vector."""
        return self._record("head_scores", [weight, vector], width=vector.shape[0])

    def norm(self, x: Any, norm: nn.Module) -> TracedValue:
        """Layer norm; batch norm is refused."""
        if not isinstance(norm, nn.LayerNorm):
            raise ValueError("model.norm is batch, which is not row by row; set it to layer or none")
        return self._record("layer_norm", [x, norm.weight, norm.bias], width=_width(x), eps=norm.eps)

    def _record(self, operation: str, inputs: Sequence[Any], *, width: int, **options: Any) -> TracedValue:
        self.instructions.append(Instruction(operation, tuple(map(self._name, inputs)), options))
        self.widest = max(self.widest, width)
        return TracedValue(f"{VALUE}{len(self.instructions) - 1}", width)

    def _name(self, value: Any) -> str | None:
        if value is None or isinstance(value, TracedValue):
            return None if value is None else value.name
        name = self._names[id(value)]
        self._read.add(name)
        return f"{WEIGHT}{name}"

    def _options(self, finish: Finish) -> dict[str, Any]:
        return {"activation": finish.activation, **self._dropout(finish.drop)}

    def _dropout(self, drop: Dropout | None) -> dict[str, Any]:
        if drop is None or not drop.rate:
            return {"drop": -1, "rate": 0.0}
        return {"drop": self._places[id(drop)], "rate": drop.rate}


def _width(value: Any) -> int:
    return value.width if isinstance(value, TracedValue) else int(value.shape[-1])
