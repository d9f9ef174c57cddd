"""How experts are laid out: ep where they are reached by gathers, and etp, over which each expert is cut."""

from __future__ import annotations

from tracelens.inference.evidence import Case
from tracelens.inference.job import Job, Sighting, main_kind
from tracelens.inference.names import axes_named
from tracelens.inference.uses import Role
from tracelens.topology import Axis


def find_experts(job: Job, case: Case) -> None:
    """Decide ep where experts are reached by gathers, and etp."""
    gathered = [s for s in job.sightings(Role.experts) if s.use.detail == "allgather" and s.group.size]
    seen = main_kind([s for s in job.sightings(Role.expert_tensor) if s.group.size])
    _read_names(job, case)
    if gathered:
        _decide_by_gathers(case, gathered[0])
    elif seen:
        strongest = max(seen, key=lambda s: s.use.confidence)
        case.solve("etp")
        why = f"{strongest.group.told()}: {strongest.use.why}"
        case.decide("etp", strongest.group.size, strongest.use.confidence, why)
    elif case.value("ep") is not None:
        _decide_without_traffic(job, case)


def _decide_by_gathers(case: Case, seen: Sighting) -> None:
    """Experts reached by gathers use the group of their tensor parts and all expert ranks together: etp · ep."""
    size, tp, etp = seen.group.size or 1, case.value("tp"), case.value("etp")
    told = f"{seen.group.told()}: {seen.use.why}"
    if etp is not None and size % etp == 0:
        case.decide("ep", size // etp, seen.use.confidence, told)
        return
    if tp is None or tp == 1:
        case.decide("ep", size, seen.use.confidence, told)
        if tp == 1:
            case.decide("etp", 1, 0.8, "tp is 1")
        return
    values = sorted({d for d in (size, size // tp) if d > 1})
    case.leave("ep", values, f"{told}; it may hold tensor parts of experts too", would_decide="the size of etp")
    case.leave("etp", (1, tp), "the group may hold parts of experts")


def _decide_without_traffic(job: Job, case: Case) -> None:
    """No tokens are gathered between dispatch and combine: experts are whole, or their input is gathered before.

    Ranks of one tensor-parallel group that exchange tokens hold different experts, not parts of the same. Where they
    don't, each may hold a part (torchtitan's older expert_tensor_parallel) or a copy.
    """
    ep, tp, certainty = case.value("ep"), case.value("tp"), case.verdict("ep").confidence or 0.0
    if tp is None:
        return
    if ep == 1 and tp > 1 and any(view.multiplies_groups for view in job.views):
        # torchtitan cuts experts over tp where ep is 1, between the same gathers and scatters as an MLP
        told = "experts are multiplied in groups, and tensor parallelism does not tell whether it cuts them"
        case.leave("etp", (1, tp), told, would_decide="the shapes of the experts' weights")
    elif ep == 1:
        why = "no dispatch of tokens was seen" + ("" if tp == 1 else ": no experts, or some that are cut like the rest")
        case.decide("etp", 1, min(certainty, 0.93 if tp == 1 else 0.75), why)
    elif tp == 1:
        case.decide("etp", 1, min(certainty, 0.93), "tp is 1, and nothing gathers tokens between dispatch and combine")
    elif _shared_ranks(job) == min(ep, tp):
        why = "ranks of one tensor-parallel group exchange tokens: they hold different experts"
        case.decide("etp", 1, min(certainty, 0.93), why)
    else:
        told = "nothing gathers tokens between dispatch and combine; tensor-parallel ranks hold parts or copies"
        case.leave("etp", (1, tp), told, would_decide="the shapes of the experts' weights")


def _shared_ranks(job: Job) -> int | None:
    """How many ranks a group of experts has in common with the tensor-parallel group of the same rank."""
    found = set()
    for view, uses in zip(job.views, job.uses, strict=True):
        ranks = {role: [set(view.groups[u.group].ranks or ()) for u in uses if u.role is role] for role in Role}
        found |= {len(e & t) for e in ranks[Role.experts] for t in ranks[Role.tensor] if e and t}
    return found.pop() if len(found) == 1 else None


def _read_names(job: Job, case: Case) -> None:
    """A group described as that of experts' parts; only where experts are seen: Megatron makes it without any."""
    if job.blind or not job.has(Role.experts):
        return
    described = [g for view in job.views for g in view.groups if Axis.etp in axes_named(g) and g.size is not None]
    sizes = {group.size for group in described}
    if len(sizes) == 1:
        why = f"{described[0].told()} is described as the experts' tensor-parallel group"
        case.decide("etp", sizes.pop(), 0.97, why)
