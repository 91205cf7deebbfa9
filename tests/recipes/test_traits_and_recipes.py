"""The facts that recipes follow from, and the recipes that follow."""

from dataclasses import replace

import pytest
import torch

from siafu.config import build
from siafu.data import community
from siafu.graph import Graph
from siafu.native import SparseRows
from siafu.recipes.choose import Chooser
from siafu.recipes.recipe import FEW_LABELS, MANY_LABELS, kinds_for, recipes_for, tables_of
from siafu.recipes.traits import Traits, traits_of
from siafu.resolve import resolve_config
from siafu.training.config import TrainConfig
from siafu.training.task import task_of

TRAITS = Traits(
    num_train=100,
    num_val=100,
    num_outputs=3,
    in_features=50,
    counts=True,
    dense=False,
    degree=4.0,
    homophily=0.8,
)


def traits(graph: Graph) -> Traits:
    return traits_of(graph, task_of(graph, TrainConfig()))


def line(labels: list[int], **more: object) -> Graph:
    """A path in both directions, all of whose nodes are for training."""
    ends = torch.arange(len(labels) - 1)
    edges = torch.stack([torch.cat([ends, ends + 1]), torch.cat([ends + 1, ends])])
    train = torch.ones(len(labels), dtype=torch.bool)
    return Graph.from_edges(edges, y=labels, train_mask=train, num_nodes=len(labels), **more)


def test_homophily_is_one_where_neighbours_are_of_one_class_and_zero_by_chance() -> None:
    ends = torch.arange(80).view(40, 2)  # pairs, each of one class
    edges = torch.cat([ends, ends.flip(1)]).T
    alike = Graph.from_edges(edges, y=[0] * 40 + [1] * 40, train_mask=[True] * 80, num_nodes=80)
    assert traits(alike).homophily == pytest.approx(1.0)
    assert traits(line([0, 1] * 40)).homophily == pytest.approx(-1.0, abs=0.01)
    chance = community(2_000, degree=10, features=4, classes=2, inside=0.0)
    assert traits(chance).homophily == pytest.approx(0.0, abs=0.1)


def test_homophily_is_unknown_where_few_edges_join_training_nodes() -> None:
    graph = replace(line([0, 1] * 40), train_mask=torch.arange(80) % 2 == 0)
    assert traits(graph).homophily is None
    assert traits(line([0, 1, 0, 1])).homophily is None


@pytest.mark.parametrize("stored_sparse", [True, False])
def test_bags_of_words_and_dense_features_are_told_apart(stored_sparse: bool) -> None:
    words = torch.zeros(4, 20)
    words[:, 3] = 1.0
    negative, full = words * -1, torch.rand(4, 20) + 0.1
    found = [
        traits(line([0, 1, 0, 1], x=SparseRows.from_dense(x) if stored_sparse and x is not full else x))
        for x in (words, negative, full)
    ]
    assert [(each.counts, each.dense) for each in found] == [(True, False), (False, False), (False, True)]
    assert [each.in_features for each in found] == [20, 20, 20]


def test_a_graph_without_features_has_neither() -> None:
    found = traits(line([0, 1, 0, 1]))
    assert (found.in_features, found.counts, found.dense) == (0, False, False)
    assert len(recipes_for("gcn", found)) == 1


def test_few_labels_get_the_settings_of_small_citation_graphs() -> None:
    first, *_ = recipes_for("gcn", TRAITS)
    tables = tables_of(first, TRAITS)
    assert tables["model"] == {}, "the defaults of each kind: dropout 0.6 for GAT"
    assert tables["train"] == {"weight_decay": 5e-4}
    assert tables["data"] == {"normalize": "rows"}


def test_few_labels_with_dense_counts_get_a_wide_model() -> None:
    first, *_ = recipes_for("gcn", TRAITS._replace(dense=True))
    assert first.model["hidden"] == 256
    first, *_ = recipes_for("gcn", TRAITS._replace(dense=True, counts=False))
    assert not first.model


@pytest.mark.parametrize(("kind", "dropout"), [("gcn", 0.5), ("gat", 0.6), ("sgc", 0.0)])
def test_with_few_labels_kinds_keep_their_dropout(kind: str, dropout: float) -> None:
    graph = community(300, degree=8, features=12, classes=3)
    (first, *_) = chooser(graph, model={"kind": kind}).candidates()
    assert (first.config.model.dropout, first.config.model.hidden) == (dropout, 64)


