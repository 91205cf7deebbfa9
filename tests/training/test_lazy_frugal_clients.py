"""The frugal recipe among clients: as on one rank where nothing is rounded; bytes counted by hand."""

import pytest
import torch
from ranked import NODES, graph_of
from torch import Tensor

from siafu.comm import alone
from siafu.comm.attendance import Attendance
from siafu.comm.config import CommConfig
from siafu.comm.frames import wire_bytes
from siafu.comm.lengths import UpdateWire
from siafu.comm.rounds import links_of
from siafu.comm.simulated import SimulatedRounds
from siafu.graph import Graph
from siafu.partition.cut import whole
from siafu.training.config import TrainConfig
from siafu.training.lazy.clients import holders
from siafu.training.lazy.config import LazyConfig
from siafu.training.lazy.frugal import Frugal, FrugalConfig, train_frugal
from siafu.training.lazy.frugal_clients import FrugalClients, _AmongClients, _ByClient
from siafu.training.lazy.ridge import Picked
from siafu.training.task import task_of

EXACT = FrugalConfig(sums="fp32")


def fitted(graph: Graph, owner: Tensor, config: FrugalConfig) -> tuple[Frugal, _AmongClients]:
    task = task_of(graph, TrainConfig(), alone())
    rounds = SimulatedRounds(
        Attendance(int(owner.max()) + 1), links_of(graph.indptr, graph.indices, owner), task.comm.meter
    )
    made = _AmongClients(rounds, owner, graph.block, graph.x, task, config)
    return made.run(), made


@pytest.mark.parametrize("owner", [torch.arange(NODES), torch.arange(NODES) % 7], ids=["node", "seven"])
def test_where_sums_are_not_rounded_it_is_the_recipe_on_one_rank(owner: Tensor) -> None:
    graph = graph_of()
    task, part = task_of(graph, TrainConfig(), alone()), whole(graph)
    assert graph.x is not None
    wanted = train_frugal(task.comm, part.block(None), part.route, graph.x, task, EXACT)
    found, made = fitted(graph, owner, EXACT)
    assert [tried.name for tried in found.tried] == [tried.name for tried in wanted.tried]
    torch.testing.assert_close(found.out, wanted.out)
    trains, rounds = holders(task, "train", owner), made.rounds
    assert int(rounds.counts["up"][trains].min()) > 0
    assert sum(task.comm.meter.sent.values()) == 0, "one rank alone sends nothing"


def test_terms_of_clients_are_rounded_each_by_itself() -> None:
    draw = torch.Generator().manual_seed(0)
    x, values = torch.randn(9, 5, generator=draw), torch.randn(9, 3, generator=draw)
    owner = torch.tensor([2, 0, 2, 1, 1, 1, 0, 5, 5])
    for wire in (UpdateWire(), UpdateWire("int8", 4), UpdateWire("int4", 64)):
        found = _ByClient(Picked(x), owner, wire).terms(values)
        terms = [(x[owner == client].t() @ values[owner == client]).reshape(1, -1) for client in (0, 1, 2, 5)]
        wanted = sum(wire.arrived(term)[0] for term in terms)
        assert isinstance(wanted, Tensor)
        torch.testing.assert_close(found.reshape(-1), wanted)
    assert not torch.allclose(found, x.t() @ values)


def test_what_a_client_gives_and_hears_is_counted_by_hand() -> None:
    graph, owner = graph_of(), torch.arange(NODES)
    config = FrugalConfig(ridge_rounds=1, penalties=(1.0,), smooth_rounds=1, temperatures=(8.0,))
    found, made = fitted(graph, owner, config)
    assert graph.x is not None
    task, rounds = task_of(graph, TrainConfig(), alone()), made.rounds
    classes, width = 4, graph.x.shape[1]
    means = wire_bytes(4 * (width + 3 + classes), 1, "gradients ridge")
    term = wire_bytes(-(-width * classes // 64) * (64 + 4), 1, "gradients ridge")
    heads = sum("head" in tried.name for tried in found.tried) - 1
    assert found.tried[-1].name == "D: heads on hops by degree"
    wide = 3 * (2 * width + 1)  # knots of degrees up to 16, hops and a one
    by_degree = wire_bytes(4 * (wide + 3 + classes), 1, "gradients ridge")
    for columns in (classes, classes - 1):  # of targets that add up to 1, a direction less
        by_degree += wire_bytes(4 * wide * columns, 1, "gradients ridge")
    by_degree += wire_bytes(4 * 4, 1, "gradients ridge") + wire_bytes(4 * 16, 1, "scores degrees")
    trains = holders(task, "train", owner)
    up = rounds.counts["up"][trains]
    assert up.unique().tolist() == [heads * (means + 2 * term) + by_degree]
    lone = rounds.counts["sent"] + rounds.counts["received"]
    assert lone[-1] == 0, "a node without neighbours has nobody to send to"
    assert (
        int(rounds.by_link.sum()) == int(rounds.counts["sent"].sum()) == int(rounds.counts["received"].sum())
    )


def test_clients_that_come_and_go_are_refused() -> None:
    graph = graph_of()
    task, part = task_of(graph, TrainConfig(), alone()), whole(graph)
    for lazy in (LazyConfig(away=0.1), LazyConfig(participation=0.5)):
        with pytest.raises(ValueError, match=r"the same clients in every round, but lazy\.away is"):
            FrugalClients(
                part,
                part.block(None),
                graph.x,
                task,
                TrainConfig(),
                lazy=lazy,
                owner=torch.arange(NODES),
                seed=0,
                wire=CommConfig(),
            )
