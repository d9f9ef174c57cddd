"""How tensor and context parallelism are done: sequence parallel or not, how context is exchanged, recomputation."""

from __future__ import annotations

from collections import Counter

from tracelens.collectives import Primitive
from tracelens.inference.evidence import Case
from tracelens.inference.job import Job, main_kind
from tracelens.inference.uses import UNDECIDED, Role
from tracelens.results import Phase

P = Primitive
F, B = Phase.forward, Phase.backward


def find_tensor_habits(job: Job, case: Case) -> None:
    """Decide sequence_parallel, cp_kind and, where tensor parallelism shows it, recompute."""
    _decide_sequence_parallel(job, case)
    _decide_context(job, case)


def _decide_sequence_parallel(job: Job, case: Case) -> None:
    seen = main_kind(job.sightings(Role.tensor))
    if not seen:
        if case.value("tp") == 1:
            case.decide("sequence_parallel", False, 0.9, "tp is 1")  # noqa: FBT003
        return
    strongest = max(seen, key=lambda s: s.use.confidence)
    parallel = strongest.use.detail == "sp"
    certainty = strongest.use.confidence
    case.decide("sequence_parallel", parallel, certainty, strongest.use.why)
    calls = strongest.use.calls
    counted = Counter((c.primitive, c.phase) for c in calls)
    if parallel:
        gathers = counted[P.all_gather, F], counted[P.all_gather, B]
        scatters = counted[P.reduce_scatter, F], counted[P.reduce_scatter, B]
        case.check(holds=abs(gathers[0] - scatters[0]) <= 2 * max(1, gathers[0] // 16), count=1)
        _decide_recompute(case, gathers, scatters)


def _decide_recompute(case: Case, gathers: tuple[int, int], scatters: tuple[int, int]) -> None:
    """Backward over forward, per layer: torch (2,2) over (2,2), Megatron (4,2), full recompute adds (2,2) to both."""
    if not gathers[0] or not scatters[0]:
        return
    more_gathers, more_scatters = gathers[1] / gathers[0], scatters[1] / scatters[0]
    told = f"(gathers, scatters): {gathers[0]}, {scatters[0]} in forward, {gathers[1]}, {scatters[1]} in backward"
    if more_scatters > 1.6:
        case.decide("recompute", "full", 0.85, f"{told}: forward runs again in backward")
    elif more_gathers < 1.4:
        case.decide("recompute", "none", 0.8, f"{told}: nothing runs again in backward")
    else:
        case.leave(
            "recompute", ("none", "selective", "op_selective"), f"{told}: the input is gathered again in backward"
        )


def _decide_context(job: Job, case: Case) -> None:
    kinds: dict[str, float] = {}
    why: dict[str, str] = {}
    for s in job.sightings(Role.context):
        if s.use.detail is not None and s.use.detail != UNDECIDED:
            kinds[s.use.detail] = max(kinds.get(s.use.detail, 0.0), s.use.confidence)
            why[s.use.detail] = s.use.why
    if {"ring_p2p", "ulysses"} <= set(kinds):
        case.decide("cp_kind", "ulysses_ring", 0.9, f"{why['ulysses']}; {why['ring_p2p']}")
        sizes = {s.use.detail: s.group.size for s in job.sightings(Role.context)}
        both = [sizes[kind] for kind in ("ring_p2p", "ulysses")]
        if all(both):
            case.leave("cp", ((both[0] or 1) * (both[1] or 1),), "two levels of context parallelism")
        return
    for kind, certainty in kinds.items():
        case.decide("cp_kind", kind, certainty, why[kind])
