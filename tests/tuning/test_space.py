"""The default search space: its values are valid settings, and published tuned models lie in it."""

from pathlib import Path
from typing import Any

import pytest

from siafu.config import build
from siafu.tuning.space import (
    ENTRIES,
    RECIPES,
    RECIPES_FEW_LABELS,
    TEMPORAL_ENTRIES,
    Choices,
    Limits,
    Range,
    Space,
    active,
    default_space,
    kinds_of,
    restrict,
    without_fixed,
)
from siafu.tuning.space_file import nested, read_space, space_from_plain, space_to_plain

GIB = 2**30


def limits(
    method: str = "full",
    nodes: int = 2708,
    normalize: tuple[str, ...] = ("rows", "none"),
    memory: int = 8 * GIB,
) -> Limits:
    return Limits(method, nodes, normalize, memory)


def domain(space: Space, key: str, kind: str = "gcn") -> Any:
    return next((entry.domain for entry in active(space, kind) if entry.key == key), None)


@pytest.mark.parametrize("entry", [*ENTRIES, *TEMPORAL_ENTRIES], ids=lambda entry: entry.name)
def test_every_value_of_the_default_space_is_a_valid_setting(entry: Any) -> None:
    ends = entry.domain.values if isinstance(entry.domain, Choices) else (entry.domain.low, entry.domain.high)
    for value in ends:
        build(nested({entry.key: value}))


# Luo et al. 2024, arXiv 2406.08993: Cora, Citeseer, PubMed, and a larger set.
PUBLISHED = [
    (2_708, {"hidden": 512, "layers": 3, "dropout": 0.7}, {"lr": 0.001, "weight_decay": 5e-4}),
    (3_327, {"hidden": 512, "layers": 2, "dropout": 0.5}, {"lr": 0.001, "weight_decay": 1e-2}),
    (19_717, {"hidden": 256, "layers": 2, "dropout": 0.7}, {"lr": 0.005, "weight_decay": 5e-4}),
    (
        34_493,
        {"hidden": 512, "layers": 6, "dropout": 0.3, "norm": "layer", "residual": True},
        {"lr": 0.001, "weight_decay": 5e-4},
    ),
]


@pytest.mark.parametrize(("nodes", "model", "train"), PUBLISHED)
@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_published_tuned_models_lie_in_the_default_space(
    kind: str, nodes: int, model: dict[str, Any], train: dict[str, Any]
) -> None:
    space = default_space(limits(nodes=nodes))
    settings = {f"model.{key}": value for key, value in model.items()}
    settings |= {f"train.{key}": value for key, value in train.items()} | {"model.kind": kind}
    assert restrict(settings, space, kind="gcn") == settings


def test_every_parameter_has_a_name_of_its_own() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)


def test_the_docs_list_every_setting_and_their_example_is_a_space(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text()
    for entry in ENTRIES:
        assert f"`{entry.key}`" in text, entry.key
    (tmp_path / "space.toml").write_text(text.partition("```toml\n")[2].partition("```")[0])
    assert len(read_space(tmp_path / "space.toml", fixed={})) == 5


def test_the_recipes_lie_in_the_default_space() -> None:
    for nodes, recipes in ((2_708, RECIPES_FEW_LABELS), (20_000, RECIPES)):
        space = default_space(limits(nodes=nodes))
        for name, settings in recipes.items():
            expected = {
                key: value for key, value in settings.items() if nodes < 10_000 or key != "train.epochs"
            }
            assert restrict(settings, space, kind="gcn") == expected, name


def test_a_setting_is_searched_for_the_kinds_of_models_that_have_it() -> None:
    space = default_space(limits())
    assert domain(space, "model.layers", "gcn") == Choices((1, 2, 3, 4))
    assert 16 in domain(space, "model.layers", "gcn2")
    assert domain(space, "model.heads", "gcn") is None
    assert domain(space, "model.norm", "appnp") is None
    assert {"model.hops", "model.teleport"} <= {entry.key for entry in active(space, "appnp")}


def test_widths_whose_activations_would_not_fit_are_left_out() -> None:
    space = default_space(limits(nodes=300_000))
    assert domain(space, "model.hidden") == Choices((64, 128))
    assert domain(default_space(limits(nodes=10**9)), "model.hidden") == Choices((64,))
    assert 512 in domain(default_space(limits("sampled", nodes=10**9)), "model.hidden").values


def test_deep_stacks_are_searched_on_large_graphs_and_many_epochs_on_small_ones() -> None:
    small, large, huge = (default_space(limits(nodes=nodes)) for nodes in (2_708, 20_000, 100_000))
    deepest = [domain(space, "model.layers").values[-1] for space in (small, large, huge)]
    assert deepest == [4, 9, 6]
    assert (domain(small, "train.epochs"), domain(large, "train.epochs")) == (Choices((500,)), None)


def test_inputs_of_a_graph_without_features_are_not_searched() -> None:
    keys = {entry.key for entry in default_space(limits(normalize=()))}
    assert not keys & {"model.input_dropout", "data.normalize"}
    assert domain(default_space(limits(normalize=("none",))), "data.normalize") == Choices(("none",))


@pytest.mark.parametrize("method", ["pipeline", "lazy"])
def test_values_that_a_method_refuses_are_left_out(method: str) -> None:
    assert domain(default_space(limits(method)), "model.norm") == Choices(("none", "layer"))


def test_lazy_searches_kinds_that_it_trains() -> None:
    assert kinds_of(default_space(limits("lazy")), "gcn") == ("gcn", "sage", "gat")


def test_fixed_settings_are_not_searched_nor_those_of_other_kinds() -> None:
    space = without_fixed(default_space(limits()), ["model.kind", "model.hidden"], kind="appnp")
    keys = {entry.key for entry in space}
    assert not keys & {"model.kind", "model.hidden", "model.heads", "model.norm", "model.identity"}
    assert {"model.hops", "model.teleport", "train.lr"} <= keys


def test_a_space_survives_a_round_trip_through_json() -> None:
    space = default_space(limits())
    assert space_from_plain(space_to_plain(space)) == space


def test_a_value_lies_in_a_domain_only_if_its_type_fits() -> None:
    assert True not in Choices((0, 1))
    assert 1 not in Choices((False, True))
    assert 2.5 not in Range(1, 4)
    assert True not in Range(0, 4)
    assert "1" not in Range(0, 4)
    assert 0.3 in Range(0.1, 0.5, step=0.1)
    assert 0.35 not in Range(0.1, 0.5, step=0.1)
