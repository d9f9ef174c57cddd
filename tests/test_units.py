"""Numbers with units, as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.units import format_bytes, format_percent, format_rate, format_time, noun, plural


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (470 * 1024**2, "470 MiB"),
        (1.5 * 1024**3, "1.50 GiB"),
        (999.6 * 1024**2, "0.98 GiB"),
        (220 * 1024**3, "220 GiB"),
        (5000 * 1024**5, "5000 PiB"),
        (None, "?"),
    ],
)
def test_bytes_are_binary(count: float | None, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (1_250_000, "1.25 ms"),
        (99_960_000, "100 ms"),
        (61_500_000_000, "61.5 s"),
        (123_456_000_000, "123 s"),
        (-2_000, "-2.00 µs"),
        (None, "?"),
    ],
)
def test_times_take_the_largest_unit_that_gives_at_least_one(ns: float | None, text: str) -> None:
    assert format_time(ns) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (361e9, "361 GB/s"),
        (1e9, "1.00 GB/s"),
        (2.5e6, "2.50 MB/s"),
        (640.0, "640 B/s"),
        (0.0, "0 B/s"),
        (None, "?"),
    ],
)
def test_rates_are_decimal_as_on_data_sheets(rate: float | None, text: str) -> None:
    assert format_rate(rate) == text


def test_percent_of_a_fraction() -> None:
    assert format_percent(0.1561) == "15.6 %"
    assert format_percent(None) == "?"


@given(st.integers(0, 10**13))
def test_a_time_of_up_to_three_hours_needs_at_most_seven_columns(ns: int) -> None:
    assert len(format_time(ns)) <= 7


@given(st.integers(0, 10**17))
def test_bytes_need_at_most_eight_columns(count: int) -> None:
    assert len(format_bytes(count)) <= 8


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234, "1,234 files"), (-1, "-1 files")]
)
def test_a_count_comes_with_the_word_for_that_many(count: int, told: str) -> None:
    assert plural(count, "file") == told


@pytest.mark.parametrize(
    ("count", "told"), [(0, "events are"), (1, "event is"), (1.00001, "event is"), (1.5, "events are")]
)
def test_words_that_are_not_made_by_an_s_are_given(count: float, told: str) -> None:
    assert noun(count, "event is", "events are") == told
