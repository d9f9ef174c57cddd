"""The finding about exposed data parallelism: how much of it nothing hides, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracelens.checks.codes import Code
from tracelens.checks.facts import DATA_AXES, Claims, Facts, finding, waited_for
from tracelens.checks.gradients import KNEE_BYTES, REDUCTIONS
from tracelens.many_ranks import Skew
from tracelens.measurement.links import rate_inside_node
from tracelens.results import Finding, Phase, Traffic
from tracelens.topology import Axis
from tracelens.units import format_percent, format_rate, format_time

LEAST_EXPOSED = 0.02
"""Share of a step below which exposed time is not worth a finding."""
_NEVER_HIDDEN = 0.02
_FAR_BELOW = 0.2
"""Of the line rate; calls that wait for nobody reach about 0.8, and half of it beside compute."""
_ROUNDING = 0.01


def find_exposed_dp(facts: Facts) -> Iterator[Finding]:
    """Gradients and parameters can travel beside compute; what does not is told with the reason."""
    rows = facts.rows(lambda row: facts.axis_of(row) in DATA_AXES)
    exposed = facts.mean(rows, lambda row: row.exposed_ns_per_step)
    if not facts.span_ns or exposed / facts.span_ns < LEAST_EXPOSED:
        return
    # what a finder that claimed nothing would get: rows that run side by side are exposed once
    exposed = Claims(facts.measurement).take(rows) or 0
    claimed = facts.claims.take(rows)
    if claimed is None or claimed / facts.span_ns < LEAST_EXPOSED:
        return
    busy = facts.mean(rows, lambda row: row.busy_ns_per_step)
    reason, hint = _why_exposed(facts, rows)
    elsewhere = exposed - claimed
    told = f" ({format_time(elsewhere)} of it are another finding's)" if elsewhere > _ROUNDING * exposed else ""
    yield finding(
        Code.dp_exposed,
        f"{format_time(exposed)} of {format_time(busy)} of data-parallel communication are exposed in a step{told}: "
        f"{reason}{facts.doubt(rows, 'time')}",
        hint=hint,
        axis=Axis.dp,
        measured=exposed / facts.span_ns,
        limit=LEAST_EXPOSED,
        unit="fraction",
        claimed_ns=claimed,
        coverage=facts.coverage(rows),
    )


def _why_exposed(facts: Facts, rows: Sequence[Traffic]) -> tuple[str, str]:
    if any(one.transfer_ns for one in _paired(facts, rows)):
        return _mostly_waiting(facts, rows) or _never_beside(rows) or _too_little_compute(facts, rows)
    never = _never_beside(rows)
    slow = None if never else _slower_than_its_link(facts, rows)
    if slow is not None:
        return slow
    reason, hint = never or _too_little_compute(facts, rows)
    return f"{reason}; how much of it is waiting is unknown without several ranks of a group", hint


def _never_beside(rows: Sequence[Traffic]) -> tuple[str, str] | None:
    """Communication that is not issued where compute is, or never runs there."""
    exposed = sum(row.exposed_ns_per_step or 0 for row in rows)
    late = [row for row in rows if row.phase is Phase.optimizer]
    if sum(row.exposed_ns_per_step or 0 for row in late) > 0.5 * exposed:
        return (
            "most of it is issued after the last backward, where no compute is left",
            "reduce during backward and gather during forward: DDP and FSDP do; in Megatron --overlap-grad-reduce and "
            "--overlap-param-gather, in DeepSpeed overlap_comm",
        )
    busy = sum(row.busy_ns_per_step or 0 for row in rows)
    if busy and 1 - exposed / busy < _NEVER_HIDDEN:
        return (
            "next to nothing of it runs beside compute",
            "look for one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1 without the order that needs it), or the "
            "compute stream carrying the calls (async_op)",
        )
    return None


def _too_little_compute(facts: Facts, rows: Sequence[Traffic]) -> tuple[str, str]:
    """Communication that compute is too short for, in all or where it runs."""
    time = facts.measurement.time
    compute = sum(row.compute_ns for row in time) / len(time)
    if facts.mean(rows, lambda row: row.busy_ns_per_step) > compute:
        return (
            f"it takes longer than all compute ({format_time(compute)})",
            "give each rank more to compute: a larger micro-batch, gradient accumulation, or fewer data-parallel ranks",
        )
    calls = max((row.calls_per_step.mean for row in rows if row.primitive in REDUCTIONS), default=0)
    if 0 < calls <= 1:
        return (
            "gradients go in one bucket, which can't start before the last of them is there",
            "use smaller buckets, or wrap each block as a unit",
        )
    return (
        "the first gathers and the last reductions have nothing beside them, or compute is too short in between",
        "prefetch the first unit earlier, make the first and last units smaller, or give each rank more to compute",
    )


def _mostly_waiting(facts: Facts, rows: Sequence[Traffic]) -> tuple[str, str] | None:
    """Waiting for a late rank is no transfer: hiding it behind compute would gain nothing."""
    paired = _paired(facts, rows)
    transfer = sum(one.transfer_ns or 0 for one in paired)
    wait = sum(one.wait_ns or 0 for one in paired)
    if not transfer or wait <= transfer:
        return None
    share = format_percent(wait / (wait + transfer))
    told = f"{share} of the time of the calls that could be paired across ranks is waiting, not transfer"
    late = _latest(paired)
    if late is None:
        return (
            told,
            "find what makes ranks late before you hide communication: the table of transfer and waiting says how "
            "often each came last; none does by habit, as far as these calls tell",
        )
    rank, waited, calls, of = late
    return (
        f"{told}, {format_percent(waited / wait)} of it for rank {rank} (last in {calls} of {of})",
        f"find what makes rank {rank} late before you hide communication: the table of transfer and waiting says what "
        "it does more",
    )


def _paired(facts: Facts, rows: Sequence[Traffic]) -> list[Skew]:
    """Transfer and waiting of these rows, where calls of several ranks could be put side by side."""
    sent = {(row.group, str(row.primitive)) for row in rows}
    return [one for one in facts.measurement.skew or () if (one.group, one.primitive) in sent]


def _latest(paired: Sequence[Skew]) -> tuple[int, float, int, int] | None:
    """The rank that is late by habit and waited for longest: itself, ns, calls to which it came last, of how many."""
    by_rank: dict[int, list[Skew]] = {}
    for one in paired:
        if one.last is not None and one.last.systematic:
            by_rank.setdefault(one.last.rank, []).append(one)
    if not by_rank:
        return None
    waited = {rank: sum(waited_for(one) for one in rows) for rank, rows in by_rank.items()}
    rank = max(waited, key=lambda rank: waited[rank])
    lasts = [one.last for one in by_rank[rank] if one.last is not None]
    return rank, waited[rank], sum(last.calls for last in lasts), sum(last.of for last in lasts)


def _slower_than_its_link(facts: Facts, rows: Sequence[Traffic]) -> tuple[str, str] | None:
    """Large calls far below the link, of ranks that can't be put side by side: compute may be none of the reasons."""
    link = rate_inside_node(facts.measurement.run.devices)
    local = [row for row in rows if _is_local(facts, row) and _is_large(row)]
    busy = sum(row.busy_ns_per_step or 0 for row in local)
    if link is None or not busy:
        return None
    rate = sum(row.wire_bytes_per_step or 0 for row in local) / busy * 1e9
    if rate >= _FAR_BELOW * link:
        return None
    return (
        f"its large calls send {format_rate(rate)} where the link does {format_rate(link)}: they wait for late ranks, "
        "or the network is slow, and without the other ranks of a group nothing tells which",
        "record the other ranks too, for the table of transfer and waiting, before you give each rank more to compute; "
        "compare with nccl-tests on the same nodes",
    )


def _is_local(facts: Facts, row: Traffic) -> bool:
    group = facts.groups.get(row.group or "")
    return group is not None and group.spans_nodes is False


def _is_large(row: Traffic) -> bool:
    calls = row.calls_per_step.mean
    return bool(calls) and (row.payload_bytes_per_step or 0) / calls >= KNEE_BYTES
