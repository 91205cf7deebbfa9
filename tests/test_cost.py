"""Bills equal those worked out by hand; a wrong price file gets a clear error."""

import math
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.cost import Bill, Invocation, Meter, billed_ms, charge, read_prices, value

PRICES = read_prices()
LAMBDA = PRICES.functions["lambda-x86"]
RUN = PRICES.functions["cloud-run"]
WHOLE = """
[instances.own]
per_hour = {price}
region = "cellar"
date = 2026-01-31
"""


@pytest.mark.parametrize(
    ("init_ms", "run_ms", "billed"),
    [
        (1307.68, 1058.15, 2366),
        (1293.83, 1049.63, 2344),
        (0, 0.01, 1),
        (0, 70, 70),
        (0, 0, 0),
        (0, 57.000001, 58),
    ],
)
def test_init_and_run_are_rounded_up_together_to_a_millisecond(
    init_ms: float, run_ms: float, billed: int
) -> None:
    # The first two are from reports of Lambda itself.
    assert billed_ms(Invocation(run_ms / 1000, init_ms / 1000), LAMBDA) == billed


@pytest.mark.parametrize(
    ("seconds", "billed"), [(0.1, 100), (0.1001, 200), (0.7, 700), (1.23, 1300), (3600, 3_600_000)]
)
def test_cloud_run_rounds_up_to_a_tenth_of_a_second(seconds: float, billed: int) -> None:
    assert billed_ms(Invocation(seconds), RUN) == billed


@given(st.integers(0, 10**7))
def test_whole_milliseconds_are_billed_as_they_are(ms: int) -> None:
    assert billed_ms(Invocation(ms / 1000), LAMBDA) == ms


def test_a_bill_of_lambda_by_hand() -> None:
    # 2 servers of $0.432 for 90 s; a cold lease of 250.06 + 26.59 ms and a warm one of 60 s, of 2048 MB; 3 GB out.
    meter = Meter(internet_bytes=3 * 2**30).with_servers(2, seconds=90)
    meter = meter.with_invocation(Invocation(0.25006, 0.02659, memory_mb=2048), LAMBDA)
    meter = meter.with_invocation(Invocation(60, memory_mb=2048), LAMBDA)
    bill = charge(meter, PRICES.rates("c5n.2xlarge", "lambda-x86"))
    assert bill.servers == pytest.approx(0.0216, rel=1e-12)  # 180 s / 3600 x 0.432
    assert bill.functions == pytest.approx(2 * 60.277 * 1.66667e-5, rel=1e-12)
    assert bill.requests == pytest.approx(4e-7, rel=1e-12)
    assert bill.bytes == pytest.approx(0.27, rel=1e-12)
    assert bill.dollars == pytest.approx(0.0216 + 0.0020092373518 + 4e-7 + 0.27, rel=1e-10)


def test_a_bill_of_arm_by_hand() -> None:
    meter = Meter().with_invocation(Invocation(10, memory_mb=512), PRICES.functions["lambda-arm"])
    bill = charge(meter, PRICES.rates("c5.2xlarge", "lambda-arm"))
    assert bill == Bill(0, pytest.approx(5 * 1.33334e-5, rel=1e-12), pytest.approx(2e-7), 0)


def test_a_bill_of_cloud_run_by_hand() -> None:
    # 2.35 s with 0.4 s of start are 2.8 s: 2 vCPU at 0.000024 and 0.5 GiB at 0.0000025 a second, and a request.
    meter = Meter().with_invocation(Invocation(2.35, 0.4, memory_mb=512, vcpus=2), RUN)
    bill = charge(meter, PRICES.rates(function="cloud-run"))
    assert bill.functions == pytest.approx(2.8 * 2 * 0.000024 + 2.8 * 0.5 * 0.0000025, rel=1e-12)
    assert bill.requests == pytest.approx(4e-7, rel=1e-12)


def test_bytes_between_zones_are_paid_at_both_ends_and_within_a_zone_not_at_all() -> None:
    meter = Meter(between_zones_bytes=5 * 2**30, within_zone_bytes=7 * 2**30)
    assert charge(meter, PRICES.rates()).bytes == pytest.approx(0.10, rel=1e-12)


def test_a_million_requests_cost_twenty_cents() -> None:
    assert charge(Meter(requests=1_000_000), PRICES.rates()).requests == pytest.approx(0.20)


