"""Run against run: what changed in calls, bytes and time, and whether the steps differ as much among themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tracelens.compared import RunComparison, RunRow, TimeVerdict, Verdict
from tracelens.comparison.compare import unsized_time_fraction
from tracelens.comparison.kinds import Bucket, Key, KindSums, nothing_of, sum_kinds
from tracelens.comparison.sizes import same_bytes, same_calls
from tracelens.comparison.step_times import common_ranks, compare_steps, is_slower, judge_time, spread_of_means
from tracelens.errors import InputError
from tracelens.results import Measurement
from tracelens.topology import format_ranks
from tracelens.units import noun, plural


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
        InputError: the two have no kind of call in common, nor times; or a saved result lacks the sizes of its calls.
    """
    for name, side in ((base_name, base), (candidate_name, candidate)):
        _refuse_without_sizes(name, side)
    by_axis = _all_labelled(base) and _all_labelled(candidate)
    before, after = sum_kinds(base, by_axis=by_axis), sum_kinds(candidate, by_axis=by_axis)
    if before and after and not before.keys() & after.keys():
        raise InputError(
            f"`{base_name}` and `{candidate_name}` have no kind of call in common",
            hint="compare runs of one job, with equal groups",
        )
    # calls that tell no size may be of any, so how many there are of one is not known
    open_kinds = {kind for side in (before, after) for (kind, _), sums in side.items() if sums.lacks_sizes}
    none_before, none_after = nothing_of(base), nothing_of(candidate)
    rows = [
        _row(key, before.get(key), after.get(key), tolerance, none_before, none_after)
        for key in dict.fromkeys([*before, *after])
        if key[1] is None or key[0] not in open_kinds
    ]
    metrics = compare_steps(base.time, candidate.time)
    if not rows and not any(one.base is not None and one.candidate is not None for one in metrics):
        raise InputError(
            f"`{base_name}` and `{candidate_name}` have nothing in common that could be compared",
            hint="compare runs that communicate, or two that were timed",
        )
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
        inside_tolerance=all(row.verdict is Verdict.match for row in totals) and not is_slower(metrics),
        notes=(*_gaps("base", base), *_gaps("candidate", candidate), *_notes(base, candidate)),
    )


def _refuse_without_sizes(name: str, measurement: Measurement) -> None:
    """Calls that a result counts and tells no more of could only seem to be gone."""
    if not measurement.sizes and any(row.calls_per_step.max > 0 for row in measurement.traffic):
        raise InputError(f"`{name}` does not tell the sizes of its calls", hint="make it again with this version")


def _gaps(word: str, measurement: Measurement) -> Iterator[str]:
    """What is not known of a run, and so not compared."""
    calls = sum(row.calls or 0 for row in measurement.sizes)
    unsized = calls - sum(row.calls_with_bytes or 0 for row in measurement.sizes)
    if unsized:
        yield f"the bytes of {unsized:,} of {plural(calls, 'call')} of the {word} are not known"
    if not measurement.time:
        yield f"the {word} holds no times: what is compared are calls and bytes"
    untimed = sum(row.untimed_calls for row in measurement.time)
    if untimed:
        told = f"{plural(untimed, 'call')} of the {word} {noun(untimed, 'has', 'have')} no kernel in the trace"
        yield f"{told}: what {noun(untimed, 'it', 'they')} changed in its time is not known"


def _notes(one: Measurement, other: Measurement) -> Iterator[str]:
    """What makes two runs hard to compare."""
    base, candidate = one.run, other.run
    if base.world_size != candidate.world_size:
        yield f"the base has {base.world_size or '?'} ranks, the candidate {candidate.world_size or '?'}"
    if base.ranks != candidate.ranks:
        common = common_ranks(one.time, other.time)
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


def _all_labelled(measurement: Measurement) -> bool:
    used = {row.group for row in measurement.sizes if (row.wire_bytes_per_step or 0) > 0}
    return all(group.axis is not None for group in measurement.groups if group.id in used)


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
    spread = spread_of_means(one.spread_ns, one.steps, other.spread_ns, other.steps)
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


def _fractions(rows: Sequence[RunRow]) -> tuple[float | None, float | None]:
    measured = sum(row.candidate_bytes or 0 for row in rows)
    expected = sum(row.base_bytes or 0 for row in rows)
    explained = sum(row.candidate_bytes or 0 for row in rows if row.verdict is Verdict.match)
    absent = sum(
        max(0.0, (row.base_bytes or 0) - (row.candidate_bytes or 0)) for row in rows if row.verdict is not Verdict.match
    )
    return (explained / measured if measured else None), (absent / expected if expected else None)


def _order(row: RunRow) -> tuple[bool, float, str, bool, int]:
    change = abs((row.candidate_bytes or 0) - (row.base_bytes or 0))
    is_match = row.verdict is Verdict.match
    return (is_match, -change, row.group, row.from_bytes is not None, row.from_bytes or 0)
