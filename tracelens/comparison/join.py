"""The join of what was predicted and what was measured of a unit of ranks.

Calls meet where mesh, primitive, dtype, phase and size are equal; what is left meets on fewer keys: a phase that the
trace can't tell, buckets that the ledger knows only as a mean. What is left then is the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from tracelens.compared import Verdict
from tracelens.comparison.items import Item

SMALLEST_BYTES = 1024
"""Bytes that may always differ, so that a counter or two don't spoil a row."""

_CALLS_RELATIVE = 1e-6
"""Means over steps and ranks are not exact in binary."""

Key = Callable[[Item], Hashable]


@dataclass(frozen=True, slots=True)
class Pair:
    """Predicted calls and the measured ones that they stand against; one side may be empty."""

    predicted: tuple[Item, ...]
    measured: tuple[Item, ...]
    verdict: Verdict

    @property
    def predicted_calls(self) -> float:
        """Calls of a step."""
        return sum(item.calls for item in self.predicted)

    @property
    def measured_calls(self) -> float:
        """Calls of a step."""
        return sum(item.calls for item in self.measured)

    @property
    def predicted_bytes(self) -> float:
        """Wire bytes of a step."""
        return sum(item.wire_bytes or 0 for item in self.predicted)

    @property
    def measured_bytes(self) -> float | None:
        """Wire bytes of a step; None when no call has a size."""
        known = [item.wire_bytes for item in self.measured if item.wire_bytes is not None]
        return sum(known) if known else None

    @property
    def lead(self) -> Item:
        """The item that gives a row its words: the largest measured one, else the largest predicted."""
        return max(self.measured or self.predicted, key=lambda item: item.wire_bytes or 0)


# fewer and fewer keys on which two sides may be found equal
_EQUAL_ON: tuple[Key, ...] = (
    lambda item: (item.mesh, item.primitive, item.dtype, item.phase, item.payload_bytes),
    lambda item: (item.mesh, item.primitive, item.dtype, item.payload_bytes),
    lambda item: (item.mesh, item.primitive, item.dtype, item.phase),
    lambda item: (item.mesh, item.primitive, item.dtype),
)
# on which the same calls of another dtype are put side by side
_OTHER_DTYPE_ON: tuple[Key, ...] = (
    lambda item: (item.mesh, item.primitive, item.phase, item.calls),
    lambda item: (item.mesh, item.primitive, item.phase),
    lambda item: (item.mesh, item.primitive),
)
# and on which what differs is
_DIFFERENT_ON: tuple[Key, ...] = (
    lambda item: (item.mesh, item.primitive, item.dtype, item.phase, item.payload_bytes),
    lambda item: (item.mesh, item.primitive, item.dtype, item.phase),
    lambda item: (item.mesh, item.primitive, item.dtype),
)
_ALONE_ON: Key = _DIFFERENT_ON[1]


def join(predicted: Sequence[Item], measured: Sequence[Item], tolerance: float) -> list[Pair]:
    """Pairs that match, then pairs that don't, then what only one side has.

    Args:
        predicted: calls of one pipeline rank.
        measured: calls of the ranks in it.
        tolerance: bytes are equal within this fraction (or 1 KiB); calls always must be.
    """
    pairs: list[Pair] = []
    left, right = list(predicted), list(measured)
    for key in _EQUAL_ON:
        for ours, theirs in _groups(left, right, key):
            if ours and theirs and _are_equal(ours, theirs, tolerance):
                pairs.append(Pair(ours, theirs, Verdict.match))
                left, right = _without(left, ours), _without(right, theirs)
    for key in _OTHER_DTYPE_ON:
        for ours, theirs in _groups(left, right, key):
            if ours and theirs and _are_same_calls_of_other_dtype(ours, theirs):
                pairs.append(Pair(ours, theirs, _difference(ours, theirs, tolerance)))
                left, right = _without(left, ours), _without(right, theirs)
    for key in _DIFFERENT_ON:
        for ours, theirs in _groups(left, right, key):
            if ours and theirs:
                pairs.append(Pair(ours, theirs, _difference(ours, theirs, tolerance)))
                left, right = _without(left, ours), _without(right, theirs)
    pairs += [Pair(ours, (), Verdict.absent) for ours, _ in _groups(left, [], _ALONE_ON)]
    pairs += [Pair((), theirs, Verdict.unpredicted) for _, theirs in _groups([], right, _ALONE_ON)]
    return pairs


def _groups(
    left: Iterable[Item], right: Iterable[Item], key: Key
) -> Iterable[tuple[tuple[Item, ...], tuple[Item, ...]]]:
    sides: dict[Hashable, tuple[list[Item], list[Item]]] = {}
    for item in left:
        sides.setdefault(key(item), ([], []))[0].append(item)
    for item in right:
        sides.setdefault(key(item), ([], []))[1].append(item)
    return [(tuple(ours), tuple(theirs)) for ours, theirs in sides.values()]


def _without(items: Sequence[Item], taken: Sequence[Item]) -> list[Item]:
    gone = {id(item) for item in taken}
    return [item for item in items if id(item) not in gone]


def _are_equal(ours: Sequence[Item], theirs: Sequence[Item], tolerance: float) -> bool:
    pair = Pair(tuple(ours), tuple(theirs), Verdict.match)
    return same_calls(pair.predicted_calls, pair.measured_calls) and same_bytes(
        pair.predicted_bytes, pair.measured_bytes, tolerance
    )


def _are_same_calls_of_other_dtype(ours: Sequence[Item], theirs: Sequence[Item]) -> bool:
    dtypes = {item.dtype for item in ours}, {item.dtype for item in theirs}
    calls = sum(item.calls for item in ours), sum(item.calls for item in theirs)
    return dtypes[0].isdisjoint(dtypes[1]) and same_calls(*calls)


def same_calls(predicted: float, measured: float) -> bool:
    """Whether two counts of calls per step are one."""
    return abs(predicted - measured) <= _CALLS_RELATIVE * max(predicted, measured)


def same_bytes(predicted: float, measured: float | None, tolerance: float) -> bool:
    """Whether measured bytes are those predicted; unknown ones are no contradiction."""
    return measured is None or abs(predicted - measured) <= max(tolerance * predicted, SMALLEST_BYTES)


def _difference(ours: Sequence[Item], theirs: Sequence[Item], tolerance: float) -> Verdict:
    pair = Pair(tuple(ours), tuple(theirs), Verdict.more)
    if same_bytes(pair.predicted_bytes, pair.measured_bytes, tolerance):
        return Verdict.more if pair.measured_calls > pair.predicted_calls else Verdict.less
    return Verdict.more if (pair.measured_bytes or 0) > pair.predicted_bytes else Verdict.less