def test_weight_decay_falls_with_the_number_of_labels() -> None:
    decays = []
    for count in (FEW_LABELS, 10_000, MANY_LABELS, 100_000):
        recipes = {each.name: each for each in recipes_for("gcn", TRAITS._replace(num_train=count))}
        decays.append(recipes["decayed"].train["weight_decay"])
    assert decays == [1e-3, 2e-4, 1e-4, 2e-5]
    assert recipes_for("gcn", TRAITS._replace(num_train=MANY_LABELS))[0].name == "wide"


@pytest.mark.parametrize(
    ("num_train", "counts", "dense", "wanted"),
    [
        *[(100, True, False, "rows"), (100, True, True, "none"), (100, False, True, "standard")],
        *[(100, False, False, "none"), (5_000, True, False, "none"), (5_000, True, True, "standard")],
        *[(50_000, False, True, "standard"), (50_000, False, False, "none")],
    ],
)
def test_features_are_prepared_by_what_they_are(
    num_train: int, counts: bool, dense: bool, wanted: str
) -> None:
    found = TRAITS._replace(num_train=num_train, counts=counts, dense=dense)
    assert {tables_of(each, found)["data"]["normalize"] for each in recipes_for("gcn", found)} == {wanted}


def test_models_without_norm_and_skip_connections_get_no_recipe_with_them() -> None:
    many = TRAITS._replace(num_train=MANY_LABELS)
    assert any("norm" in each.model for each in recipes_for("sage", many))
    assert not any("norm" in each.model for each in recipes_for("appnp", many))


def test_sage_races_too_where_neighbours_are_unlike_or_labels_many() -> None:
    assert kinds_for(TRAITS) == ("gcn",)
    assert kinds_for(TRAITS._replace(homophily=None)) == ("gcn",)
    assert kinds_for(TRAITS._replace(homophily=0.0)) == ("gcn", "sage")
    assert kinds_for(TRAITS._replace(num_train=FEW_LABELS)) == ("gcn", "sage")
    assert kinds_for(TRAITS._replace(num_train=FEW_LABELS, in_features=0)) == ("gcn",)


def chooser(graph: Graph, **tables: object) -> Chooser:
    given = build(tables)
    return Chooser(given, resolve_config(given, graph, ""), graph, task_of(graph, given.train))


def test_patience_is_counted_in_steps_for_minibatches() -> None:
    graph = community(3_000, degree=8, features=12, classes=3)
    (first, *_) = chooser(graph, method="sampled", sampled={"batch_size": 50}).candidates()
    assert first.config.train.patience == 10
    (whole, *_) = chooser(graph).candidates()
    assert whole.config.train.patience == 100


def test_a_fanout_that_was_given_says_how_many_layers_there_are() -> None:
    graph = community(3_000, degree=8, features=12, classes=3)
    found = chooser(graph, method="sampled", sampled={"fanout": (5, 5, 5)}).candidates()
    assert {each.config.model.layers for each in found} == {3}


def test_recipes_that_the_users_settings_make_equal_are_one() -> None:
    graph = community(300, degree=8, features=12, classes=3)
    model, train = {"hidden": 8, "dropout": 0.1, "layers": 2}, {"weight_decay": 0.1}
    assert len(chooser(graph, model=model, train=train).candidates()) == 1


def test_streamed_features_are_not_standardised_unasked() -> None:
    graph = community(300, degree=8, features=12, classes=3)
    found = chooser(graph, data={"inputs": "stream"}).candidates()
    assert {each.config.data.normalize for each in found} == {"none"}


def test_in_a_race_of_kinds_others_than_gcn_are_half_as_wide() -> None:
    graph = community(6_000, degree=8, features=12, classes=3)
    found = chooser(graph).candidates()
    assert {(each.config.model.kind, each.config.model.hidden) for each in found} == {
        ("gcn", 256),
        ("sage", 128),
    }
    (only, *_) = chooser(graph, model={"kind": "sage"}).candidates()
    assert only.config.model.hidden == 256
    asked = chooser(graph, model={"hidden": 32}).candidates()
    assert {each.config.model.hidden for each in asked} == {32}
