"""How pairs of nodes are learned and scored."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

DEFAULTS = {
    "model": {"dropout": 0.0},
    "train": {"weight_decay": 0.0},
}  # of a task on pairs, where nothing is given


class LinkConfig(BaseModel):
    """Negatives, the head that scores pairs, and the protocol of evaluation."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    negatives: int | None = Field(
        None, ge=1
    )  # for each edge that is learned from; None: what the data set is usually trained with, else 1
    sampling: Literal["auto", "uniform", "smart"] = (
        "auto"  # among all nodes, or those that have an edge; auto: uniform, over time smart
    )
    evaluation: Literal["all"] | int = "all"  # rank edges among all pairs, or so many sampled negatives
    most_pairs: int = Field(10**10, ge=1)  # of a step, beyond which an evaluation over all is refused
    head: Literal["auto", "mlp", "dot"] = "auto"  # auto: dot, over time mlp
    width: int | None = Field(None, ge=1)  # of the head; None: as model.hidden
    recency: bool = False  # over time: the head also reads how lately and how often two nodes met
    activity: bool = True  # over time: the head also reads how lately and how often each of the two met any
    decay: tuple[float, ...] = (0.2, 0.05, 1.0)  # how fast that fades, a step; several are read side by side
    live: int = Field(
        0, ge=0
    )  # over time: steps of the optimiser, at most, on links that became known, before the next are predicted
    split: tuple[float, float, float] = (0.85, 0.05, 0.1)  # of edges, where the data set has none

    @field_validator("evaluation")
    @classmethod
    def _some(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("Input should be all, or a number of sampled negatives from 1")
        return value

    @field_validator("decay", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """One number stands for a list of it."""
        return (value,) if isinstance(value, int | float) else value

    @field_validator("decay")
    @classmethod
    def _fading(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if not value or any(each < 0 for each in value):
            raise ValueError("Input should be one number or more, none below 0")
        return value

    @field_validator("split")
    @classmethod
    def _shares(cls, value: tuple[float, float, float]) -> tuple[float, float, float]:
        if any(each < 0 for each in value) or abs(sum(value) - 1) > 1e-6 or not value[0]:
            raise ValueError("Input should be three shares that add up to 1, the first above 0")
        return value

    @property
    def known_of_pairs(self) -> int:
        """How many numbers a head over time reads of a pair: of each decay steps and events."""
        return 2 * len(self.decay) if self.recency else 0

    @property
    def known_of_nodes(self) -> int:
        """How many numbers it reads of a node beside its row: where pairs are remembered, of all its pairs."""
        return self.known_of_pairs or (len(self.decay) if self.activity else 0)

    @property
    def static_head(self) -> Literal["mlp", "dot"]:
        """What scores pairs of a graph that does not change."""
        return "dot" if self.head == "auto" else self.head

    @property
    def protocol(self) -> str:
        """What edges are ranked among, as every figure is to be named by."""
        among = "all pairs" if self.evaluation == "all" else f"{self.evaluation} sampled negatives"
        return f"{among}, live" if self.live else among
