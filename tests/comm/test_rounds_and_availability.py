"""Availability, links, sizes and durations of simulated rounds, against counts by hand."""

import pytest
import torch
from torch import Tensor

from siafu.comm.availability import ClientAvailability
from siafu.comm.compression import compress_rows
from siafu.comm.config import Precision
from siafu.comm.meter import ByteMeter
from siafu.comm.network_profiles import NETWORK_PROFILES, NetworkProfile, TransferStep, transfer_seconds
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.rounds import MemberLinks, QuorumMissed, Rounds, member_links
from siafu.comm.simulated_rounds import HEAD_BYTES, SimulatedRounds, framed_bytes
from siafu.comm.wire_sizes import UpdateEncoding, packed_row_bytes

# 0 -> 1, 0 -> 2, 1 -> 2, 2 -> 0, 0 -> 3, and a loop 3 -> 3; node 4 is alone
INDPTR, INDICES = torch.tensor([0, 1, 2, 4, 6, 6]), torch.tensor([2, 0, 0, 1, 0, 3], dtype=torch.int32)
PAIRED = torch.tensor([0, 1, 1, 2, 3])  # nodes 1 and 2 have one owner


def links(owner: Tensor) -> MemberLinks:
    return member_links(INDPTR, INDICES, owner)


def simulated(owner: Tensor, **availability: float) -> SimulatedRounds:
    return SimulatedRounds(
        ClientAvailability(int(owner.max()) + 1, **availability), links(owner), ByteMeter()
    )


def test_each_row_is_sent_once_to_every_other_member_that_reads_it() -> None:
    found = links(PAIRED)
    assert list(zip(found.row.tolist(), found.reader.tolist(), strict=True)) == [(0, 1), (0, 2), (2, 0)]
    assert found.pair.tolist() == [[0, 1], [0, 2], [1, 0]]
    assert found.of_edge.tolist() == [2, 0, 0, -1, 1, -1]
    each = links(torch.arange(5))
    assert each.pair.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [2, 0]]
    assert links(torch.zeros(5, dtype=torch.int64)).pair.shape == (0, 2)


def test_bytes_of_an_exchange_equal_a_count_by_hand() -> None:
    rounds = simulated(PAIRED)
    x = torch.tensor([[0.1, 0.2], [5.0, 7.1], [1.0, 0.0], [0.0, 0.0], [9.0, 9.0]])
    rounds.exchange(x, torch.ones(3, dtype=torch.bool), label="halo 1")
    head = HEAD_BYTES
    two_floats, a_one = head + 2 + 8, head + 2 + 1  # a form of two bytes; then the numbers, or a byte of bits
    assert rounds.by_link.tolist() == [two_floats, two_floats, a_one]
    assert rounds.counts["sent"].tolist() == [2 * two_floats, a_one, 0, 0]
    assert rounds.counts["received"].tolist() == [a_one, two_floats, two_floats, 0]
    assert rounds.steps == [TransferStep(2 * two_floats, two_floats)]
    assert rounds._meter.sent == {"halo 1": 2 * two_floats + a_one}


def test_only_requested_rows_are_sent_and_a_link_has_one_payload_for_all_its_rows() -> None:
    both = simulated(torch.tensor([0, 0, 1, 1, 2]))  # 0 and 1 go to the owner of 2 and 3, in one message
    x = torch.full((5, 1), 0.3)
    asked = both.links.reader == 1
    assert asked.sum() == 2
    both.exchange(x, asked, label="h")
    assert both.by_link.tolist() == [framed_bytes(2 * (2 + 1 + 4)) - 2, 0]
    both.exchange(x, ~asked & False, label="h")
    assert len(both.steps) == 1


