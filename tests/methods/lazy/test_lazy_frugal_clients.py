"""The frugal recipe among clients: equal to one rank without rounding; bytes equal a count by hand."""

import pytest
import torch
from ranked import NODES, graph_of
from torch import Tensor

from siafu.comm import single_rank_comm
from siafu.comm.availability import ClientAvailability
from siafu.comm.rounds import QuorumMissed, member_links
from siafu.comm.simulated_rounds import SimulatedRounds, framed_bytes
from siafu.comm.wire_sizes import UpdateEncoding
from siafu.context import Context
from siafu.graph import Graph
from siafu.methods.lazy.clients import clients_with_rows, restrict_task
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.lazy.delivery_history import DeliveryHistory
from siafu.methods.lazy.frugal import FrugalConfig, FrugalResult, train_frugal
from siafu.methods.lazy.frugal_clients import FrugalClientsProcedure, _ClientRecipe, _ClientRows
from siafu.methods.lazy.ridge import RowSubset
from siafu.partition.cut import whole_part
from siafu.training.config import TrainConfig
from siafu.training.task import task_of

EXACT = FrugalConfig(sums="fp32")


def fitted(graph: Graph, owner: Tensor, config: FrugalConfig) -> tuple[FrugalResult, _ClientRecipe]:
    task = task_of(graph, TrainConfig(), single_rank_comm())
    rounds = SimulatedRounds(
        ClientAvailability(int(owner.max()) + 1),
        member_links(graph.indptr, graph.indices, owner),
        task.comm.meter,
    )
    there = torch.ones(rounds.num_members, dtype=torch.bool)
    made = _ClientRecipe(rounds, owner, Context(graph.block), graph.x, task, config, available=there)
    return made.run(), made


@pytest.mark.parametrize("owner", [torch.arange(NODES), torch.arange(NODES) % 7], ids=["node", "seven"])
def test_without_rounding_the_result_equals_the_recipe_on_one_rank(owner: Tensor) -> None:
    graph = graph_of()
    task, part = task_of(graph, TrainConfig(), single_rank_comm()), whole_part(graph)
    assert graph.x is not None
    wanted = train_frugal(task.comm, part.context(), part.route, graph.x, task, EXACT)
    found, made = fitted(graph, owner, EXACT)
    assert [tried.name for tried in found.tried] == [tried.name for tried in wanted.tried]
    torch.testing.assert_close(found.out, wanted.out)
    trains, rounds = clients_with_rows(task, "train", owner), made.rounds
    assert int(rounds.counts["up"][trains].min()) > 0
    assert sum(task.comm.meter.sent.values()) == 0, "one rank alone sends nothing"


def test_terms_of_each_client_are_rounded_separately() -> None:
    draw = torch.Generator().manual_seed(0)
    x, values = torch.randn(9, 5, generator=draw), torch.randn(9, 3, generator=draw)
    owner = torch.tensor([2, 0, 2, 1, 1, 1, 0, 5, 5])
    for wire in (UpdateEncoding(), UpdateEncoding("int8", 4), UpdateEncoding("int4", 64)):
        found = _ClientRows(RowSubset(x), owner, wire).terms(values)
        terms = [(x[owner == client].t() @ values[owner == client]).reshape(1, -1) for client in (0, 1, 2, 5)]
        wanted = sum(wire.quantize_rows(term)[0] for term in terms)
        assert isinstance(wanted, Tensor)
        torch.testing.assert_close(found.reshape(-1), wanted)
    assert not torch.allclose(found, x.t() @ values)


