"""A stage, forward: the twin of :mod:`siafu.nn.stage`, and of what stands between layers in :mod:`siafu.nn.model`."""

from collections.abc import Mapping

from siafu.workers.setup import Setup
from siafu.workers.stages import earlier, projects
from siafu.workers.task import Task
from siafu.workers.twin.dropout import Drops
from siafu.workers.twin.layers import Weights, heads_averaged, join, project, update
from siafu.workers.twin.tape import Value, add, beside, layer_norm, matmul, maximum


def stage(setup: Setup, task: Task, rows: Mapping[str, Value], weights: Weights) -> tuple[Value, Value]:
    """What the next layer is given, and what it aggregates: h and z; both are the outputs after the last layer."""
    number, drops = task.key.stage, Drops(setup, task)
    h = drops(0, rows["x"]) if number == 0 else _after_aggregate(setup, number - 1, rows, weights, drops)
    if projects(setup, number):
        return h, project(setup.model["kind"], h, weights.under(f"layers.{number}"))
    if number == setup.num_layers and setup.model["jump"] != "none":
        hidden = [*(rows[f"h{place}"] for place in earlier(setup, number)), h]
        joined = beside(hidden) if setup.model["jump"] == "cat" else maximum(hidden)
        h = add(matmul(joined, weights("head.weight")), weights("head.bias"))
    return h, h


def _after_aggregate(
    setup: Setup, place: int, rows: Mapping[str, Value], weights: Weights, drops: Drops
) -> Value:
    """The rest of a layer once its aggregate is there, and what follows it."""
    kind, own = setup.model["kind"], weights.under(f"layers.{place}")
    m, x, kept = rows["m"], rows.get("x"), place == 0 and setup.kept
    if kept:
        m = drops(0, m)
    x_read = drops(0, x) if place == 0 and x is not None and kind in ("sage", "gin") else x
    if kept or setup.aggregates_first[place]:
        z = join(kind, m, x_read, own)
    else:
        z = update(kind, m, x_read, own, mean_of=heads_averaged(setup, place))
    return _finish(setup, place, z, x, weights, drops)


def _finish(setup: Setup, place: int, z: Value, x: Value | None, weights: Weights, drops: Drops) -> Value:
    """What follows the three steps of a layer; the last, where there is no ``jump``, has its bias and nothing else."""
    model, bias = setup.model, weights(f"layers.{place}.bias")
    if model["jump"] == "none" and place == setup.num_layers - 1:
        return add(z, bias)
    if model["residual"]:
        assert x is not None
        widens = place == 0 and setup.in_features != model["hidden"]
        z = add(z, matmul(x, weights(f"skips.{place}.weight")) if widens else x)
    z = add(z, bias)
    if model["norm"] == "layer":
        z = layer_norm(z, weights(f"norms.{place}.weight"), weights(f"norms.{place}.bias"))
    return drops(place + 1, z, "elu" if model["kind"] in ("gat", "gatv2") else "relu")
