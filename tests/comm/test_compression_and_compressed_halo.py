"""Lossless compression of rows, its sizes, and halo exchange with it."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.compressed_halo import CompressedHalo, exchange_rows, subset_route
from siafu.comm.compression import compress_rows, decompress_rows
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.route import Route
from siafu.launch.local import run_threads

VALUES: dict[str, Any] = {
    "ones": st.just(1.0),
    "whole": st.integers(-127, 127).map(float),
    "halves": st.sampled_from([0.5, 0.25, -1.5, 3.0]),
    "any": st.floats(width=32),
}


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    """Rows of many kinds, some empty, some of them all zero."""
    rows, width = draw(st.integers(0, 6)), draw(st.integers(0, 400))
    seed, share = draw(st.integers(0, 2**31)), draw(st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]))
    here = torch.rand(rows, width, generator=torch.Generator().manual_seed(seed)) < share
    few = draw(st.lists(VALUES[draw(st.sampled_from(list(VALUES)))], min_size=1, max_size=5))
    pick = torch.randint(len(few), (rows, width), generator=torch.Generator().manual_seed(seed + 1))
    table = torch.where(here, torch.tensor(few)[pick], 0.0)
    return table.to(draw(st.sampled_from([torch.float32, torch.float64])))


@settings(deadline=None)
@given(tables(), st.sampled_from(["fp32", "bf16", "int8", "int4"]))
def test_compression_is_lossless(rows: Tensor, precision: Any) -> None:
    if bool(rows.isfinite().all()) and float(rows.abs().sum()) < 1e30:
        rows = quantize_dequantize(rows, precision)
    back = decompress_rows(compress_rows(rows), *rows.shape, rows.dtype)
    assert torch.equal(back.nan_to_num(nan=0.125), rows.nan_to_num(nan=0.125))
    assert torch.equal(back.isnan(), rows.isnan())


def words(rows: int, width: int, count: int) -> Tensor:
    """Rows with a number of different words each."""
    draw = torch.Generator().manual_seed(0)
    table = torch.zeros(rows, width)
    for row in table:
        row[torch.randperm(width, generator=draw)[:count]] = 1.0
    return table


def test_bag_of_words_features_take_little_more_than_a_byte_per_word() -> None:
    binary = words(100, 1433, 18)
    assert compress_rows(binary).numel() < 1.3 * 100 * 19
    scaled = binary / 18
    assert compress_rows(scaled).numel() == compress_rows(binary).numel() + 4 * 100
    dense = words(100, 1433, 700)
    assert compress_rows(dense).numel() < 2 + 100 * 1433 / 8 + 1


@pytest.mark.parametrize(
    ("precision", "bytes_a_number", "bytes_a_row"), [("int4", 0.5, 2), ("int8", 1, 4), ("bf16", 2, 0)]
)
def test_quantized_rows_take_their_quantized_size(
    precision: Any, bytes_a_number: float, bytes_a_row: int
) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = quantize_dequantize(torch.rand(50, 8, generator=draw, dtype=torch.float64) + 0.2, precision)
    assert compress_rows(rows).numel() == 2 + 50 * (8 * bytes_a_number + bytes_a_row)


def test_bytes_that_are_not_a_table_are_refused() -> None:
    rows = words(4, 300, 5)
    packed = compress_rows(rows)
    with pytest.raises(ValueError, match=r"end 1 too early|end within a number"):
        decompress_rows(packed[:-1], 4, 300, torch.float32)
    with pytest.raises(ValueError, match="are 1 too many"):
        decompress_rows(torch.cat([packed, packed[:1]]), 4, 300, torch.float32)
    with pytest.raises(ValueError, match=r"name column \d+ of 100"):
        decompress_rows(packed, 4, 100, torch.float32)
    with pytest.raises(ValueError, match="of form 9, 0"):
        decompress_rows(torch.tensor([9, 0], dtype=torch.uint8), 4, 300, torch.float32)
    with pytest.raises(ValueError, match="expected a table of float32 or float64"):
        compress_rows(torch.ones(3, dtype=torch.float32))


def test_a_damaged_table_never_reads_outside_of_itself() -> None:
    packed, draw = compress_rows(words(4, 300, 5)), torch.Generator().manual_seed(1)
    for _ in range(300):
        damaged = packed.clone()
        damaged[torch.randint(packed.numel(), (2,), generator=draw)] = torch.randint(
            256, (2,), generator=draw, dtype=torch.uint8
        )
        with suppress(ValueError):  # any other error, such as of an index, would be a defect
            assert decompress_rows(damaged, 4, 300, torch.float32).shape == (4, 300)


def route_of(rank: int) -> Route:
    """Three ranks: each sends its rows 0, 2 to the next, and row 1 to the one after."""
    send = [0, 0, 0]
    send[(rank + 1) % 3], send[(rank + 2) % 3] = 2, 1
    recv = [0, 0, 0]
    recv[(rank + 2) % 3], recv[(rank + 1) % 3] = 2, 1
    index = {(rank + 1) % 3: [0, 2], (rank + 2) % 3: [1], rank: []}
    return Route(torch.tensor([row for peer in range(3) for row in index[peer]]), tuple(send), tuple(recv))


def own_rows(rank: int) -> Tensor:
    return words(3, 50, 4) * (rank + 1)


def test_exchanged_rows_are_those_of_the_route_and_are_metered_to_the_byte() -> None:
    def work(comm: Comm) -> tuple[Tensor, Tensor, int]:
        halo = CompressedHalo(comm, route_of(comm.rank), num_own=3)
        halo.begin("halo words")
        return (
            halo.start_gather(own_rows(comm.rank), "exact")(),
            exchange_rows(comm, route_of(comm.rank), own_rows(comm.rank), label="again"),
            comm.meter.sent["halo words"],
        )

    for rank, (first, again, sent) in enumerate(run_threads(work, ranks=3, threads=1)):
        expected = {(rank + 2) % 3: [0, 2], (rank + 1) % 3: [1]}
        wanted = torch.cat([own_rows(peer)[rows] for peer, rows in sorted(expected.items())])
        assert torch.equal(first, wanted)
        assert torch.equal(again, wanted)
        mine = [compress_rows(own_rows(rank)[rows]).numel() for rows in ([0, 2], [1])]
        headers = sent - sum(mine) - 2 * 8
        assert 0 < headers < 4 * 150


def test_a_subset_route_fetches_the_requested_rows() -> None:
    def work(comm: Comm) -> Tensor:
        wanted = torch.tensor([comm.rank != 0, True, False])
        route = subset_route(comm, route_of(comm.rank), wanted, label="asks")
        return exchange_rows(comm, route, own_rows(comm.rank), label="rows")

    def all_rows(comm: Comm) -> Tensor:
        return exchange_rows(comm, route_of(comm.rank), own_rows(comm.rank), label="rows")

    whole = run_threads(all_rows, ranks=3, threads=1)
    for rank, came in enumerate(run_threads(work, ranks=3, threads=1)):
        assert torch.equal(came, whole[rank][1:2] if rank == 0 else whole[rank][:2])
