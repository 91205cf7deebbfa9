"""The rows and weights that a stage reads and gives. It knows no torch."""

from siafu.workers.setup import Setup
from siafu.workers.task import Direction, Key


def returns_h(setup: Setup, stage: int) -> bool:
    """Say whether a stage gives rows h beside z: a later stage reads them, and they differ."""
    program = setup.program(stage)
    return program.h != program.z and _is_read_after(setup, stage, f"h{stage}")


def reads_x(setup: Setup, stage: int) -> bool:
    """Say whether a stage reads the inputs."""
    return "x" in setup.program(stage).reads


def reads_static(setup: Setup, stage: int) -> bool:
    """Say whether the aggregate before a stage, if there is one, is of static inputs and so has no gradient."""
    return stage == setup.kept


def earlier(setup: Setup, stage: int) -> list[int]:
    """The earlier stages whose rows a stage reads, as ``h0``, ``h1`` and so on."""
    return [int(name[1:]) for name in setup.program(stage).reads if name.startswith("h")]


def static_rows(setup: Setup, key: Key) -> list[str]:
    """The rows that are the same in every such task of an interval: node ids, inputs, their aggregate, labels."""
    stage = key.stage
    names = ["row_id", "m"] if stage and reads_static(setup, stage) else ["row_id"]
    names += ["x"] if reads_x(setup, stage) else []
    return names + (["rows", "y"] if key.direction == Direction.LEARN else [])


def rows_with_grad(setup: Setup, stage: int) -> list[str]:
    """The rows that a stage gives gradients of: all that it reads but static ones."""
    names = [] if reads_static(setup, stage) else ["m"]
    return names + [f"h{number}" for number in earlier(setup, stage)]


def has_grad_h(setup: Setup, stage: int) -> bool:
    """Say whether later stages read a stage's rows h, which then have a gradient of their own."""
    return _is_read_after(setup, stage, f"h{stage}")


def adds_to_grad(setup: Setup, stage: int, name: str) -> bool:
    """Say whether a stage adds to a gradient of earlier rows that a later stage has written."""
    return _is_read_after(setup, stage, name)


def weights_of(setup: Setup, stage: int, names: list[str]) -> list[str]:
    """Pick the weights that a stage reads, in the model's order."""
    read = set(setup.program(stage).weights)
    return [name for name in names if name in read]


def _is_read_after(setup: Setup, stage: int, name: str) -> bool:
    return any(
        name in setup.program(later).reads
        for later in range(max(stage + 1, setup.kept), setup.num_aggregates + 1)
    )