def test_parameters_are_counted_up_and_down_for_each_member() -> None:
    rounds = simulated(PAIRED)
    rounds.broadcast(torch.zeros(10), torch.tensor([True, False, True, False]), label="weights 1")
    giver = torch.tensor([False, False, True, False])
    rounds.collect(torch.zeros(300), giver, label="gradients 1", wire=UpdateEncoding("int8"))
    down, up = framed_bytes(40), framed_bytes(2 * (256 + 4))
    assert rounds.counts["down"].tolist() == [down, 0, down, 0]
    assert rounds.counts["up"].tolist() == [0, 0, up, 0]
    assert rounds._meter.sent == {"weights 1": 2 * down, "gradients 1": up}
    assert rounds.steps == [TransferStep(0, down), TransferStep(up, 0)]
    again = simulated(PAIRED)
    again.load_state(rounds.state())
    assert again.steps == rounds.steps
    assert torch.equal(again.counts["up"], rounds.counts["up"])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_counted_bytes_of_rows_equal_the_compressed_size(precision: Precision) -> None:
    draw = torch.Generator().manual_seed(0)
    tables = [
        torch.randn(7, 9, generator=draw, dtype=torch.float64),
        torch.randn(7, 9, generator=draw),
        torch.randn(7, 300, generator=draw).relu(),
        (torch.rand(7, 500, generator=draw) < 0.02).float(),
        (torch.rand(7, 500, generator=draw) < 0.02) * 0.3,
        torch.zeros(2, 4),
        torch.randint(-5, 6, (9, 7), generator=draw).float(),
        torch.rand(5, 1, generator=draw),
    ]
    for table in tables:
        rows = quantize_dequantize(table, precision)
        assert packed_row_bytes(rows).tolist() == [compress_rows(row).numel() for row in rows.split(1)]


def test_seconds_are_latency_and_the_longer_of_sending_and_receiving() -> None:
    level = NetworkProfile(up=8e3, down=16e3, latency_s=0.5)
    assert transfer_seconds([], level) == 0
    assert transfer_seconds([TransferStep(1000, 0)], level) == pytest.approx(0.5 + 1.0)
    assert transfer_seconds([TransferStep(1000, 4000)], level) == pytest.approx(0.5 + 2.0)
    assert transfer_seconds([TransferStep(1000, 0), TransferStep(0, 1000, trips=3)], level) == pytest.approx(
        1.5 + 1.5 + 0.5
    )
    assert transfer_seconds([TransferStep(1_250_000, 0)], NETWORK_PROFILES["data centre"]) == pytest.approx(
        0.0011
    )
    assert transfer_seconds([TransferStep(1_250_000, 0)], NETWORK_PROFILES["wan"]) == pytest.approx(0.15)
    assert transfer_seconds([TransferStep(250_000, 0)], NETWORK_PROFILES["proximity"]) == pytest.approx(1.02)
    assert transfer_seconds([TransferStep(1_250_000, 0)], NETWORK_PROFILES["edge"]) == pytest.approx(1.1)


def test_participants_are_the_given_share_and_differ_between_rounds() -> None:
    among = torch.arange(100) % 2 == 0
    availability = ClientAvailability(100, seed=4, participation=0.25)
    rounds = [availability.sample_participants(number, among) for number in range(40)]
    assert all(int(drawn.sum()) == 13 and not bool((drawn & ~among).any()) for drawn in rounds)
    often = torch.stack(rounds).sum(0)[among]
    assert int(often.min()) > 0
    assert int(often.max()) < 25
    assert torch.equal(
        rounds[3], ClientAvailability(100, seed=4, participation=0.25).sample_participants(3, among)
    )
    assert not torch.equal(
        rounds[3], ClientAvailability(100, seed=5, participation=0.25).sample_participants(3, among)
    )
    assert int(ClientAvailability(100, participation=1e-9).sample_participants(0, among).sum()) == 1
    assert torch.equal(ClientAvailability(100).sample_participants(0, among), among)


def test_a_quorum_is_waited_for_and_an_unreachable_one_is_an_error() -> None:
    for stage in range(20):
        there = ClientAvailability(50, seed=1, away=0.5, quorum=0.5).sample_available(stage)
        assert int(there.sum()) >= 25
    assert any(
        int(ClientAvailability(50, seed=1, away=0.5).sample_available(stage).sum()) < 25
        for stage in range(20)
    )
    few = ClientAvailability(50, away=0.9, quorum=0.9)
    with pytest.raises(
        QuorumMissed, match=r"stage 3: after 16 waits \d of 50 .* expected 45; lower lazy\.quorum"
    ):
        few.sample_available(2)
    alone = torch.zeros(50, dtype=torch.bool)
    with pytest.raises(QuorumMissed, match="a group that the stage needs has none of them"):
        ClientAvailability(50).sample_available(0, [alone])
    assert ClientAvailability(50, quorum=1.0).sample_available(0).all()


def test_simulated_rounds_implement_the_rounds_protocol() -> None:
    rounds: Rounds = simulated(PAIRED, away=0.5)
    there = rounds.available(0)
    assert there.shape == (rounds.num_members,)
    assert not bool((rounds.sample_participants(0, there) & ~there).any())
