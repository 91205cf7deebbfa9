"""``ModelConfig``: the settings of a model."""

from typing import Any, ClassVar, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, model_validator

from siafu.conditions import ALWAYS, Applies, unless, when

Temporal = Literal["cd-gcn", "tm-gcn", "evolvegcn-o", "evolvegcn-h", "gcn-gru", "mingru"]
Kind = Literal[
    "gcn", "sage", "gat", "gatv2", "gin", "mlp", "appnp", "sgc", "gcn2", "auto", "custom", Temporal
]  # siafu.nn.kinds builds them; auto: a race chooses the kind
TEMPORAL: tuple[Temporal, ...] = get_args(Temporal)  # the kinds of siafu.nn.temporal, over graphs that change
ATTENTION = ("gat", "gatv2")
STACKS = ("gcn", "sage", *ATTENTION, "gin", "mlp")  # of layers of one kind
AUTO_KINDS = ("gcn", "sage", "gat")  # that race where the kind is auto
# Default dropout of kinds: more for attention, none for models over time and for SGC.
_DROPOUT: dict[str, float] = {"gat": 0.6, "gatv2": 0.6, "sgc": 0.0, **dict.fromkeys(TEMPORAL, 0.0)}


class ModelConfig(BaseModel):
    """The settings of a model. The widths of its inputs and outputs come from the graph."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = "gcn"
    layers: int = Field(2, ge=1)  # of sgc: hops; of appnp: dense layers before the hops
    hidden: int = Field(64, ge=1)
    dropout: float = Field(0.5, ge=0, lt=1)
    input_dropout: float | None = Field(None, ge=0, lt=1)  # None: as dropout
    attention_dropout: float | None = Field(None, ge=0, lt=1)  # None: as dropout
    heads: int = Field(8, ge=1)
    output_heads: int = Field(1, ge=1)
    reduce: Literal["mean", "max"] = "mean"
    norm: Literal["none", "layer", "batch"] = "none"
    residual: bool = False
    jump: Literal["none", "cat", "max"] = "none"
    hops: int = Field(10, ge=1)  # of appnp: how often predictions are propagated
    teleport: float = Field(0.1, gt=0, le=1)  # of appnp and gcn2: the share of the initial rows in each layer
    identity: float = Field(0.5, gt=0)  # of gcn2: layer l moves rows by ln(1 + identity / l) of its weights
    band: int = Field(20, ge=1)  # of tm-gcn: how many steps are averaged
    top_k: int | None = Field(None, ge=1)  # of evolvegcn-h: rows of a summary; None: as many as hidden

    applies: ClassVar[Applies] = {
        "kind": ALWAYS,
        "layers": (unless("model.kind", "custom"),),
        "hidden": (unless("model.kind", "sgc", "custom"),),
        "dropout": (unless("model.kind", *TEMPORAL, "custom"),),
        "input_dropout": (unless("model.kind", *TEMPORAL, "custom"),),
        "attention_dropout": (when("model.kind", *ATTENTION),),
        "heads": (when("model.kind", *ATTENTION),),
        "output_heads": (when("model.kind", *ATTENTION),),
        "reduce": (when("model.kind", "sage"),),
        "norm": (when("model.kind", *STACKS),),
        "residual": (when("model.kind", *STACKS),),
        "jump": (when("model.kind", *STACKS),),
        "hops": (when("model.kind", "appnp"),),
        "teleport": (when("model.kind", "appnp", "gcn2"),),
        "identity": (when("model.kind", "gcn2"),),
        "band": (when("model.kind", "tm-gcn"),),
        "top_k": (when("model.kind", "evolvegcn-h"),),
    }

    @property
    def input_rate(self) -> float:
        """The rate of dropout of the inputs."""
        return self.dropout if self.input_dropout is None else self.input_dropout

    @property
    def attention_rate(self) -> float:
        """The rate of dropout of attention weights."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @model_validator(mode="wrap")
    @classmethod
    def _set_dropout_of_kind(
        cls, values: Any, validate: ModelWrapValidatorHandler["ModelConfig"]
    ) -> "ModelConfig":
        """Set the default dropout of a kind, which does not count as a setting that the user gave."""
        kind = values.get("kind") if isinstance(values, dict) else None
        if not isinstance(kind, str) or kind not in _DROPOUT or "dropout" in values:
            return validate(values)
        config = validate({"dropout": _DROPOUT[kind], **values})
        config.model_fields_set.discard("dropout")
        return config
