"""Sizes of calls held against one another: as many calls of each size as predicted, not only as many bytes.

A row may hold calls of several sizes, and the small difference of a few would drown in the bytes of the others. So the
calls of both sides are put in the order of their sizes, the first against the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tracelens.collectives import Primitive
from tracelens.comparison.items import Item

SMALLEST_BYTES = 1024
"""Bytes that may always differ, so that a counter or two don't spoil a row."""

_CALLS_RELATIVE = 1e-6
"""Means over steps and ranks are not exact in binary."""


@dataclass(frozen=True, slots=True)
class SizeDifference:
    """Calls of a step that are larger or smaller than those predicted in their place; bytes of one call, a mean."""

    calls: float
    predicted: float
    measured: float

    @property
    def bytes_off(self) -> float:
        """Bytes of a step by which all of them differ."""
        return self.calls * abs(self.measured - self.predicted)


def same_calls(predicted: float, measured: float) -> bool:
    """Whether two counts of calls per step are one."""
    return abs(predicted - measured) <= _CALLS_RELATIVE * max(predicted, measured)


def same_bytes(predicted: float, measured: float | None, tolerance: float) -> bool:
    """Whether measured bytes are those predicted; unknown ones are no contradiction."""
    return measured is None or abs(predicted - measured) <= max(tolerance * predicted, SMALLEST_BYTES)


def differing_sizes(predicted: Sequence[Item], measured: Sequence[Item], tolerance: float) -> list[SizeDifference]:
    """The sizes whose bytes per step differ by more than the tolerance, the furthest off first.

    Empty too where sizes can't be told apart: a call without a size, or a prediction that is a mean (routing decides),
    or counts of calls that differ. A measured row of many sizes is held against the sum of the calls in its place.

    Args:
        predicted: calls of one kind.
        measured: calls of the same kind.
        tolerance: of the bytes of each size, or 1 KiB.
    """
    counts = sum(item.calls for item in predicted), sum(item.calls for item in measured)
    unknown = any(item.wire_bytes is None or item.lacks_bytes for item in (*predicted, *measured))
    if unknown or not same_calls(*counts) or any(item.is_mean for item in predicted):
        return []
    found = [
        one
        for one in _side_by_side(predicted, measured, _CALLS_RELATIVE * max(counts))
        if not same_bytes(one.calls * one.predicted, one.calls * one.measured, tolerance)
    ]
    return sorted(found, key=lambda one: -one.bytes_off)


def near_sizes(
    predicted: Iterable[Item], measured: Iterable[Item], tolerance: float
) -> Iterator[tuple[tuple[Item, ...], tuple[Item, ...]]]:
    """Calls of one kind parted where the next larger size is further off than the tolerance; unsized ones left out."""
    sides = [(item, 0) for item in predicted] + [(item, 1) for item in measured]
    sized = sorted((one for one in sides if one[0].wire_bytes is not None), key=lambda one: _bytes_of_call(one[0]))
    near: tuple[list[Item], list[Item]] = ([], [])
    last = 0.0
    for item, side in sized:
        size = _bytes_of_call(item)
        if not same_bytes(size, last, tolerance):
            yield tuple(near[0]), tuple(near[1])
            near = ([], [])
        near[side].append(item)
        last = size
    yield tuple(near[0]), tuple(near[1])


def _side_by_side(predicted: Iterable[Item], measured: Iterable[Item], least: float) -> Iterator[SizeDifference]:
    """Every measured size with the predicted calls in its place; fewer calls than `least` are rounding."""
    waiting = sorted(((_bytes_of_call(item), item.calls) for item in predicted), reverse=True)
    for item in sorted(measured, key=_bytes_of_call):
        pieces: list[tuple[float, float]] = []
        wanted = item.calls
        while wanted > least and waiting:
            size, calls = waiting.pop()
            taken = min(calls, wanted)
            pieces.append((size, taken))
            wanted -= taken
            if calls - taken > least:
                waiting.append((size, calls - taken))
        if item.payload_bytes is None and pieces:
            # many sizes, known by their sum
            total = sum(calls for _, calls in pieces)
            pieces = [(sum(size * calls for size, calls in pieces) / total, total)]
        yield from (SizeDifference(calls, size, _bytes_of_call(item)) for size, calls in pieces)


def _bytes_of_call(item: Item) -> float:
    """What one call sends; what it receives where it only receives."""
    if item.primitive is Primitive.recv and item.payload_bytes is not None:
        return item.payload_bytes
    return (item.wire_bytes or 0) / item.calls if item.calls else 0.0
