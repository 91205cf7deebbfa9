"""The instructions of programs in torch, with the kernels that models themselves use."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

from siafu.nn.dropout import Dropout, key_of
from siafu.nn.ops import Finish, TorchOps
from siafu.workers.program import ROW, VALUE, WEIGHT, Instruction, Program


class Dropouts:
    """The dropouts of a model, by their places in it.

    Attributes:
        seed: of the run.
        epoch: of the task at hand.
        training: whether anything is dropped.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.epoch, self.training = seed, 0, True
        self._drops: dict[int, Dropout] = {}

    def at(self, place: int, rate: float) -> Dropout | None:
        """The dropout at a place, with its key for the epoch; None at place -1."""
        if place < 0:
            return None
        drop = self._drops.setdefault(place, Dropout(rate))
        drop.key = key_of(seed=self.seed, step=self.epoch, place=place)
        return drop.train(self.training)


def run_program(
    program: Program,
    rows: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    dropouts: Dropouts,
    *,
    row_id: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run a stage under autograd: its rows h and z. The rows that it reads are not overwritten."""
    values: dict[str | None, Any] = {f"{ROW}{name}": rows[name] for name in program.reads}
    values |= {f"{WEIGHT}{name}": weights[name] for name in program.weights} | {None: None}
    ops, uses = TorchOps(row_id), program.uses
    for number, instruction in enumerate(program.instructions):
        name = instruction.inputs[0]
        is_temporary = name is not None and name.startswith(VALUE) and uses[name] == 1
        inputs = [values[each] for each in instruction.inputs]
        values[f"{VALUE}{number}"] = _run(ops, instruction, inputs, dropouts, in_place=is_temporary)
    return values[program.h], values[program.z]


def _run(
    ops: TorchOps, instruction: Instruction, inputs: list[Any], dropouts: Dropouts, *, in_place: bool
) -> Any:
    operation, _, options = instruction
    match operation:
        case "linear":
            add, bias, *rest = inputs
            terms = list(zip(rest[::2], rest[1::2], strict=True))
            finish = _finish(bias, options, dropouts)
            bare = bias is None and finish.activation == "none" and finish.drop is None
            if add is not None and not in_place and add.ndim == 2 and not add.is_leaf:
                add = add.clone()  # a product adds to rows where they are
            return ops.linear(terms, add=add, finish=None if bare else finish)
        case "finish":
            return ops.finish(inputs[0], _finish(inputs[1], options, dropouts), in_place=in_place)
        case "drop":
            drop = dropouts.at(options["drop"], options["rate"])
            return inputs[0] if drop is None else ops.drop(inputs[0], drop)
        case "layer_norm":
            x, gain, bias = inputs
            return functional.layer_norm(x, x.shape[-1:], gain, bias, options["eps"])
        case "concat" | "maximum":
            return getattr(ops, operation)(inputs)
        case "add" | "mix" | "scale_by_one_plus" | "mean_of_heads" | "head_scores":
            return getattr(ops, operation)(*inputs, **options)
    raise AssertionError(operation)


def _finish(bias: Any, options: Mapping[str, Any], dropouts: Dropouts) -> Finish:
    return Finish(bias, options["activation"], dropouts.at(options["drop"], options["rate"]))
