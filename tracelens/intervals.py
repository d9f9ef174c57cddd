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
    points = np.unique(np.concatenate((*a, *b)))
    if points.size < 2:
        return EMPTY
    left, right = points[:-1], points[1:]
    inside = (covered(a, left, right) == right - left) & (covered(b, left, right) == right - left)
    return union(left[inside], right[inside])


def difference(a: Intervals, b: Intervals) -> Intervals:
    """What lies in the first normal set and not in the second, as a normal set."""
    if a[0].size == 0 or b[0].size == 0:
        return a
    low, high = min(a[0][0], b[0][0]), max(a[1][-1], b[1][-1])
    gaps = union(np.concatenate(([low], b[1])), np.concatenate((b[0], [high])))
    return intersection(a, gaps)


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """The part of a normal set inside (start, end), as a normal set."""
    return union(np.maximum(a[0], start), np.minimum(a[1], end))
