"""Run against run: what changed in calls, bytes and time, and whether the steps differ as much among themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log2, sqrt

import msgspec

from tracelens.collectives import Primitive
from tracelens.compared import MetricChange, RunComparison, RunRow, TimeVerdict, Verdict
from tracelens.comparison.compare import unsized_time_fraction
from tracelens.comparison.sizes import same_bytes, same_calls
from tracelens.errors import InputError
from tracelens.results import Group, Measurement, SizeRow, StepTime
from tracelens.topology import Axis, format_mesh, format_ranks

FEWEST_STEPS = 3
"""On each side, for a verdict on time."""
SIGMAS = 3
SLOWER_STEP = 0.05
"""A step that is slower by this much, and by more than the steps differ, is outside the tolerance."""
_UNCHANGED = 1e-3
_BUCKET = 2
"""Sizes of one bucket lie within a factor of 2^_BUCKET."""

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

Key = tuple[str, Primitive, str | None]
Bucket = tuple[int, int] | None


@dataclass(slots=True)
class KindSums:
    """What one rank does in one step, as a mean over all ranks read."""

    axis: Axis | None = None
    calls: float = 0.0
    wire_bytes: float | None = None
    busy_ns: float | None = None
    exposed_ns: float | None = None
    lacks_bytes: bool = False
    """Whether calls are without bytes, without a kernel, without even a size."""
    lacks_time: bool = False
    lacks_sizes: bool = False
    variances: list[float] = field(default_factory=list)
    """Of the busy time between steps, of each part."""
    steps: int = 0

    def add(self, row: SizeRow, share: float, steps: int) -> None:
        """Add a row of a class that is `share` of all ranks."""
        self.calls += share * row.calls_per_step.mean
        self.wire_bytes = _plus(self.wire_bytes, row.wire_bytes_per_step, share)
        self.busy_ns = _plus(self.busy_ns, row.busy_ns_per_step, share)
        self.exposed_ns = _plus(self.exposed_ns, row.exposed_ns_per_step, share)
        self.lacks_bytes |= row.lacks_bytes
        self.lacks_time |= row.lacks_time
        self.lacks_sizes |= row.from_bytes is None
        self.variances.append((share * (row.busy_spread_ns or 0)) ** 2)
        self.steps = max(self.steps, steps)

    @property
    def spread_ns(self) -> float:
        """Standard deviation between steps; parts that move together add up."""
        return sum(sqrt(value) for value in self.variances)


def _plus(total: float | None, value: float | None, share: float) -> float | None:
    if value is None:
        return total
    return (total or 0.0) + share * value


def compare_runs(
    base: Measurement, candidate: Measurement, base_name: str, candidate_name: str, *, tolerance: float = 0.01
) -> RunComparison:
    """Compare two measurements, kind of call by kind of call.

    Args:
        base: the run to compare with.
        candidate: the run in question.
        base_name: what to call the first.
        candidate_name: what to call the second.
        tolerance: bytes may differ by this fraction (or 1 KiB); calls may not.

    Raises:
        InputError: the two have no kind of call in common.
    """
    by_axis = _all_labelled(base) and _all_labelled(candidate)
    before, after = sum_kinds(base, by_axis=by_axis), sum_kinds(candidate, by_axis=by_axis)
    if before and after and not before.keys() & after.keys():
        raise InputError(
            f"`{base_name}` and `{candidate_name}` have no kind of call in common",
            hint="compare runs of one job, with equal groups",
        )
    # calls that tell no size may be of any, so how many there are of one is not known
    open_kinds = {kind for side in (before, after) for (kind, _), sums in side.items() if sums.lacks_sizes}
    none_before, none_after = _nothing(base), _nothing(candidate)
    rows = [
        _row(key, before.get(key), after.get(key), tolerance, none_before, none_after)
        for key in dict.fromkeys([*before, *after])
        if key[1] is None or key[0] not in open_kinds
    ]
    metrics = _metrics(base.time, candidate.time)
    if base.run.ranks != candidate.run.ranks:
        rows = [msgspec.structs.replace(row, time_verdict=TimeVerdict.not_comparable) for row in rows]
    totals = [row for row in rows if row.from_bytes is None]
    explained, absent = _fractions(totals)
    return RunComparison(
        base=base_name,
        candidate=candidate_name,
        tolerance=tolerance,
        metrics=metrics,
        rows=tuple(sorted(rows, key=_order)),
        explained_bytes_fraction=explained,
        absent_bytes_fraction=absent,
        unsized_time_fraction=unsized_time_fraction(candidate),
        inside_tolerance=all(row.verdict is Verdict.match for row in totals) and not _is_slower(metrics),
        notes=(*_gaps("base", base), *_gaps("candidate", candidate), *_notes(base, candidate)),
    )


def _gaps(word: str, measurement: Measurement) -> Iterator[str]:
    """What is not known of a run, and so not compared."""
    calls = sum(row.calls or 0 for row in measurement.sizes)
    unsized = calls - sum(row.calls_with_bytes or 0 for row in measurement.sizes)
    if unsized:
        yield f"the bytes of {unsized} of {calls} calls of the {word} are not known"
    untimed = sum(row.untimed_calls for row in measurement.time)
    if untimed:
        yield f"{untimed} calls of the {word} have no kernel in the trace: what they changed in its time is not known"


def _notes(one: Measurement, other: Measurement) -> Iterator[str]:
    """What makes two runs hard to compare."""
    base, candidate = one.run, other.run
    if base.world_size != candidate.world_size:
        yield f"the base has {base.world_size or '?'} ranks, the candidate {candidate.world_size or '?'}"
    if base.ranks != candidate.ranks:
        common = _common_ranks(one.time, other.time)
        step = f"the step is compared over {_plural_ranks(common)} alone" if common else "nor are those of the step"
        yield (
            f"ranks {format_ranks(base.ranks)} of the base and {format_ranks(candidate.ranks)} of the candidate were "
            "read: means of calls and bytes differ where ranks play different roles, times of calls are not "
            f"comparable, {step}"
        )
    if base.devices and candidate.devices and set(base.devices) != set(candidate.devices):
        yield f"the GPUs are {', '.join(base.devices)} and {', '.join(candidate.devices)}"
    if base.gpus_per_node != candidate.gpus_per_node:
        yield f"a node has {base.gpus_per_node or '?'} and {candidate.gpus_per_node or '?'} GPUs"


def _plural_ranks(ranks: frozenset[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(sorted(ranks))}"


def _common_ranks(base: Sequence[StepTime], candidate: Sequence[StepTime]) -> frozenset[int]:
    """Ranks with times on both sides."""
    both = {row.rank for row in base} & {row.rank for row in candidate}
    return frozenset(rank for rank in both if rank is not None)


def _all_labelled(measurement: Measurement) -> bool:
    used = {row.group for row in measurement.sizes if (row.wire_bytes_per_step or 0) > 0}
    return all(group.axis is not None for group in measurement.groups if group.id in used)


def sum_kinds(measurement: Measurement, *, by_axis: bool) -> dict[tuple[Key, Bucket], KindSums]:
    """What one rank does in one step, by kind of call: in all, and by size.

    Args:
        measurement: of a run.
        by_axis: call groups by their axis; by size and stride otherwise.
    """
    groups = {group.id: group for group in measurement.groups}
    sizes = {row.rank_class: max(1, len(row.ranks)) for row in measurement.traffic}
    everyone = sum(sizes.values()) or 1
    found: dict[tuple[Key, Bucket], KindSums] = {}
    for row in measurement.sizes:
        ranks = sizes.get(row.rank_class, 1)
        group = groups.get(row.group or "")
        key = (_label(group, row.group, by_axis=by_axis), row.primitive, row.dtype)
        for bucket in dict.fromkeys((None, bucket_of(row.from_bytes))):
            sums = found.setdefault((key, bucket), KindSums(axis=None if group is None else group.axis))
            sums.add(row, ranks / everyone, row.steps_used // ranks)
    return found


def _label(group: Group | None, name: str | None, *, by_axis: bool) -> str:
    if group is None:
        return name or "unattributed"
    if group.size == 1:
        return "1 rank"
    if by_axis and group.axis is not None:
        return str(group.axis)
    return f"{group.size} ranks" if group.mesh is None else format_mesh(group.mesh)


def bucket_of(payload_bytes: int | None) -> Bucket:
    """The sizes that stand together with one: from a power of four to the next; None for an unknown size."""
    if payload_bytes is None:
        return None
    exponent = int(log2(max(payload_bytes, 1)) / _BUCKET + 1e-9) * _BUCKET
    return 2**exponent, 2 ** (exponent + _BUCKET) - 1


def _nothing(measurement: Measurement) -> KindSums | None:
    """What a run has of a kind that it lacks: nothing; None where a kernel without a record may be of that kind."""
    if any(row.wire_bytes_per_step is None for row in measurement.traffic):
        return None
    timed = 0.0 if measurement.time else None
    return KindSums(calls=0.0, wire_bytes=0.0, busy_ns=timed, exposed_ns=timed)


def _row(
    key: tuple[Key, Bucket],
    base: KindSums | None,
    candidate: KindSums | None,
    tolerance: float,
    none_before: KindSums | None,
    none_after: KindSums | None,
) -> RunRow:
    (label, primitive, dtype), bucket = key
    before, after = base or none_before, candidate or none_after
    one, other = before or KindSums(), after or KindSums()
    verdict = _verdict(base, candidate, tolerance)
    spread = _spread(one.spread_ns, one.steps, other.spread_ns, other.steps)
    timed = base is not None and candidate is not None and not (one.lacks_time or other.lacks_time)
    return RunRow(
        axis=one.axis or other.axis,
        group=label,
        primitive=primitive,
        dtype=dtype,
        from_bytes=None if bucket is None else bucket[0],
        to_bytes=None if bucket is None else bucket[1],
        base_calls=None if before is None else before.calls,
        candidate_calls=None if after is None else after.calls,
        base_bytes=one.wire_bytes,
        candidate_bytes=other.wire_bytes,
        ratio=_ratio(one, other),
        base_busy_ns=one.busy_ns,
        candidate_busy_ns=other.busy_ns,
        base_exposed_ns=one.exposed_ns,
        candidate_exposed_ns=other.exposed_ns,
        spread_ns=spread,
        verdict=verdict,
        time_verdict=judge_time(one.busy_ns, other.busy_ns, spread) if timed else TimeVerdict.not_enough_data,
        why=_why(verdict, one, other),
        base_lacks_bytes=one.lacks_bytes,
        candidate_lacks_bytes=other.lacks_bytes,
        base_lacks_time=one.lacks_time,
        candidate_lacks_time=other.lacks_time,
    )


def _ratio(base: KindSums, candidate: KindSums) -> float | None:
    if base.lacks_bytes or candidate.lacks_bytes or not base.wire_bytes or candidate.wire_bytes is None:
        return None
    return candidate.wire_bytes / base.wire_bytes


def _verdict(base: KindSums | None, candidate: KindSums | None, tolerance: float) -> Verdict:
    if candidate is None:
        return Verdict.absent
    if base is None:
        return Verdict.unpredicted
    bytes_equal = _same_bytes(base, candidate, tolerance)
    if same_calls(base.calls, candidate.calls) and bytes_equal:
        return Verdict.match
    more = candidate.calls > base.calls if bytes_equal else (candidate.wire_bytes or 0) > (base.wire_bytes or 0)
    return Verdict.more if more else Verdict.less


def _same_bytes(base: KindSums, candidate: KindSums, tolerance: float) -> bool:
    """Whether bytes agree; those of calls that do not tell theirs are no contradiction."""
    one, other = base.wire_bytes or 0, candidate.wire_bytes or 0
    if same_bytes(one, other, tolerance):
        return True
    return base.lacks_bytes if one < other else candidate.lacks_bytes


def _why(verdict: Verdict, base: KindSums, candidate: KindSums) -> str | None:
    """Whether it is the number of calls that changed, their size, or both."""
    if verdict is Verdict.match:
        return "calls are as many; bytes are not all known" if base.lacks_bytes or candidate.lacks_bytes else None
    if verdict is Verdict.absent:
        return "only the base has such calls"
    if verdict is Verdict.unpredicted:
        return "only the candidate has such calls"
    if same_calls(base.calls, candidate.calls):
        return "the same number of calls, of another size"
    sizes = [(sums.wire_bytes or 0) / sums.calls for sums in (base, candidate) if sums.calls]
    if len(sizes) == 2 and same_bytes(sizes[0], sizes[1], 0.001):
        return "another number of calls, of the same size"
    return "another number of calls, of another size"


def _spread(base: float, base_steps: int, candidate: float, candidate_steps: int) -> float | None:
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


def _metrics(base: Sequence[StepTime], candidate: Sequence[StepTime]) -> tuple[MetricChange, ...]:
    """The parts of the step, over the ranks that both sides have: ranks differ among themselves."""
    if {row.rank for row in base} == {row.rank for row in candidate}:
        return tuple(_metric(name, read, base, candidate) for name, read in METRICS)
    common = _common_ranks(base, candidate)
    if common:
        own = ([row for row in side if row.rank in common] for side in (base, candidate))
        return _metrics(*own)
    told = (_metric(name, read, base, candidate) for name, read in METRICS)
    return tuple(one if one.base is None or one.candidate is None else _not_comparable(one) for one in told)


def _not_comparable(metric: MetricChange) -> MetricChange:
    return msgspec.structs.replace(metric, spread=None, verdict=TimeVerdict.not_comparable)


def _metric(
    name: str, read: Callable[[StepTime], int], base: Sequence[StepTime], candidate: Sequence[StepTime]
) -> MetricChange:
    before, after = means_by_step(base, read), means_by_step(candidate, read)
    one, other = _mean(before), _mean(after)
    spread = _spread(deviation(before), len(before), deviation(after), len(after))
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


def _fractions(rows: Sequence[RunRow]) -> tuple[float | None, float | None]:
    measured = sum(row.candidate_bytes or 0 for row in rows)
    expected = sum(row.base_bytes or 0 for row in rows)
    explained = sum(row.candidate_bytes or 0 for row in rows if row.verdict is Verdict.match)
    absent = sum(
        max(0.0, (row.base_bytes or 0) - (row.candidate_bytes or 0)) for row in rows if row.verdict is not Verdict.match
    )
    return (explained / measured if measured else None), (absent / expected if expected else None)


def _is_slower(metrics: Sequence[MetricChange]) -> bool:
    step = metrics[0]
    return step.verdict is TimeVerdict.slower and (step.change or 0) > SLOWER_STEP


def _order(row: RunRow) -> tuple[bool, float, str, bool, int]:
    change = abs((row.candidate_bytes or 0) - (row.base_bytes or 0))
    is_match = row.verdict is Verdict.match
    return (is_match, -change, row.group, row.from_bytes is not None, row.from_bytes or 0)
