"""Programs travel as JSON, and one that a worker could not run is refused when it is read."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from staged import KINDS, OTHERS, model_of, setup_of

from siafu.workers.program import OPERATIONS
from siafu.workers.setup import Setup

Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("kind", [*KINDS, *OTHERS])
def test_a_setup_is_the_same_after_its_way_over_the_wire(kind: str) -> None:
    norm = {"norm": "layer", "residual": True, "jump": "cat"} if kind in KINDS else {}
    setup = setup_of(model_of(kind, **norm), class_weight=(0.5, 1.0, 2.0), gamma=2.0)
    assert Setup.from_json(setup.to_json()) == setup
    used = {each.operation for program in setup.programs for each in program.instructions}
    assert used <= set(OPERATIONS)


def first_step(setup: dict[str, Any]) -> list[Any]:
    return setup["programs"][0]["instructions"][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda setup: first_step(setup).__setitem__(0, "exec"), "operation 'exec' is not known"),
        (lambda setup: first_step(setup)[1].__setitem__(0, "value 7"), "reads 'value 7', which nothing computes"),
        (lambda setup: first_step(setup)[1].__setitem__(0, 3), "inputs or options that it does not take"),
        (lambda setup: first_step(setup)[1].__setitem__(0, None), "inputs or options that it does not take"),
        (lambda setup: first_step(setup)[2].update(path="/etc/passwd"), "inputs or options that it does not take"),
        (lambda setup: first_step(setup).pop(), "not \\(operation, inputs, options\\)"),
        (lambda setup: setup["programs"][0].update(z="weight other"), "reads 'weight other', which nothing computes"),
        (lambda setup: setup["programs"][0].update(widest=0), "rows 0 wide"),
        (lambda setup: setup["programs"][0].update(reads=5), "a int where a program has a list"),
        (lambda setup: setup["programs"][0].update(more=1), "a program of other fields"),
        (lambda setup: setup.update(programs=[]), "without stages"),
        (lambda setup: setup.update(dtype="object"), "an unknown dtype"),
        (lambda setup: setup.update(kept=-1), "kept aggregates or seed are no counts"),
        (lambda setup: setup.update(seed="0"), "kept aggregates or seed are no counts"),
        (lambda setup: setup.update(gamma=-1), "gamma -1.0; expected a number from 0"),
        (lambda setup: setup.update(gamma="nan"), "gamma nan; expected a number from 0"),
        (lambda setup: setup.update(model={}), "expected .*programs.*another version of siafu"),
    ],
)  # fmt: skip
def test_what_no_worker_could_run_is_refused(change: Change, message: str) -> None:
    setup = json.loads(setup_of(model_of("gcn")).to_json())
    change(setup)
    with pytest.raises(ValueError, match=message):
        Setup.from_json(json.dumps(setup))
