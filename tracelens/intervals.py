"""Arithmetic of half-open integer intervals, vectorised.

A set of intervals is a pair of equally long int64 arrays (starts, ends), nanoseconds. *Normal* means sorted,
disjoint, not touching and without empty ones: `union` makes it so, and the other functions want it so.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.int64]
Intervals: TypeAlias = tuple[Array, Array]

EMPTY: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Any intervals to their normal union; empty and reversed ones vanish."""
    begin, end = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    keep = end > begin
    begin, end = begin[keep], end[keep]
    if begin.size == 0:
        return EMPTY
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    opens = np.concatenate(([True], begin[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return begin[opens], reach[closes]


def length(a: Intervals) -> int:
    """Total length of a normal set, ns."""
    return int((a[1] - a[0]).sum())


def covered_before(a: Intervals, points: npt.ArrayLike) -> Array:
    """How much of a normal set lies before each point, ns."""
    at = np.asarray(points, np.int64)
    starts, ends = a
    if starts.size == 0:
        return np.zeros_like(at)
    total = np.concatenate(([0], np.cumsum(ends - starts)))
    index = np.searchsorted(starts, at, side="right")
    last_end = np.where(index > 0, ends[np.maximum(index - 1, 0)], at)
    return total[index] - np.maximum(last_end - at, 0)


def covered(a: Intervals, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Array:
    """How much of each interval (start, end) a normal set covers, ns."""
    return covered_before(a, ends) - covered_before(a, starts)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """What lies in both normal sets, as a normal set."""
    if a[0].size > b[0].size:
        a, b = b, a
    # those of b that meet an interval of a stand side by side, from `first` on
    first = np.searchsorted(b[1], a[0], side="right")
    counts = np.searchsorted(b[0], a[1], side="left") - first
    mine = np.repeat(np.arange(a[0].size), counts)
    other = np.arange(mine.size) + np.repeat(first - np.cumsum(counts) + counts, counts)
    return np.maximum(a[0][mine], b[0][other]), np.minimum(a[1][mine], b[1][other])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """What lies in the first normal set and not in the second, as a normal set."""
    if a[0].size == 0 or b[0].size == 0:
        return a
    low, high = min(a[0][0], b[0][0]), max(a[1][-1], b[1][-1])
    starts, ends = np.concatenate(([low], b[1])), np.concatenate((b[0], [high]))
    gaps = ends > starts
    return intersection(a, (starts[gaps], ends[gaps]))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of a normal set inside (start, end), as a normal set."""
    if end <= start:
        return EMPTY
    inside = slice(np.searchsorted(a[1], start, side="right"), np.searchsorted(a[0], end, side="left"))
    return np.maximum(a[0][inside], start), np.minimum(a[1][inside], end)
