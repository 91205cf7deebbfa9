"""Which weights and which rows a stage reads and gives. It knows no torch."""

from siafu.workers.setup import Setup
from siafu.workers.task import Direction, Key


def projects(setup: Setup, stage: int) -> bool:
    """Whether a stage ends by projecting for the layer that follows it."""
    return stage < setup.num_layers and not setup.aggregates_first[stage]


def returns_h(setup: Setup, stage: int) -> bool:
    """Whether a stage also gives the rows that the next layer is given: they are read, and are not what is aggregated.

    Not in stage 0, whose rows are the inputs.
    """
    if stage in (0, setup.num_layers):
        return False
    return projects(setup, stage) and (setup.reads_dst[stage] or setup.model["jump"] != "none")


def reads_x(setup: Setup, stage: int) -> bool:
    """Whether a stage reads the rows that were given to the layer it updates; stage 0 reads the inputs."""
    return stage == 0 or setup.reads_dst[stage - 1]


def reads_static(setup: Setup, stage: int) -> bool:
    """Whether the aggregate that a stage reads is of static inputs, so that nobody wants its gradient."""
    return stage == 0 or (stage == 1 and setup.kept)


def static_rows(setup: Setup, key: Key) -> list[str]:
    """The rows that are the same in every such task of an interval: which nodes they are, inputs, labels."""
    stage = key.stage
    names = ["row_id", "m"] if stage and reads_static(setup, stage) else ["row_id"]
    names += ["x"] if stage <= 1 and reads_x(setup, stage) else []
    return names + (["rows", "y"] if key.direction == Direction.LEARN else [])


def earlier(setup: Setup, stage: int) -> list[int]:
    """The stages whose rows are read again, as ``h1``, ``h2``, …: those before the last, with ``jump``."""
    return list(range(1, stage)) if stage == setup.num_layers and setup.model["jump"] != "none" else []


def rows_with_grad(setup: Setup, stage: int) -> list[str]:
    """The rows that a stage gives gradients of: all that it reads but static inputs, as ``x`` is in stage 1."""
    names = [] if reads_static(setup, stage) else ["m"]
    names += ["x"] if stage > 1 and reads_x(setup, stage) else []
    return names + [f"h{place}" for place in earlier(setup, stage)]


def has_grad_h(setup: Setup, stage: int) -> bool:
    """Whether something beside the aggregate reads a stage's rows, so that they have a second gradient."""
    if stage in (0, setup.num_layers):
        return False
    return setup.reads_dst[stage] or setup.model["jump"] != "none"


def weights_of(setup: Setup, stage: int, names: list[str]) -> list[str]:
    """Those of the model's weights that a stage reads, in the model's order."""
    prefixes = []
    if stage:
        prefixes += [f"layers.{stage - 1}.", f"norms.{stage - 1}.", f"skips.{stage - 1}."]
    if projects(setup, stage):
        prefixes.append(f"layers.{stage}.")
    if stage == setup.num_layers:
        prefixes.append("head.")
    return [name for name in names if name.startswith(tuple(prefixes))]