def test_bytes_of_a_client_equal_a_count_by_hand() -> None:
    graph, owner = graph_of(), torch.arange(NODES)
    config = FrugalConfig(ridge_rounds=1, penalties=(1.0,), smooth_rounds=1, temperatures=(8.0,))
    found, made = fitted(graph, owner, config)
    assert graph.x is not None
    task, rounds = task_of(graph, TrainConfig(), single_rank_comm()), made.rounds
    classes, width = 4, graph.x.shape[1]
    means = framed_bytes(4 * (width + 3 + classes))
    term = framed_bytes(-(-width * classes // 64) * (64 + 4))
    heads = sum("head" in tried.name for tried in found.tried) - 1
    assert found.tried[-1].name == "D: heads on hops by degree"
    wide = 3 * (2 * width + 1)  # knots of degrees up to 16, hops and a one
    by_degree = framed_bytes(4 * (wide + 3 + classes))
    for columns in (classes, classes - 1):  # of targets that add up to 1, a direction less
        by_degree += framed_bytes(4 * wide * columns)
    by_degree += framed_bytes(4 * 4) + framed_bytes(4 * 16)
    trains = clients_with_rows(task, "train", owner)
    up = rounds.counts["up"][trains]
    assert up.unique().tolist() == [heads * (means + 2 * term) + by_degree]
    head = framed_bytes(-(-(width * classes + classes) // 64) * (64 + 4))
    by_degree = framed_bytes(4 * (wide * classes + classes))
    down = rounds.counts["down"][~(trains | clients_with_rows(task, "val", owner))]
    assert down.unique().tolist() == [heads * head + by_degree + framed_bytes(4)]
    lone = rounds.counts["sent"] + rounds.counts["received"]
    assert lone[-1] == 0, "a node without neighbours has nobody to send to"
    assert (
        int(rounds.by_link.sum()) == int(rounds.counts["sent"].sum()) == int(rounds.counts["received"].sum())
    )


def trainer_of(graph: Graph, lazy: LazyConfig, *, seed: int = 0) -> FrugalClientsProcedure:
    """A trainer among seven clients."""
    task, part = task_of(graph, TrainConfig(), single_rank_comm()), whole_part(graph)
    given = (part, part.context(), graph.x, task)
    return FrugalClientsProcedure(*given, lazy=lazy, owner=torch.arange(NODES) % 7, seed=seed)


def test_absent_clients_are_left_out_and_get_outputs_in_the_end() -> None:
    graph = graph_of()
    trainer = trainer_of(graph, LazyConfig(away=0.3, quorum=0.5))
    rounds, owner = trainer.rounds, trainer.owner
    there = rounds.available(0)
    assert 3 < int(there.sum()) < 7
    found, part = trainer._fit(EXACT), whole_part(graph)
    assert graph.x is not None
    context = part.context()
    known = DeliveryHistory(context, rounds.links, owner)
    left, _ = known.context(0, [graph.x], known.messages_between(there, there), stands_in=False)
    task = restrict_task(task_of(graph, TrainConfig(), single_rank_comm()), there[owner])
    wanted = train_frugal(task.comm, left, part.route, graph.x, task, EXACT)
    scores = [[(each.name, each.score) for each in one.tried[:4]] for one in (found, wanted)]
    assert scores[0] == scores[1]
    torch.testing.assert_close(found.out, found.model(context, graph.x))
    assert rounds.counts["up"][~there].tolist() == [0] * int((~there).sum())
    told = framed_bytes(4 * sum(each.numel() for each in found.model.parameters()))
    assert rounds.counts["down"][~there].unique().tolist() == [told]


def test_participants_are_sampled_for_each_head() -> None:
    trainer = trainer_of(graph_of(), LazyConfig(participation=0.4))
    found = trainer._fit(EXACT)
    up = trainer.rounds.counts["up"]
    everybody = trainer_of(graph_of(), LazyConfig())
    everybody._fit(EXACT)
    assert int(up.sum()) < 0.8 * int(everybody.rounds.counts["up"].sum())
    assert len(up.unique()) > 1, "not always the same"
    assert max(each.score for each in found.tried) > 0.25


def test_a_missed_quorum_is_an_error() -> None:
    with pytest.raises(QuorumMissed, match=r"clients are available, expected 7; lower lazy\.quorum"):
        trainer_of(graph_of(), LazyConfig(away=0.6, quorum=1.0))._fit(EXACT)
