"""Time and overlap held against a baseline: both floors must be passed, and chance ruled out."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.checks.baseline import PARTS, Baseline, part_of_steps
from tracelens.checks.codes import Code
from tracelens.checks.facts import Facts, finding
from tracelens.checks.policy import Policy
from tracelens.results import Finding
from tracelens.units import format_time

_WORDS = {"step_time": "the step", "exposed_comm": "exposed communication", "idle": "idle time"}


def check_time(facts: Facts, policy: Policy, baseline: Baseline) -> Iterator[Finding]:
    """Parts of the step that take longer than `mean + max(relative · mean, sigmas · deviation)`, and the floor."""
    limits = policy.time
    for name in PARTS:
        part, values = baseline.part(name), part_of_steps(facts.measurement, name)
        if part is None or not values:
            continue
        now = sum(values) / len(values)
        most = part.mean + max(limits.relative * part.mean, limits.sigmas * part.deviation, limits.absolute_ms * 1e6)
        if now > most:
            yield finding(
                Code.time_regressed,
                f"{_WORDS[name]} takes {format_time(now)}, the reference {format_time(part.mean)} "
                f"({_percent(now, part.mean)}); up to {format_time(most)} is allowed",
                hint="`tracelens diff BASE --against PATH` shows the axis and the size of call",
                measured=now,
                limit=most,
                unit="ns",
                coverage=f"{len(values)} steps against {part.values} "
                + ("runs" if len(baseline.runs) > 1 else "steps"),
            )


def _percent(now: float, mean: float) -> str:
    return f"{100 * (now / mean - 1):+.1f} %" if mean else "from nothing"


def check_overlap(facts: Facts, policy: Policy, baseline: Baseline) -> Iterator[Finding]:
    """Communication under compute, in percent, that is lower than the reference by more than both allowances."""
    part, values = baseline.part("comm_overlap_pct"), part_of_steps(facts.measurement, "comm_overlap_pct")
    if part is None or not values:
        return
    now = sum(values) / len(values)
    least = part.mean - max(policy.overlap.absolute_points, policy.overlap.sigmas * part.deviation)
    if now < least:
        yield finding(
            Code.overlap_lost,
            f"{now:.1f} % of the communication runs under compute, {part.mean:.1f} % in the reference; "
            f"down to {least:.1f} % is allowed",
            hint="look for a new synchronisation, another order of streams, or less compute between calls",
            measured=now,
            limit=least,
            unit="percent",
        )
