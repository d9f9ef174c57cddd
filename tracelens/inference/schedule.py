"""The pipeline schedule from the order in which a stage sends activations (F) and gradients (B)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tracelens.collectives import Primitive
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job
from tracelens.inference.observations import Call, RankView
from tracelens.inference.roles import Role, Use
from tracelens.results import Phase

P = Primitive
F, B = Phase.forward, Phase.backward
V_SHAPED = ("zbv", "dualpipev", "dualpipe")
_MOST_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule with its virtual stages and micro-batches."""

    schedule: str
    vp: int
    microbatches: int


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


def find_schedule(job: Job, case: Case) -> None:
    """Decide schedule, virtual stages and micro-batches."""
    if case.value("pp") == 1:
        if (case.verdict("pp").confidence or 0) < 0.8:
            return  # too little was seen to say that there is no pipeline
        case.decide("schedule", "none", 0.97, "there is no pipeline")
        case.decide("vp", 1, 0.9, "there is no pipeline")
        _count_microbatches(job, case)
        return
    lanes = [
        lane for view, uses in zip(job.views, job.uses, strict=True) for lane in _lanes(view, uses, case.value("pp"))
    ]
    if not lanes:
        return
    if any(lane.is_v for lane in lanes):
        _decide_v(case, [lane for lane in lanes if lane.is_v])
        return
    left: set[Candidate] | None = None
    for lane in lanes:
        own = set(_candidates(lane))
        left = own if left is None else left & own
        if own:
            case.check(holds=True, count=2)
    _settle(case, lanes, left or set())


def _lanes(view: RankView, uses: Sequence[Use], stages: int | None = None) -> Iterator[Lane]:
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
    main = _main_thread(view)
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


def _main_thread(view: RankView) -> int | None:
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
    own, last = _main_thread(view), -1
    for call in calls:
        kind = kinds.get(call.index)
        if kind is not None:
            gaps = [g for g in view.gaps if last <= g.after < call.index and (g.thread == own) == (kind is F)]
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


def _decide_v(case: Case, lanes: Sequence[Lane]) -> None:
    """ZB-V, DualPipeV and DualPipe: two stages a rank, activations in both directions.

    Order of the first passes (torch pipelining/schedules.py, deepseek-ai/DualPipe): on the rank of stage r a V begins
    with 2(p-r)-1 forwards of its first stage, DualPipe, fed from both ends, with p-2r-1 or from the other end.
    DualPipe and DualPipeV run a forward and a backward as one and send both results together.
    """
    told = "activations and gradients are sent to both neighbours"
    case.decide("vp", 2, 0.9, f"{told}: two stages a rank")
    case.solve("num_microbatches")
    shapes = {_is_fed_from_both_ends(lane) for lane in lanes} - {None}
    together = any(len(lane.paired) > 0.2 * len(lane.sends) for lane in lanes)
    one_way = {max(lane.count(F, way) for way in (1, -1, 0)) for lane in lanes}
    told += f", {sum(len(lane.paired) for lane in lanes) // 2} times two at once"
    if shapes == {True}:
        case.decide("schedule", "dualpipe", 0.9, f"{told}; forwards begin at both ends")
    elif shapes == {False} and together:
        case.decide("schedule", "dualpipev", 0.92, f"{told}; forwards begin at one end")
    elif shapes == {False} and any(lane.split for lane in lanes) and not any(lane.paired for lane in lanes):
        case.decide("schedule", "zbv", 0.92, f"{told}; gradients leave before those of weights are computed")
    else:
        left = ("dualpipev", "dualpipe") if together else V_SHAPED
        case.leave("schedule", left, told, would_decide="a trace of the last stage's rank")
    if len(one_way) == 1 and shapes in ({True}, {False}):
        count = one_way.pop() * (2 if shapes == {True} else 1)
        case.check(holds=len(lanes) > 1, count=len(lanes) - 1)
        case.decide("num_microbatches", count, 0.92, f"{told}; {count} micro-batches by the activations sent one way")
    elif len(one_way) == 1:
        count = one_way.pop()
        case.leave("num_microbatches", (count, 2 * count), told)


def _is_fed_from_both_ends(lane: Lane) -> bool | None:
    p, r = lane.size, lane.place
    first_receive = lane.receives[0] if lane.receives else None
    if r >= p / 2:
        if first_receive is None:
            return None
        return lane.sends[0][0] < first_receive[0] or first_receive[1] > 0
    turn = next((i for i, kind, way in lane.sends if (kind is B if lane.is_first else kind is F and way < 0)), None)
    if turn is None:
        return None
    ahead = sum(kind is F and way >= 0 and index < turn for index, kind, way in lane.sends)
    return {2 * (p - r) - 1: False, p - 2 * r - 1: True}.get(ahead)


