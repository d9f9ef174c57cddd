"""Interval arithmetic against a bitmap that marks every nanosecond."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.intervals import (
    EMPTY,
    Intervals,
    clip,
    covered,
    covered_before,
    difference,
    intersection,
    length,
    union,
)

END = 64
PAIRS = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def marked(pairs: list[tuple[int, int]]) -> set[int]:
    """The bitmap: every nanosecond that any interval holds."""
    return {point for start, end in pairs for point in range(start, end)}


def normal(pairs: list[tuple[int, int]]) -> Intervals:
    return union([start for start, _ in pairs], [end for _, end in pairs])


def points(intervals: Intervals) -> set[int]:
    return marked(list(zip(*(side.tolist() for side in intervals), strict=True)))


def assert_normal(intervals: Intervals) -> None:
    starts, ends = intervals
    assert starts.dtype == ends.dtype == np.int64
    assert (starts < ends).all()
    assert (ends[:-1] < starts[1:]).all()


@given(PAIRS)
def test_union_holds_what_any_interval_holds(pairs: list[tuple[int, int]]) -> None:
    result = normal(pairs)
    assert_normal(result)
    assert points(result) == marked(pairs)
    assert length(result) == len(marked(pairs))


@pytest.mark.parametrize(
    ("combine", "expected"),
    [(intersection, set.intersection), (difference, set.difference)],
    ids=["intersection", "difference"],
)
@given(first=PAIRS, second=PAIRS)
def test_two_sets_combine_as_bitmaps_do(
    combine: Callable[[Intervals, Intervals], Intervals],
    expected: Callable[[set[int], set[int]], set[int]],
    first: list[tuple[int, int]],
    second: list[tuple[int, int]],
) -> None:
    result = combine(normal(first), normal(second))
    assert_normal(result)
    assert points(result) == expected(marked(first), marked(second))


@given(PAIRS, st.lists(st.integers(-3, END + 3), max_size=8))
def test_covered_before_counts_the_nanoseconds_to_the_left(pairs: list[tuple[int, int]], at: list[int]) -> None:
    counted = [len([point for point in marked(pairs) if point < limit]) for limit in at]
    assert covered_before(normal(pairs), at).tolist() == counted


@given(PAIRS, PAIRS)
def test_covered_counts_inside_each_interval(pairs: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    windows = [(min(window), max(window)) for window in windows]
    counted = [len(marked(pairs) & set(range(start, end))) for start, end in windows]
    starts, ends = [start for start, _ in windows], [end for _, end in windows]
    assert covered(normal(pairs), starts, ends).tolist() == counted


@given(PAIRS, st.integers(0, END), st.integers(0, END))
def test_clip_keeps_what_lies_inside(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    result = clip(normal(pairs), start, end)
    assert_normal(result)
    assert points(result) == marked(pairs) & set(range(start, end))


def test_touching_intervals_are_one_and_empty_ones_none() -> None:
    starts, ends = union([0, 5, 9, 20], [5, 9, 9, 10])
    assert (starts.tolist(), ends.tolist()) == ([0], [9])


def test_nanoseconds_since_the_epoch_stay_exact() -> None:
    # 2^53 ns are 104 days, so a float would lose single nanoseconds of any wall-clock time
    now = 1_790_000_000_000_000_000
    assert length(union([now, now + 3], [now + 1, now + 4])) == 2


def test_nothing_combined_with_anything() -> None:
    some = normal([(1, 4)])
    assert length(intersection(EMPTY, some)) == 0
    assert points(difference(some, EMPTY)) == {1, 2, 3}
    assert length(difference(EMPTY, some)) == 0
    assert length(EMPTY) == 0
