"""Project, update and join of every layer, by the names of its weights; the layers stand in :mod:`siafu.nn`."""

from collections.abc import Callable

import numpy as np

from siafu.workers.setup import Setup
from siafu.workers.task import Arrays
from siafu.workers.twin.tape import Value, activated, add, beside, head_scores, matmul, mean_of_heads, stretch

Own = Callable[[str], Value]  # a weight of one layer


class Weights:
    """The model's weights as values, each made when it is first read."""

    def __init__(self, arrays: Arrays, dtype: np.dtype, *, wants: bool) -> None:
        self._arrays, self._dtype, self._wants = arrays, dtype, wants
        self._read: dict[str, Value] = {}

    def __call__(self, name: str) -> Value:
        """A weight, by its name in the model."""
        if name not in self._read:
            self._read[name] = Value(np.asarray(self._arrays[name], self._dtype), wants=self._wants)
        return self._read[name]

    def under(self, prefix: str) -> Own:
        """Weights by the rest of their names."""
        return lambda name: self(f"{prefix}.{name}")

    def grads(self) -> dict[str, np.ndarray]:
        """The gradients of those that were read, in the order they were given in."""
        read = ((name, self._read[name].grad) for name in self._arrays if name in self._read)
        return {name: grad for name, grad in read if grad is not None}


def project(kind: str, x: Value, own: Own) -> Value:
    """What a layer does to the rows that are aggregated."""
    match kind:
        case "gcn" | "mlp":
            return matmul(x, own("weight"))
        case "sage":
            return matmul(x, own("weight_neigh"))
        case "gin":
            return matmul(x, own("weight_in"))
        case "gat":
            scores = [head_scores(own("weight"), own(f"score_{side}")) for side in ("src", "dst")]
            return matmul(x, beside([own("weight"), *scores]))
        case "gatv2":
            weight, bias = (beside([own(f"{name}_src"), own(f"{name}_dst")]) for name in ("weight", "bias"))
            return add(matmul(x, weight), bias)
    raise _unknown(kind)


def update(kind: str, m: Value, x: Value | None, own: Own, *, mean_of: int) -> Value:
    """What a layer does to the aggregate of projected rows; ``mean_of`` so many heads, where that is more than 1."""
    match kind:
        case "gcn" | "mlp":
            return m
        case "gat" | "gatv2":
            return mean_of_heads(m, mean_of) if mean_of > 1 else m
        case "sage":
            return add(matmul(_read(x), own("weight_self")), m)
        case "gin":
            return _gin_rest(add(stretch(matmul(_read(x), own("weight_in")), own("eps")), m), own)
    raise _unknown(kind)


def join(kind: str, m: Value, x: Value | None, own: Own) -> Value:
    """What a layer does to the aggregate of rows as they are: project it, and update."""
    match kind:
        case "gcn" | "mlp":
            return matmul(m, own("weight"))
        case "sage":
            return add(matmul(m, own("weight_neigh")), matmul(_read(x), own("weight_self")))
        case "gin":  # m W + (1 + eps) x W in one product
            return _gin_rest(matmul(add(stretch(_read(x), own("eps")), m), own("weight_in")), own)
    raise _unknown(kind)


def heads_averaged(setup: Setup, place: int) -> int:
    """Of how many heads a layer takes the mean; 1 where they stand side by side."""
    bare = setup.model["jump"] == "none" and place == setup.num_layers - 1
    return setup.model["output_heads"] if bare else 1


def _gin_rest(z: Value, own: Own) -> Value:
    return matmul(activated(add(z, own("bias_in")), "relu"), own("weight_out"))


def _read(x: Value | None) -> Value:
    assert x is not None, (
        "a layer reads x, but its task has none: is reads_dst of the setup that of the model?"
    )
    return x


def _unknown(kind: str) -> ValueError:
    return ValueError(
        f"model.kind is {kind}, of which there is no NumPy twin in this order; use a local worker"
    )