def test_what_an_epoch_used_is_one_meter_less_an_earlier_one() -> None:
    before = Meter().with_servers(2, seconds=10).with_invocation(Invocation(1.5), LAMBDA)
    epoch = Meter(internet_bytes=9).with_servers(2, seconds=1.25).with_invocation(Invocation(0.25), LAMBDA)
    assert (before + epoch) - before == epoch
    assert epoch.requests == 1
    assert epoch.memory_mb_ms == 1769 * 250


def test_a_lease_under_way_costs_what_it_would_if_it_ended_now() -> None:
    so_far = Meter().with_invocation(Invocation(1.0), LAMBDA)
    later = Meter().with_invocation(Invocation(1.5), LAMBDA)
    assert (later - so_far).memory_mb_ms == 1769 * 500
    assert (later - so_far).requests == 0


def test_value_is_one_over_time_and_cost() -> None:
    assert value(2.0, 0.5) == 1.0
    assert value(1.31, 0.00016) / value(1.22, 0.00031) == pytest.approx(1.8044, abs=1e-3)
    assert value(0.0, 1.0) == math.inf


def test_the_prices_are_those_of_the_lists_and_dated() -> None:
    assert PRICES.instances["c5n.2xlarge"].per_hour == 0.432
    assert PRICES.instances["c5.2xlarge"].per_hour == 0.34
    assert (LAMBDA.per_gb_second, LAMBDA.per_million_requests) == (1.66667e-5, 0.20)
    for entries in (PRICES.instances, PRICES.functions, PRICES.bytes):
        for entry in entries.values():
            assert entry.date >= date(2026, 1, 1)
            assert entry.region


def test_own_prices_add_entries_and_replace_them(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(WHOLE.format(price=0.05) + WHOLE.replace("own", '"c5.2xlarge"').format(price=0.2))
    prices = read_prices(own)
    assert prices.rates("own").instance.per_hour == 0.05
    assert prices.rates("c5.2xlarge").instance.per_hour == 0.2
    assert prices.rates("c5.2xlarge").instance.region == "cellar"
    assert prices.rates("c5n.2xlarge").instance.per_hour == 0.432


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (WHOLE.format(price=-0.05), ["instances.own.per_hour", "-0.05", "dollars, 0 or more"]),
        (WHOLE.format(price="nan"), ["instances.own.per_hour", "nan", "dollars, 0 or more"]),
        (WHOLE.format(price="true"), ["instances.own.per_hour", "True", "dollars, 0 or more"]),
        (WHOLE.format(price='"5"'), ["instances.own.per_hour", "'5'", "dollars, 0 or more"]),
        (
            WHOLE.replace("per_hour", "per_hours").format(price=1),
            ["unknown key 'per_hours'", "mean 'per_hour'"],
        ),
        (
            WHOLE.replace("instances", "instance").format(price=1),
            ["unknown key 'instance'", "mean 'instances'"],
        ),
        (WHOLE.replace("2026-01-31", '"today"').format(price=1), ["own.date", "'today'", "a date such as"]),
        (WHOLE.replace('"cellar"', "3").format(price=1), ["own.region", "3", "name of a region"]),
        ("[instances.own]\nper_hour = 1", ["instances.own", "no region and no date", "given whole"]),
        ("[functions]\nlambda-x86 = 3", ["functions.lambda-x86", "3", "a table"]),
        ("bytes = 3", ["bytes", "3", "a table"]),
        ("not toml", ["not a TOML file"]),
    ],
)
def test_a_wrong_price_file_is_told_with_file_key_found_and_expected(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(ValueError, match=r"own\.toml") as error:
        read_prices(own)
    for part in parts:
        assert part in str(error.value)


def test_rounding_must_be_a_whole_number_of_milliseconds(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    table = "[functions.f]\nper_gb_second=1\nper_vcpu_second=0\nper_million_requests=0\nround_up_ms=0\n"
    own.write_text(table + 'region="r"\ndate=2026-01-01\n')
    with pytest.raises(ValueError, match=r"functions\.f\.round_up_ms is 0; expected a whole number"):
        read_prices(own)


def test_a_price_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.toml: cannot be read \(No such file or directory\)"):
        read_prices(tmp_path / "none.toml")


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"no price of instance 'c5n\.2xlrge' \(did you mean 'c5n\.2xlarge'\?\)"
    ):
        PRICES.rates("c5n.2xlrge")
    with pytest.raises(ValueError, match="no price of function 'lambada'"):
        PRICES.rates(function="lambada")
