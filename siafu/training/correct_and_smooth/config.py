"""``CorrectAndSmoothConfig``: the settings of correct-and-smooth."""

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from siafu.conditions import ALWAYS, Applies, when

_ENABLED = when("correct_and_smooth.enabled", True)


class CorrectAndSmoothConfig(BaseModel):
    """Whether correct-and-smooth runs after training, and the two propagations."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    enabled: bool = False
    correct_alpha: float = Field(0.8, ge=0, le=1)  # share of the neighbours' errors in each step
    correct_steps: int = Field(50, ge=0)
    smooth_alpha: float = Field(0.8, ge=0, le=1)  # share of the neighbours' predictions in each step
    smooth_steps: int = Field(50, ge=0)
    scale: Literal["auto"] | Annotated[float, Field(gt=0)] = "auto"  # factor of the propagated errors
    validation_labels: bool = False  # smooth from the labels of validation nodes, too

    applies: ClassVar[Applies] = {
        "enabled": ALWAYS,
        "correct_alpha": (_ENABLED,),
        "correct_steps": (_ENABLED,),
        "smooth_alpha": (_ENABLED,),
        "smooth_steps": (_ENABLED,),
        "scale": (_ENABLED,),
        "validation_labels": (_ENABLED,),
    }
