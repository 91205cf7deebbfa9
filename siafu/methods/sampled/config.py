"""``SampledConfig``: the settings of sampled minibatches."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from siafu.conditions import Applies, when
from siafu.nn.config import ATTENTION

MOST_FANOUT = 1_000_000  # in-edges drawn a node; who wants more wants all

_SAMPLED = when("method", "sampled")


class SampledConfig(BaseModel):
    """Fanouts, sizes, and what is computed once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fanout: tuple[
        int, ...
    ] = ()  # in-edges drawn a node, the first layer's first; -1: all; none given: 10 in each layer
    batch_size: int = Field(1024, ge=1)  # training nodes of a minibatch, of all ranks together
    macrobatch: int | Literal["auto"] = "auto"  # minibatches that are sampled and fetched together
    budget_mb: int = Field(1024, ge=1)  # what macrobatches in memory may take on a rank
    hot_mb: int = Field(
        512, ge=0
    )  # what rows of other ranks' nodes that are kept for later may take on a rank
    prefetch: bool = True  # sample and fetch a macrobatch while the one before is trained on
    replace: bool = False  # draw with replacement
    share_draws: bool = False  # draw the same in-edges of a node in all minibatches of a macrobatch
    cache_aggregate: bool = True  # aggregate the inputs of all nodes once, where the first layer allows it
    share_projection: bool = (
        False  # attention: project the inputs of a macrobatch once, by the weights it begins with
    )

    applies: ClassVar[Applies] = {
        "fanout": (_SAMPLED,),
        "batch_size": (_SAMPLED,),
        "macrobatch": (_SAMPLED,),
        "budget_mb": (_SAMPLED,),
        "hot_mb": (_SAMPLED,),
        "prefetch": (_SAMPLED,),
        "replace": (_SAMPLED,),
        "share_draws": (_SAMPLED,),
        "cache_aggregate": (_SAMPLED,),
        "share_projection": (_SAMPLED, when("model.kind", *ATTENTION)),
    }

    @field_validator("fanout", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """On a command line, 15,10,5."""
        if isinstance(value, str) and all(part.strip().lstrip("-").isdigit() for part in value.split(",")):
            return tuple(int(part) for part in value.split(","))
        return (value,) if isinstance(value, int) else value

    @field_validator("fanout")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(each == 0 or each < -1 or each > MOST_FANOUT for each in value):
            raise ValueError(f"Input should be numbers from 1 to {MOST_FANOUT}, or -1 for all in-edges")
        return value

    @field_validator("macrobatch")
    @classmethod
    def _at_least_one(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("Input should be auto, or a number from 1")
        return value

    def fanouts(self, layers: int) -> tuple[int, ...]:
        """The fanout of each layer, the first one's first."""
        if not self.fanout:
            return (10,) * layers
        if len(self.fanout) != layers:
            raise ValueError(
                f"sampled.fanout has {len(self.fanout)} numbers, {','.join(map(str, self.fanout))}, but the model has "
                f"{layers} layers; give one for each, the first layer's first"
            )
        return self.fanout
