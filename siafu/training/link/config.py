"""Settings of link prediction."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from siafu.conditions import Applies, unless, when

# Defaults of other settings for link prediction.
DEFAULTS = {"model": {"dropout": 0.0}, "train": {"weight_decay": 0.0}}

_LINK = when("task", "link")
_OVER_TIME = when("method", "snapshots", note=", for graphs that change over time")


class LinkConfig(BaseModel):
    """Negatives, the head that scores pairs, and the evaluation protocol."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Negatives for each training edge; None: the number that is usual for the data set, else 1.
    negatives: int | None = Field(None, ge=1)
    # Draw negatives among all nodes, or (smart) among nodes with an edge; auto: uniform, for dynamic graphs smart.
    sampling: Literal["auto", "uniform", "smart"] = "auto"
    evaluation: Literal["all"] | int = "all"  # rank edges among all pairs, or this many sampled negatives
    most_pairs: int = Field(10**10, ge=1)  # refuse to rank among more pairs a step than this
    head: Literal["auto", "mlp", "dot"] = "auto"  # auto: dot, for dynamic graphs mlp
    width: int | None = Field(None, ge=1)  # of the head; None: model.hidden
    recency: bool = False  # dynamic graphs: the head reads the recency and frequency of contacts of the pair
    activity: bool = True  # dynamic graphs: the head reads the recency and frequency of contacts of each node
    decay: tuple[float, ...] = (0.2, 0.05, 1.0)  # decay rates of both per step, a column each
    live: int = Field(0, ge=0)  # dynamic graphs: most optimiser steps of a live update; 0: no live updates
    split: tuple[float, float, float] = (0.85, 0.05, 0.1)  # of edges, if the data set has no split

    applies: ClassVar[Applies] = {
        "negatives": (_LINK,),
        "sampling": (_LINK,),
        "evaluation": (_LINK,),
        "most_pairs": (_LINK,),
        "head": (_LINK,),
        "width": (when("task", "link", "edge"),),
        "recency": (_LINK, _OVER_TIME),
        "activity": (_LINK, _OVER_TIME),
        "decay": (_LINK, _OVER_TIME),
        "live": (_LINK, _OVER_TIME),
        "split": (_LINK, unless("method", "snapshots")),
    }

    @field_validator("evaluation")
    @classmethod
    def _check_evaluation(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("Input should be all, or a number of sampled negatives from 1")
        return value

    @field_validator("decay", mode="before")
    @classmethod
    def _as_tuple(cls, value: object) -> object:
        """Accept one number for a list of one."""
        return (value,) if isinstance(value, int | float) else value

    @field_validator("decay")
    @classmethod
    def _check_decay(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or any(each < 0 for each in value):
            raise ValueError("Input should be one number or more, none below 0")
        return value

    @field_validator("split")
    @classmethod
    def _check_split(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if any(each < 0 for each in value) or abs(sum(value) - 1) > 1e-6 or not value[0]:
            raise ValueError("Input should be three shares that add up to 1, the first above 0")
        return value

    @property
    def pair_memory_width(self) -> int:
        """Number of memory columns that a temporal head reads of a pair: for each decay, of steps and of events."""
        return 2 * len(self.decay) if self.recency else 0

    @property
    def node_memory_width(self) -> int:
        """Number of memory columns that a temporal head reads of a node besides its embedding.

        With a memory of pairs these are sums over the pairs of the node.
        """
        return self.pair_memory_width or (len(self.decay) if self.activity else 0)

    @property
    def static_head(self) -> Literal["mlp", "dot"]:
        """The head for a static graph."""
        return "dot" if self.head == "auto" else self.head

    @property
    def protocol(self) -> str:
        """The name of the evaluation protocol, without which ranking scores cannot be compared."""
        among = "all pairs" if self.evaluation == "all" else f"{self.evaluation} sampled negatives"
        return f"{among}, live" if self.live else among