def _candidates(lane: Lane) -> Iterator[Candidate]:
    """Schedules whose counts and warm-up fit one stage.

    Warm-up forwards before the first backward, stage r of p: 1F1B p-r (Narayanan 2021, 2104.04473); interleaved
    2(p-r-1)+(v-1)p+1 (Megatron-LM pipeline_parallel/schedules.py, torch pipelining/schedules.py); zero bubble
    (p-r-1)+(v-1)p+1 (torch ScheduleInterleavedZeroBubble); GPipe and breadth-first all of them.
    """
    forwards = lane.count(B) if lane.is_last else lane.count(F)
    warm, p, r = lane.before_first_backward(), lane.size, lane.place
    for v in range(1, _MOST_CHUNKS + 1):
        if forwards == 0 or forwards % v or not _chunks_fit(lane, forwards, v):
            continue
        m = forwards // v
        # torch divides m into rounds of about p micro-batches, Megatron takes p
        ramp = (v - 1) * (m // max(1, m // p)) + 1
        whole = lane.has_all_forwards_first()
        fits = {
            "gpipe": v == 1 and whole,
            "looped_bfs": v > 1 and whole,
            "1f1b": v == 1 and warm == min(m, p - r) and lane.split is not True,
            "interleaved_1f1b": v > 1 and warm == min(forwards, 2 * (p - r - 1) + ramp) and lane.split is not True,
            "zero_bubble": warm == min(forwards, p - r - 1 + ramp)
            and (lane.split if v == 1 else lane.split is not False),
        }
        yield from (Candidate(name, v, m) for name, fit in fits.items() if fit)


def _chunks_fit(lane: Lane, forwards: int, v: int) -> bool:
    """First and last stage send one micro-batch less a chunk: of gradients the first, of activations the last."""
    m = forwards // v
    if lane.is_first:
        return lane.count(B) == m * (v - 1)
    if lane.is_last:
        return lane.count(F) == m * (v - 1)
    return lane.count(F) == lane.count(B) if lane.count(B) else True


def _settle(case: Case, lanes: Sequence[Lane], left: set[Candidate]) -> None:
    case.solve("num_microbatches", "vp")
    counts = ", ".join(
        f"stage {lane.place} of {lane.size}: {lane.count(F)} activations and {lane.count(B)} gradients sent, "
        f"{lane.before_first_backward()} forwards first"
        for lane in lanes[:3]
    )
    if not left:
        case.object_to("schedule", f"no known schedule fits: {counts}")
        totals = {lane.count(B) if lane.is_last else lane.count(F) for lane in lanes}
        if len(totals) == 1 and not any(lane.paired for lane in lanes):
            total = totals.pop()
            case.leave("num_microbatches", _divisors(total), f"{total} passes a stage, chunks unknown")
        return
    certainty = 0.96 if len(lanes) > 1 else 0.93
    for name, values in (
        ("schedule", {c.schedule for c in left}),
        ("vp", {c.vp for c in left}),
        ("num_microbatches", {c.microbatches for c in left}),
    ):
        if len(values) == 1:
            case.decide(name, values.pop(), certainty, counts)
        else:
            wanted = "a trace of the last stage" if not any(lane.is_last for lane in lanes) else "compute kernels"
            case.leave(name, sorted(values, key=str), counts, would_decide=wanted)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _count_microbatches(job: Job, case: Case) -> None:
    """Without a pipeline: how often forward follows backward in what each micro-batch sends.

    A loss that is computed in chunks runs forward and backward in turn as well, so that the layers' own calls count
    where there are any, and the least of several counts.
    """
    counts: dict[int, float] = {}
    for view, uses in zip(job.views, job.uses, strict=True):
        own = [_rounds(use.calls) for use in uses if _speaks_each_round(use)]
        rounds, certainty = (min(own), 0.94) if own else (count_rounds(view), 0.85)
        if own or rounds > 1:
            counts[rounds] = max(counts.get(rounds, 0.0), certainty)
    if len(counts) == 1:
        rounds, certainty = next(iter(counts.items()))
        case.solve("num_microbatches")
        why = f"forward and backward alternate {rounds} times in a step"
        case.decide("num_microbatches", rounds, certainty, why)


def _rounds(calls: Sequence[Call]) -> int:
    """How often backward begins in a use of a group."""
    phases = [c.phase for c in sorted(calls, key=lambda c: c.index) if c.phase in (F, B)]
    return sum(now is B and before is not B for before, now in zip([None, *phases], phases, strict=False))


def count_rounds(view: RankView) -> int:
    """How often backward begins after forward, by calls and by the compute between them.

    Compute is told by its thread, which says something only where backward has a thread of its own. What lies between
    two calls is one piece, so that micro-batches without a call are not seen: the count is a least one.
    """
    events = [(c.index, 0, c.phase) for c in view.calls if c.phase in (F, B)]
    main = _main_thread(view)
    if main is not None and all(c.thread != main for c in view.calls if c.phase is B):
        gaps = [g for g in view.gaps if g.matmul_ns]
        events += [(g.after, g.end_ns, F if g.thread == main else B) for g in gaps]
    phases = [phase for *_, phase in sorted(events, key=lambda event: event[:2])]
    while phases and phases[-1] is F:
        phases.pop()
    return sum(now is B and before is not B for before, now in zip([None, *phases], phases, strict=False))


def _speaks_each_round(use: Use) -> bool:
    """Whether a use shows every micro-batch: activations always do, parameters when they are gathered each time."""
    if use.role in (Role.tensor, Role.context, Role.experts):
        return any(c.phase is B for c in use.calls)
    if use.role is Role.weights:
        return any(c.phase is B and c.primitive is P.all_gather for c in use.calls)
    return False
