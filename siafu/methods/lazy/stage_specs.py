"""The stages of a recipe, as values, and the model that they form."""

from dataclasses import dataclass
from typing import Literal

from siafu.methods.lazy.config import LazyConfig
from siafu.nn.config import ModelConfig
from siafu.nn.logits import Logits
from siafu.nn.staged import Layered, Sends, Staged


@dataclass(frozen=True)
class StageSpec:
    """One stage: an exchange of rows, and the module that is trained on them.

    Attributes:
        number: its number, from 1.
        sends: the rows of boundary nodes that are sent, once.
        bits: the bits of each value on the wire.
        fits: a layer with a temporary head, the last layer, a dense layer on the outputs of all stages, or an MLP.
    """

    number: int
    sends: Sends
    bits: int
    fits: Literal["layer and head", "layer", "dense", "mlp"]

    @property
    def name(self) -> str:
        """A short description of the stage."""
        sent = "nothing is sent" if self.sends == "nothing" else f"{self.sends} sent in {self.bits} bits"
        return f"stage {self.number}: {sent}, {self.fits} fitted"


def build_staged(config: ModelConfig, lazy: LazyConfig, *, in_features: int, out_features: int) -> Staged:
    """Build the model that the stages of a recipe form."""
    if config.norm == "batch":
        raise ValueError(
            "model.norm is batch, whose moments would be exchanged in every round; set it to layer, or use method full"
        )
    match lazy.recipe:
        case "published":
            form: type[Layered] | type[Logits] = Layered
        case "logits":
            form = Logits
        case "frugal":
            raise AssertionError("the frugal recipe fits no model of stages")
    return form(config, in_features=in_features, out_features=out_features, precision=lazy.precision)


def stage_specs(model: Staged, lazy: LazyConfig) -> tuple[StageSpec, ...]:
    """List the stages of a model in order."""
    return tuple(
        StageSpec(stage + 1, model.sends(stage), lazy.bits, _fits(model, stage))
        for stage in range(model.num_stages)
    )


def _fits(model: Staged, stage: int) -> Literal["layer and head", "layer", "dense", "mlp"]:
    if not isinstance(model, Layered):
        return "mlp"
    if stage < len(model.heads):
        return "layer and head"
    return "layer" if model.inner.head is None else "dense"
