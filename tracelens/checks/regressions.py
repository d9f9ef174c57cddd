"""Time and overlap held against a baseline: both floors must be passed, and chance ruled out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracelens.checks.baseline import PARTS, Baseline, BaselineTime, part_of_steps
from tracelens.checks.codes import Code
from tracelens.checks.facts import Facts, finding
from tracelens.checks.judged import OTHER_RANKS, Judged, judge, not_checked
from tracelens.checks.policy import Policy
from tracelens.results import Finding
from tracelens.units import format_time, noun, plural

_WORDS = {"step_time": "the step", "exposed_comm": "exposed communication", "idle": "idle time"}
_NO_TIME = "the trace has no time on a GPU"


def is_open(facts: Facts, part: str, *, broken: bool) -> bool:
    """Whether calls without a kernel leave open how a part of the step stands to its limit.

    Exposed communication is at least, and idling at most, what is told: the one may still be too long, the other may
    still be short enough.
    """
    return facts.untimed_calls > 0 and (part, broken) in (("exposed_comm", False), ("idle", True))


def why_open(facts: Facts) -> str:
    """Why a limit on time is not checked where calls have no kernel."""
    told = plural(facts.untimed_calls, "call has", "calls have")
    took = noun(facts.untimed_calls, "it", "they")
    return f"{told} no kernel in the trace, and how long {took} took is not known"


def check_time(facts: Facts, policy: Policy, baseline: Baseline) -> Iterator[Judged]:
    """Parts of the step that take longer than `mean + max(relative · mean, sigmas · deviation)`, and the floor."""
    limits = policy.time
    for name in PARTS:
        part, values = baseline.part(name), part_of_steps(facts.measurement, name)
        if part is None:
            continue
        most = part.mean + max(limits.relative * part.mean, limits.sigmas * part.deviation, limits.absolute_ms * 1e6)
        told = f"time: {_WORDS[name]}"
        why = _why_not(facts, baseline, values)
        if why is not None:
            yield not_checked(told, "at most", most, unit="ns", why=why)
            continue
        now = sum(values) / len(values)
        if is_open(facts, name, broken=now > most):
            yield not_checked(told, "at most", most, unit="ns", why=why_open(facts))
            continue
        broken = None if now <= most else _slower(name, now, most, part, len(values), of_runs=len(baseline.runs) > 1)
        yield judge(told, "at most", now, most, unit="ns", broken=broken)


def _why_not(facts: Facts, baseline: Baseline, values: Sequence[float]) -> str | None:
    """Why times can't be held against those of the baseline; None where they can."""
    if not values:
        return _NO_TIME
    return OTHER_RANKS if facts.measurement.run.ranks != baseline.ranks else None


def _slower(name: str, now: float, most: float, part: BaselineTime, steps: int, *, of_runs: bool) -> Finding:
    return finding(
        Code.time_regressed,
        f"{_WORDS[name]} takes {format_time(now)}, the reference {format_time(part.mean)} "
        f"({_percent(now, part.mean)}); up to {format_time(most)} is allowed",
        hint="`tracelens diff BASE --against PATH` shows the axis and the size of call",
        measured=now,
        limit=most,
        unit="ns",
        coverage=f"{plural(steps, 'step')} against {plural(part.values, 'run' if of_runs else 'step')}",
    )


def _percent(now: float, mean: float) -> str:
    return f"{100 * (now / mean - 1):+.1f} %" if mean else "from nothing"


def check_overlap(facts: Facts, policy: Policy, baseline: Baseline) -> Iterator[Judged]:
    """Communication under compute, in percent, that is lower than the reference by more than both allowances.

    Where they allow all of it, nothing could break the limit: it is none.
    """
    part, values = baseline.part("comm_overlap_pct"), part_of_steps(facts.measurement, "comm_overlap_pct")
    if part is None:
        return
    name, unit = "overlap: communication under compute", "percent"
    least = part.mean - max(policy.overlap.absolute_points, policy.overlap.sigmas * part.deviation)
    if least <= 0:
        return
    why = _why_not(facts, baseline, values)
    if why is not None:
        yield not_checked(name, "at least", least, unit=unit, why=why)
        return
    if facts.untimed_calls:
        yield not_checked(name, "at least", least, unit=unit, why=why_open(facts))
        return
    now = sum(values) / len(values)
    broken = finding(
        Code.overlap_lost,
        f"{now:.1f} % of the communication runs under compute, {part.mean:.1f} % in the reference; "
        f"down to {least:.1f} % is allowed",
        hint="look for a new synchronisation, another order of streams, or less compute between calls",
        measured=now,
        limit=least,
        unit=unit,
    )
    yield judge(name, "at least", now, least, unit=unit, broken=broken if now < least else None)
