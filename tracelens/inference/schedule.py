"""The pipeline schedule from the order in which a stage sends activations (F) and gradients (B)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tracelens.collectives import Primitive
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job
from tracelens.inference.lanes import Lane, find_lanes, main_thread
from tracelens.inference.observations import Call, RankView
from tracelens.inference.uses import Role, Use
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
        lane
        for view, uses in zip(job.views, job.uses, strict=True)
        for lane in find_lanes(view, uses, case.value("pp"))
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
        why = (
            "forward and backward come once in a step"
            if rounds == 1
            else f"forward and backward alternate {rounds} times"
        )
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
    main = main_thread(view)
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
