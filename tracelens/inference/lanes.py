"""The point-to-point calls of a pipeline stage, each told as an activation (F) or a gradient (B)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tracelens.collectives import Primitive
from tracelens.inference.observations import Call, RankView
from tracelens.inference.uses import Role, Use
from tracelens.results import Phase

P = Primitive
F, B = Phase.forward, Phase.backward


@dataclass(frozen=True, slots=True)
class Lane:
    """Point-to-point calls of one stage."""

    place: int
    size: int
    sends: tuple[tuple[int, Phase, int], ...]
    """(index of the call, F or B, +1 to the next stage and -1 to the one before; 0 where p is 2)."""
    receives: tuple[tuple[int, int], ...]
    """(index of the call, direction that it comes from)."""
    split: bool | None
    """Whether gradients leave before the gradients of weights are computed (zero bubble)."""
    is_v: bool
    """Activations travel both ways: each rank holds a stage from either end."""
    paired: frozenset[int]
    """Sends that leave together with another: a forward and a backward were computed before both."""

    @property
    def is_first(self) -> bool:
        """Holds the first stage."""
        return self.place == 0

    @property
    def is_last(self) -> bool:
        """Holds the last stage of a pipeline that goes straight through."""
        return self.place == self.size - 1

    def count(self, kind: Phase, direction: int | None = None) -> int:
        """Sends of a kind, in one direction or in both."""
        return sum(k is kind and direction in (None, d) for _, k, d in self.sends)

    def has_all_forwards_first(self) -> bool:
        """Whether every forward comes before the first backward, as far as the calls show."""
        first = next((index for index, kind, _ in self.sends if kind is B), None)
        if not self.is_last:
            return self.before_first_backward() == self.count(F)
        arrived = [index for index, direction in self.receives if direction <= 0]
        # with two stages gradients come from the same rank; the last stage sends back as many as activations come
        wanted = self.count(B) if self.size == 2 else len(arrived)
        return first is not None and sum(index < first for index in arrived) >= wanted

    def before_first_backward(self) -> int:
        """Forwards of this stage before its first backward is sent on."""
        first = next((index for index, kind, _ in self.sends if kind is B), None)
        if first is None:  # the first stage sends no gradient: it gets one
            first = self.receives[0][0] if self.receives else None
        forwards = [index for index, kind, _ in self.sends if kind is F]
        if first is None:
            return len(forwards)
        if self.is_last and not forwards:
            return sum(index < first for index, _ in self.receives)
        ahead = bisect_left(forwards, first)
        if first in self.paired:
            pairs = sorted(self.paired)
            partner = pairs[pairs.index(first) ^ 1]
            # a batch may send the gradient before the activation that was computed first
            ahead += partner > first
        return ahead + 1 if self.is_last else ahead


def find_lanes(view: RankView, uses: Sequence[Use], stages: int | None = None) -> Iterator[Lane]:
    """The lane of a rank in its pipeline; none where its place is not known.

    Args:
        view: the rank.
        uses: of its groups.
        stages: of the pipeline, where they are known and the group of the messages holds other ranks too.
    """
    pipelines = [use for use in uses if use.role is Role.pipeline]
    calls = sorted((c for use in pipelines for c in use.calls), key=lambda c: c.index)
    groups = [view.groups[use.group] for use in pipelines]
    ranks = min((g.ranks for g in groups if g.ranks is not None), key=len, default=None)
    if stages is not None and ranks is not None and len(ranks) != stages:
        ranks = _outermost(view, stages)
    if ranks is None or view.rank not in ranks or not calls:
        return
    place, size = ranks.index(view.rank), len(ranks)
    calls = [c for c in calls if c.elements is None or c.elements > 8]
    largest = max((c.elements or 0 for c in calls), default=0)
    calls = [c for c in calls if (c.elements or 0) * 8 >= largest]  # shapes sent ahead are no activations
    outgoing = [c for c in calls if c.primitive is P.send]
    ways = {c.index: _direction(ranks, place, c) for c in outgoing}
    activations = {use.group for use in uses if use.role in (Role.tensor, Role.context, Role.experts)}
    told = _tell_sends(view, outgoing, activations)
    kinds, is_v = _settle_kinds(told, ways, place, size)
    sends = tuple((c.index, kinds[c.index], ways[c.index]) for c in outgoing)
    yield Lane(
        place=place,
        size=size,
        sends=sends,
        receives=tuple((c.index, _direction(ranks, place, c)) for c in calls if c.primitive is P.recv),
        split=_is_split(view, calls, sends),
        is_v=is_v,
        paired=frozenset(index for index, t in told.items() if t.is_paired),
    )


def _direction(ranks: Sequence[int], place: int, call: Call) -> int:
    size = len(ranks)
    if size == 2 or call.peer not in ranks:
        return 0
    ahead = (ranks.index(call.peer) - place) % size
    return 1 if ahead == 1 else -1 if ahead == size - 1 else 0


def _outermost(view: RankView, stages: int) -> tuple[int, ...] | None:
    """The ranks of a pipeline that is the outermost axis of the world."""
    if view.rank is None or view.world_size is None or view.world_size % stages:
        return None
    stride = view.world_size // stages
    return tuple(view.rank % stride + stage * stride for stage in range(stages))


@dataclass(frozen=True, slots=True)
class _Told:
    """What the compute before a send says of it."""

    kind: Phase
    is_sure: bool = False
    """Only forward, or only backward, was computed since the send before."""
    is_paired: bool = False
    """It leaves together with another send: a forward and a backward were computed before both."""


def _settle_kinds(
    told: Mapping[int, _Told], ways: Mapping[int, int], place: int, size: int
) -> tuple[dict[int, Phase], bool]:
    """F or B for each send, and whether activations travel both ways (a V, or two pipelines in one).

    Straight through, activations go to the next stage and gradients to the one before. In a V they go both ways, so
    that the compute before a send contradicts its direction, or both results of a pair go the same way.
    """
    straight = {index: F if way > 0 else B for index, way in ways.items()}
    if size == 2:
        return _settle_two(told, ways, place)
    wraps = any(way < 0 for way in ways.values()) if place == 0 else False
    wraps |= any(way > 0 for way in ways.values()) if place == size - 1 else False
    contrary = sum(t.is_sure and t.kind is not straight[index] for index, t in told.items())
    paired = [index for index, t in told.items() if t.is_paired]
    if place == 0 and all(way > 0 for way in ways.values()):
        # a straight first stage sends no gradient; in a V it sends those of its second stage the same way
        contrary += sum(t.kind is B and not t.is_paired for t in told.values())
    same_way = sum(ways[a] == ways[b] for a, b in zip(paired[::2], paired[1::2], strict=True))
    if wraps or contrary + same_way < 2:
        return straight, False
    return {index: told[index].kind if index in told else straight[index] for index in ways}, True


def _settle_two(told: Mapping[int, _Told], ways: Mapping[int, int], place: int) -> tuple[dict[int, Phase], bool]:
    """Two stages send everything to each other; direction says nothing."""
    default = F if place == 0 else B
    if any(t.is_paired for t in told.values()):
        # a single send after both were computed: the first stage always has an activation, the last a gradient
        kinds = {i: told[i].kind if i in told and (told[i].is_sure or told[i].is_paired) else default for i in ways}
        # interleaved, the last stage sends one chunk less of activations; in a V as many of either
        forwards = sum(kind is F for kind in kinds.values())
        return kinds, place == 1 and 2 * forwards == len(kinds)
    kinds = {index: told[index].kind if index in told else default for index in ways}
    forwards = sum(kind is F for kind in kinds.values())
    return kinds, bool(told) and 2 * forwards == len(kinds)


def _tell_sends(view: RankView, sends: Sequence[Call], activations: Set[int]) -> dict[int, _Told]:
    """What each send follows: compute of the thread that sends is forward, of autograd's thread backward.

    Two sends without compute between them follow a forward and a backward that ran as one.
    """
    gaps = sorted((g for g in view.gaps if g.matmul_ns > 0), key=lambda g: (g.after, g.end_ns))
    if not gaps:
        gaps = sorted((g for g in view.gaps if g.busy_ns > 0), key=lambda g: (g.after, g.end_ns))
    if not gaps:
        return _tell_by_collectives(view, sends, activations)
    places = [g.after for g in gaps]
    main = main_thread(view)
    told: dict[int, _Told] = {}
    before = -1
    for send in sends:
        start, end = bisect_left(places, before), bisect_left(places, send.index)
        if start == end and before in told and not told[before].is_paired:
            told[before], told[send.index] = _Told(F, is_paired=True), _Told(B, is_paired=True)
        elif end > start:
            kinds = [F if g.thread == main and send.phase is not B else B for g in gaps[start:end]]
            told[send.index] = _Told(kinds[-1], is_sure=len(set(kinds)) == 1)
        before = send.index
    return told


def main_thread(view: RankView) -> int | None:
    """The thread that issues what is not backward."""
    threads = Counter(c.thread for c in view.calls if c.phase is not B)
    return threads.most_common(1)[0][0] if threads else None


def _tell_by_collectives(view: RankView, sends: Sequence[Call], activations: Set[int]) -> dict[int, _Told]:
    """Without compute: the phase of the last collective before each send, if there are enough of them."""
    collectives = [c for c in view.calls if c.group in activations and c.phase in (F, B)]
    if len(collectives) <= len(sends):
        return {}
    spots = [c.index for c in collectives]
    told: dict[int, _Told] = {}
    before = -1
    for send in sends:
        start, end = bisect_left(spots, before), bisect_left(spots, send.index)
        kinds = [F if c.phase is F else B for c in collectives[start:end]]
        if kinds:
            told[send.index] = _Told(kinds[-1], is_sure=len(set(kinds)) == 1)
        before = send.index
    return told


def _is_split(view: RankView, calls: Sequence[Call], sends: Sequence[tuple[int, Phase, int]]) -> bool | None:
    """Whether a gradient leaves after the gradients of inputs only: as much work as forward, not twice as much."""
    work: dict[Phase, list[int]] = {F: [], B: []}
    kinds = {index: kind for index, kind, _ in sends}
    own, last = main_thread(view), -1
    for call in calls:
        kind = kinds.get(call.index)
        if kind is not None:
            gaps = [g for g in view.gaps_between(last, call.index) if (g.thread == own) == (kind is F)]
            work[kind].append(sum(g.matmul_ns for g in gaps))
        last = call.index
    late = [g.matmul_ns for g in view.gaps if g.thread != own]
    slots = sorted(slot for slot in work[B] if slot)
    if not slots or not sum(late):
        return None
    forward = sorted(slot for slot in work[F] if slot)
    if forward:
        # the lower quartile of backwards, as the last stage has the head beside its layers
        ratio = slots[len(slots) // 4] / forward[len(forward) // 2]
        return True if ratio < 1.45 else False if ratio > 1.6 else None
    share = sum(slots) / sum(late)  # the last stage sends no activations: compare with all work of backward
    return False if share > 0.85 else True if share < 0.7 else None
