"""The parts of a step in two runs: what changed, and whether the steps differ as much among themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

import msgspec

from tracelens.compared import MetricChange, TimeVerdict
from tracelens.results import StepTime

FEWEST_STEPS = 3
"""On each side, for a verdict on time."""
SIGMAS = 3
SLOWER_STEP = 0.05
"""A step that is slower by this much, and by more than the steps differ, is outside the tolerance."""
_UNCHANGED = 1e-3

METRICS: tuple[tuple[str, Callable[[StepTime], int]], ...] = (
    ("step_time", lambda row: row.span_ns),
    ("compute", lambda row: row.compute_ns),
    ("exposed_comm", lambda row: row.exposed_comm_ns),
    ("exposed_memory", lambda row: row.exposed_memory_ns),
    ("idle", lambda row: row.idle_ns),
    ("comm", lambda row: row.comm_ns),
)

_WITHOUT_COMM = ("step_time", "compute")
"""What calls without a kernel leave as it is."""


def compare_steps(base: Sequence[StepTime], candidate: Sequence[StepTime]) -> tuple[MetricChange, ...]:
    """The parts of the step, over the ranks that both sides have: ranks differ among themselves."""
    if {row.rank for row in base} == {row.rank for row in candidate}:
        return tuple(_metric(name, read, base, candidate) for name, read in METRICS)
    common = common_ranks(base, candidate)
    if common:
        own = ([row for row in side if row.rank in common] for side in (base, candidate))
        return compare_steps(*own)
    told = (_metric(name, read, base, candidate) for name, read in METRICS)
    return tuple(one if one.base is None or one.candidate is None else _not_comparable(one) for one in told)


def _not_comparable(metric: MetricChange) -> MetricChange:
    return msgspec.structs.replace(metric, spread=None, verdict=TimeVerdict.not_comparable)


def _metric(
    name: str, read: Callable[[StepTime], int], base: Sequence[StepTime], candidate: Sequence[StepTime]
) -> MetricChange:
    before, after = means_by_step(base, read), means_by_step(candidate, read)
    one, other = _mean(before), _mean(after)
    spread = spread_of_means(deviation(before), len(before), deviation(after), len(after))
    is_open = name not in _WITHOUT_COMM and any(row.untimed_calls for row in (*base, *candidate))
    return MetricChange(
        name=name,
        base=one,
        candidate=other,
        change=other / one - 1 if one and other is not None else None,
        base_steps=len(before),
        candidate_steps=len(after),
        spread=spread,
        verdict=TimeVerdict.not_enough_data if is_open else judge_time(one, other, spread),
    )


def common_ranks(base: Sequence[StepTime], candidate: Sequence[StepTime]) -> frozenset[int]:
    """Ranks with times on both sides."""
    both = {row.rank for row in base} & {row.rank for row in candidate}
    return frozenset(rank for rank in both if rank is not None)


def spread_of_means(base: float, base_steps: int, candidate: float, candidate_steps: int) -> float | None:
    """Three standard errors of the difference of two means; None with too few steps."""
    if min(base_steps, candidate_steps) < FEWEST_STEPS:
        return None
    return SIGMAS * sqrt(base**2 / base_steps + candidate**2 / candidate_steps)


def judge_time(base: float | None, candidate: float | None, spread: float | None) -> TimeVerdict:
    """What a change in time is called."""
    if base is None or candidate is None or spread is None:
        return TimeVerdict.not_enough_data
    change = candidate - base
    if abs(change) <= _UNCHANGED * base:
        return TimeVerdict.same
    if abs(change) <= spread:
        return TimeVerdict.within_spread
    return TimeVerdict.slower if change > 0 else TimeVerdict.faster


def means_by_step(time: Sequence[StepTime], read: Callable[[StepTime], int]) -> list[float]:
    """One value per step: the mean over the ranks."""
    steps: dict[int | None, list[int]] = {}
    for row in time:
        steps.setdefault(row.step, []).append(read(row))
    return [sum(values) / len(values) for values in steps.values()]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    middle = sum(values) / len(values)
    return sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def is_slower(metrics: Sequence[MetricChange]) -> bool:
    """Whether the step itself takes longer by so much that it is outside the tolerance."""
    step = metrics[0]
    return step.verdict is TimeVerdict.slower and (step.change or 0) > SLOWER_STEP
