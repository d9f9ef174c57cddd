"""What the policy expects, and what the reference did: the layout, and the calls and bytes of each kind of call."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tracelens.checks.baseline import Baseline, BaselineRow, KindOfCall, kinds_of, name_kind
from tracelens.checks.codes import Code
from tracelens.checks.facts import Facts, finding
from tracelens.checks.judged import OTHER_RANKS, Judged, judge, not_checked
from tracelens.checks.policy import Policy
from tracelens.collectives import Primitive
from tracelens.comparison.sizes import same_calls
from tracelens.inferred import Inference
from tracelens.results import Finding
from tracelens.topology import Axis
from tracelens.units import format_bytes, noun

# --- layout -----------------------------------------------------------------------------------------------


def check_layout(facts: Facts, policy: Policy) -> Iterator[Judged]:
    """Each field of `[expect]` against the inferred configuration."""
    for field, value in msgspec.structs.asdict(policy.expect).items():
        if value is None:
            continue
        name, expected = f"expect.{field}", _word(value)
        if facts.inference is None:
            yield not_checked(name, "exactly", expected, why="the result holds no inference")
            continue
        seen = getattr(facts.inference.config, field)
        left = facts.inference.undetermined.get(field, ())
        if seen is None and (not left or value in left):
            told = _undetermined(field, value, left, facts.inference)
            undecided = not_checked(name, "exactly", expected, why="the traffic does not settle it")
            yield undecided._replace(finding=told)
            continue
        measured = _word(seen) if seen is not None else " or ".join(map(str, left))
        broken = None if seen == value else _differs(field, seen, value, measured)
        yield judge(name, "exactly", measured, expected, broken=broken)


def _word(value: object) -> int | str:
    """A value of a configuration in the words of TOML."""
    return value if isinstance(value, int) and not isinstance(value, bool) else str(value).lower()


def _undetermined(field: str, value: object, left: tuple[object, ...], inference: Inference) -> Finding:
    rest = f": {', '.join(map(str, left))} are left" if left else ""
    return finding(
        Code.layout_undetermined,
        f"expected {field} = {_word(value)}, which the traffic does not settle{rest}",
        hint="; ".join(inference.would_decide[:2]) or "give more ranks, or leave it out of [expect]",
    )


def _differs(field: str, seen: object, value: object, measured: object) -> Finding:
    numbers = isinstance(_word(value), int) and isinstance(seen, int) and not isinstance(seen, bool)
    return finding(
        Code.layout_differs,
        f"expected {field} = {_word(value)}, and the traffic shows {measured}",
        hint="check the launcher's options; `tracelens analyze --explain` shows what it rests on",
        measured=float(str(seen)) if numbers else None,
        limit=float(str(value)) if numbers else None,
    )


# --- traffic ----------------------------------------------------------------------------------------------


def check_traffic(facts: Facts, policy: Policy, baseline: Baseline) -> Iterator[Judged]:
    """Calls and bytes of each kind of call against the baseline."""
    world, expected = facts.measurement.run.world_size, baseline.world_size
    if world is None or expected is None:
        if world != expected:
            whose = "the trace" if world is None else "the reference"
            why = f"{whose} does not say how many ranks there are"
            yield not_checked(_WORLD_SIZE, "exactly", expected, unit="ranks", why=why)
    else:
        broken = None if world == expected else _another_size(world, expected)
        yield judge(_WORLD_SIZE, "exactly", world, expected, unit="ranks", broken=broken)
        if broken is not None:
            return
    yield from _check_kinds(facts, policy, baseline)


_WORLD_SIZE = "world size of the reference"


def _another_size(world: int, expected: int) -> Finding:
    return finding(
        Code.layout_differs,
        f"the job has {world} {noun(world, 'rank')}, the baseline {expected}",
        hint="compare runs of one size, or make a baseline of this one",
    )


def _check_kinds(facts: Facts, policy: Policy, baseline: Baseline) -> Iterator[Judged]:
    """Every kind of call; what differs on other ranks than the baseline's may be their role, and is not checked."""
    others = facts.measurement.run.ranks != baseline.ranks
    reference = {(row.group, row.primitive, row.dtype): row for row in baseline.rows}
    seen = kinds_of(facts.measurement)
    for key in dict.fromkeys([*reference, *seen]):
        row, kind = reference.get(key), seen.get(key)
        known = next((one.axis for one in (row, kind) if one is not None and one.axis is not None), None)
        group, primitive, dtype = key
        for one in _check_kind(name_kind(group, known, primitive, dtype), row, kind, policy):
            limit = one.limit
            if others and limit.verdict == "broken":
                yield not_checked(limit.name, limit.bound, limit.limit, unit=limit.unit, why=OTHER_RANKS)
            else:
                yield one


def _check_kind(name: str, row: BaselineRow | None, kind: KindOfCall | None, policy: Policy) -> Iterator[Judged]:
    calls, expected = (0.0 if kind is None else kind.calls), (0.0 if row is None else row.calls)
    allowed = 0.0 if row is None else row.calls_differ
    axis = row.axis if row is not None else None if kind is None else kind.axis
    same = same_calls(calls, expected) or abs(calls - expected) <= allowed
    gone = " (new)" if row is None else " (gone)" if kind is None else ""
    broken = None if same else _calls_differ(name, calls, expected, gone, axis)
    yield judge(f"calls: {name}", "about" if allowed else "exactly", calls, expected, unit="calls", broken=broken)
    if same and row is not None and kind is not None:
        yield from _check_bytes(name, row, kind, policy)


def _calls_differ(name: str, calls: float, expected: float, gone: str, axis: Axis | None) -> Finding:
    return finding(
        Code.calls_differ,
        f"{name}: {calls:.6g} {noun(calls, 'call')} a step, the reference has {expected:.6g}{gone}",
        hint="`tracelens diff BASE --against PATH` shows where; if it is meant: `tracelens baseline update`",
        axis=axis,
        measured=calls,
        limit=expected,
        unit="calls",
    )


def _check_bytes(name: str, row: BaselineRow, kind: KindOfCall, policy: Policy) -> Iterator[Judged]:
    if row.wire_bytes is None or kind.wire_bytes is None:
        if row.wire_bytes != kind.wire_bytes:
            whose = "the reference" if row.wire_bytes is None else "the run"
            yield not_checked(
                f"bytes: {name}", "exactly", row.wire_bytes, unit="bytes", why=f"{whose} does not know its bytes"
            )
        return
    relative = max(policy.traffic.relative, row.bytes_differ)
    if row.primitive is Primitive.all_to_all:
        relative = max(relative, policy.traffic.all_to_all_relative)
    allowed = max(relative * row.wire_bytes, policy.traffic.absolute_bytes)
    # means over ranks and steps are rounded to whole bytes
    same = abs(kind.wire_bytes - row.wire_bytes) <= max(allowed, 1.0)
    yield judge(
        f"bytes: {name}",
        "about" if allowed else "exactly",
        kind.wire_bytes,
        row.wire_bytes,
        unit="bytes",
        broken=None
        if same
        else finding(
            Code.bytes_differ,
            f"{name}: {format_bytes(kind.wire_bytes)} a step, the reference has {format_bytes(row.wire_bytes)} "
            f"({kind.wire_bytes - row.wire_bytes:+,.0f} B)",
            hint="`tracelens diff BASE --against PATH` shows by which size of call",
            axis=row.axis,
            measured=kind.wire_bytes,
            limit=row.wire_bytes,
            unit="bytes",
        ),
    )
