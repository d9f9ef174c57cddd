"""Timestamps to nanoseconds: exact where the text is, unknown where it is no time."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace.schema import Event, ExactEvent
from tracelens.trace.times import read_times


def exact(*texts: str) -> tuple[list[int], list[bool]]:
    times = read_times([ExactEvent(ts=msgspec.Raw(text.encode()), dur=0.0) for text in texts])
    return times.start.tolist(), times.known.tolist()


def test_microseconds_of_three_decimals_are_exact_nanoseconds() -> None:
    times = read_times([Event(ts=6322354000100.123, dur=0.001), Event(ts=0.0, dur=2.0), Event(ts=-1.5, dur=1.0)])
    assert times.start.tolist() == [6322354000100123, 0, -1500]
    assert times.end.tolist() == [6322354000100124, 2000, -500]


def test_digits_that_no_float_holds_are_kept() -> None:
    assert exact("1712195495505630.023", "1712195495505630", "-3.25") == (
        [1712195495505630023, 1712195495505630000, -3250],
        [True, True, True],
    )


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=4))
def test_text_gives_what_decimal_arithmetic_gives(value: Decimal) -> None:
    wanted = int((value * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP))
    assert exact(f"{value:f}") == ([wanted], [True])


def test_exponents_are_numbers_too() -> None:
    assert exact("1.5e6") == ([1_500_000_000], [True])


@pytest.mark.parametrize("text", ["", "null", '"12"', "1e30", "99999999999999999", "[1]", "\ufffd"])
def test_what_is_no_time_is_unknown_and_the_others_stay(text: str) -> None:
    assert exact("7", text, "8.001") == ([7000, 0, 8001], [True, False, True])


@pytest.mark.parametrize("ts", [None, 1e300, -1e300, float("nan"), float("inf")])
def test_an_absurd_float_is_unknown(ts: float | None) -> None:
    times = read_times([Event(ts=ts, dur=1.0), Event(ts=2.0, dur=1.0)])
    assert times.known.tolist() == [False, True]
    assert times.where_known().start.tolist() == [2000]


@pytest.mark.parametrize("dur", [None, 1e300, float("nan")])
def test_an_unknown_duration_is_told_and_empty(dur: float | None) -> None:
    times = read_times([Event(ts=1.0, dur=dur), Event(ts=1.0, dur=3.0)])
    assert times.lasting.tolist() == [False, True]
    assert times.end.tolist() == [1000, 4000]
