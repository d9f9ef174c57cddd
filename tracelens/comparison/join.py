"""The join of what was predicted and what was measured of a unit of ranks.

Calls meet where mesh, primitive, dtype, phase and size are equal; what is left meets on fewer keys, such as a phase
that the trace can't tell, and is then held against one another size by size. What is left then is the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tracelens.compared import Verdict
from tracelens.comparison.items import Item
from tracelens.comparison.sizes import differing_sizes, near_sizes, same_bytes, same_calls
from tracelens.results import Phase

Key = Callable[[Item], Hashable]
Judge = Callable[[Sequence[Item], Sequence[Item], float], Verdict | None]
"""What is said of two sides; None where they don't belong together."""


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
    def lacks_bytes(self) -> bool:
        """Whether measured calls are without bytes, so that there are at least `measured_bytes`."""
        return any(item.lacks_bytes for item in self.measured)

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
# and on which sizes that are near one another may be found equal though others are not
_NEARLY_ON: tuple[Key, ...] = _EQUAL_ON[2:]
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
)
_ANY_PHASE: Key = _EQUAL_ON[3]
_ALONE_ON: Key = _DIFFERENT_ON[1]


def join(predicted: Sequence[Item], measured: Sequence[Item], tolerance: float) -> list[Pair]:
    """Pairs that match, then pairs that don't, then what only one side has.

    Args:
        predicted: calls of one pipeline rank.
        measured: calls of the ranks in it.
        tolerance: bytes are equal within this fraction (or 1 KiB), those of each size; calls always must be.
    """
    pairs: list[Pair] = []
    left, right = list(predicted), list(measured)
    for key, judge, apart in _passes():
        for some, others in _groups(left, right, key):
            for ours, theirs in near_sizes(some, others, tolerance) if apart else [(some, others)]:
                verdict = judge(ours, theirs, tolerance) if ours and theirs else None
                if verdict is not None:
                    pairs.append(Pair(ours, theirs, verdict))
                    left, right = _without(left, ours), _without(right, theirs)
    pairs += [Pair(ours, (), Verdict.absent) for ours, _ in _groups(left, [], _ALONE_ON)]
    pairs += [Pair((), theirs, Verdict.unpredicted) for _, theirs in _groups([], right, _ALONE_ON)]
    return pairs


def _passes() -> Iterator[tuple[Key, Judge, bool]]:
    """What two sides meet on, who judges them, and whether size by size: one that is off takes no other with it."""
    yield from ((key, _match, False) for key in _EQUAL_ON)
    yield from ((key, _match, True) for key in _NEARLY_ON)
    yield from ((key, _other_dtype, False) for key in _OTHER_DTYPE_ON)
    yield from ((key, _difference, False) for key in _DIFFERENT_ON)
    yield _ANY_PHASE, _difference_of_a_phase, False


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


def _match(ours: Sequence[Item], theirs: Sequence[Item], tolerance: float) -> Verdict | None:
    pair = Pair(tuple(ours), tuple(theirs), Verdict.match)
    equal = (
        same_calls(pair.predicted_calls, pair.measured_calls)
        and _same_bytes(pair, tolerance)
        and not differing_sizes(ours, theirs, tolerance)
    )
    return Verdict.match if equal else None


def _other_dtype(ours: Sequence[Item], theirs: Sequence[Item], tolerance: float) -> Verdict | None:
    dtypes = {item.dtype for item in ours}, {item.dtype for item in theirs}
    calls = sum(item.calls for item in ours), sum(item.calls for item in theirs)
    return _difference(ours, theirs, tolerance) if dtypes[0].isdisjoint(dtypes[1]) and same_calls(*calls) else None


def _same_bytes(pair: Pair, tolerance: float) -> bool:
    """Whether the bytes of a pair agree; a lower bound below what was predicted is no contradiction."""
    if pair.lacks_bytes and (pair.measured_bytes or 0) <= pair.predicted_bytes:
        return True
    return same_bytes(pair.predicted_bytes, pair.measured_bytes, tolerance)


def _difference(ours: Sequence[Item], theirs: Sequence[Item], tolerance: float) -> Verdict:
    pair = Pair(tuple(ours), tuple(theirs), Verdict.more)
    if not _same_bytes(pair, tolerance):
        return Verdict.more if (pair.measured_bytes or 0) > pair.predicted_bytes else Verdict.less
    if not same_calls(pair.predicted_calls, pair.measured_calls):
        return Verdict.more if pair.measured_calls > pair.predicted_calls else Verdict.less
    # as many calls and bytes, of other sizes: the size that is furthest off says it
    differing = differing_sizes(ours, theirs, tolerance)
    return Verdict.more if differing and differing[0].measured > differing[0].predicted else Verdict.less


def _difference_of_a_phase(ours: Sequence[Item], theirs: Sequence[Item], tolerance: float) -> Verdict | None:
    """A difference among calls of one phase, or of one that is not known; those of two phases are two things."""
    before, after = ({None if item.phase is Phase.mixed else item.phase for item in side} for side in (ours, theirs))
    if None in before | after or before & after:
        return _difference(ours, theirs, tolerance)
    return None
