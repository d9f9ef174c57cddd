"""A measurement held against a policy: the expected layout, the reference, and limits of its own."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tracelens.checks.baseline import Baseline, BaselineRow, KindOfCall, kinds_of, part_of_steps
from tracelens.checks.codes import Code
from tracelens.checks.facts import Facts, finding
from tracelens.checks.policy import Level, Policy
from tracelens.checks.regressions import check_overlap, check_time
from tracelens.checks.waiting import LARGE_BYTES
from tracelens.collectives import Primitive
from tracelens.comparison.join import same_calls
from tracelens.errors import Severity
from tracelens.results import Finding
from tracelens.units import format_bytes, format_percent, format_rate, format_time


def check(facts: Facts, policy: Policy, baseline: Baseline | None) -> tuple[Finding, ...]:
    """Everything in which a run breaks a policy.

    Args:
        facts: the run, with the comparison where a model is the reference.
        policy: the limits.
        baseline: what good runs did.
    """
    found = [
        *_check_layout(facts, policy),
        *(() if baseline is None else _check_traffic(facts, policy, baseline)),
        *(() if baseline is None else check_time(facts, policy, baseline)),
        *(() if baseline is None else check_overlap(facts, policy, baseline)),
        *_check_unexplained(facts, policy),
        *_check_shares(facts, policy),
        *_check_links(facts, policy),
        *_check_stragglers(facts, policy),
        *_check_nodes(facts, policy),
    ]
    return weigh(found, policy)


def weigh(findings: list[Finding], policy: Policy) -> tuple[Finding, ...]:
    """Give findings the severity that the policy has for them, and leave out those that it has off."""
    weighed = []
    for one in findings:
        level = policy.severity.get(one.name or "")
        if level is Level.off:
            continue
        weighed.append(one if level is None else msgspec.structs.replace(one, severity=Severity(level.value)))
    order = {Severity.error: 0, Severity.warning: 1, Severity.info: 2}
    return tuple(sorted(weighed, key=lambda one: order[one.severity]))


def not_checked(what: str, why: str) -> Finding:
    """A limit without a measured value."""
    return finding(
        Code.not_checked, f"{what} can't be checked: {why}", hint="give what it needs, or take the limit out"
    )


# --- layout -----------------------------------------------------------------------------------------------


def _check_layout(facts: Facts, policy: Policy) -> Iterator[Finding]:
    expected = {name: value for name, value in msgspec.structs.asdict(policy.expect).items() if value is not None}
    if not expected:
        return
    if facts.inference is None:
        yield not_checked("the expected layout", "the result holds no inference")
        return
    for name, value in expected.items():
        seen = getattr(facts.inference.config, name)
        left = facts.inference.undetermined.get(name, ())
        if seen == value:
            continue
        if seen is None and (not left or value in left):
            rest = f": {', '.join(map(str, left))} are left" if left else ""
            yield finding(
                Code.layout_undetermined,
                f"the traffic does not settle {name}, expected {value}{rest}",
                hint="; ".join(facts.inference.would_decide[:2]) or "give more ranks, or leave it out of [expect]",
            )
            continue
        shown = seen if seen is not None else " or ".join(map(str, left))
        numbers = isinstance(seen, int) and isinstance(value, int) and not isinstance(value, bool)
        yield finding(
            Code.layout_differs,
            f"{name} is {shown}, and {value} is expected",
            hint="check the launcher's options; `tracelens analyze --explain` shows what it rests on",
            measured=float(seen) if numbers else None,
            limit=float(value) if numbers else None,
        )


# --- traffic ----------------------------------------------------------------------------------------------


def _check_traffic(facts: Facts, policy: Policy, baseline: Baseline) -> Iterator[Finding]:
    if baseline.world_size != facts.measurement.run.world_size:
        yield finding(
            Code.layout_differs,
            f"the job has {facts.measurement.run.world_size} ranks, the baseline {baseline.world_size}",
            hint="compare runs of one size, or make a baseline of this one",
        )
        return
    reference = {(row.group, row.primitive, row.dtype): row for row in baseline.rows}
    seen = kinds_of(facts.measurement)
    for key in dict.fromkeys([*reference, *seen]):
        yield from _check_kind(_name(key), reference.get(key), seen.get(key), policy)


def _name(key: tuple[str, Primitive, str | None]) -> str:
    group, primitive, dtype = key
    return f"{primitive.value} of {dtype or 'unknown dtype'} in groups {group}"


def _check_kind(name: str, row: BaselineRow | None, kind: KindOfCall | None, policy: Policy) -> Iterator[Finding]:
    calls, expected = (0.0 if kind is None else kind.calls), (0.0 if row is None else row.calls)
    allowed = 0.0 if row is None else row.calls_differ
    axis = row.axis if row is not None else None if kind is None else kind.axis
    if not same_calls(calls, expected) and abs(calls - expected) > allowed:
        gone = " (new)" if row is None else " (gone)" if kind is None else ""
        yield finding(
            Code.calls_differ,
            f"{name}: {calls:.6g} calls a step, the reference has {expected:.6g}{gone}",
            hint="`tracelens diff BASE --against PATH` shows where; if it is meant: `tracelens baseline update`",
            axis=axis,
            measured=calls,
            limit=expected,
            unit="calls",
        )
        return
    if row is None or kind is None or row.wire_bytes is None or kind.wire_bytes is None:
        return
    relative = max(policy.traffic.relative, row.bytes_differ)
    if row.primitive is Primitive.all_to_all:
        relative = max(relative, policy.traffic.all_to_all_relative)
    difference = abs(kind.wire_bytes - row.wire_bytes)
    # means over ranks and steps are rounded to whole bytes
    if difference > max(relative * row.wire_bytes, policy.traffic.absolute_bytes, 1.0):
        yield finding(
            Code.bytes_differ,
            f"{name}: {format_bytes(kind.wire_bytes)} a step, the reference has {format_bytes(row.wire_bytes)} "
            f"({kind.wire_bytes - row.wire_bytes:+,.0f} B)",
            hint="`tracelens diff BASE --against PATH` shows by which size of call",
            axis=axis,
            measured=kind.wire_bytes,
            limit=row.wire_bytes,
            unit="bytes",
        )


def _check_unexplained(facts: Facts, policy: Policy) -> Iterator[Finding]:
    limit = policy.limits.unexplained_bytes_fraction
    if limit is None:
        return
    if facts.comparison is None or facts.comparison.explained_bytes_fraction is None:
        yield not_checked("limits.unexplained_bytes_fraction", "it needs [reference] model")
        return
    unexplained = 1 - facts.comparison.explained_bytes_fraction
    if unexplained > limit:
        yield finding(
            Code.bytes_unexplained,
            f"{format_percent(unexplained)} of the bytes are not explained by the ledger, "
            f"at most {format_percent(limit)} may be",
            hint="the comparison lists them, the largest first, each with a reason",
            measured=unexplained,
            limit=limit,
            unit="fraction",
        )


# --- time -------------------------------------------------------------------------------------------------


def _check_shares(facts: Facts, policy: Policy) -> Iterator[Finding]:
    limits = policy.limits
    for code, name, limit, what, hint in (
        (
            Code.exposed_communication,
            "exposed_comm",
            limits.exposed_comm_fraction,
            "exposed communication",
            "the other findings say which axis, and why",
        ),
        (
            Code.idle_time,
            "idle",
            limits.idle_fraction,
            "idle time",
            "look for launch overhead (CUDA graphs, torch.compile), the data loader and host synchronisation",
        ),
    ):
        if limit is None:
            continue
        spent = part_of_steps(facts.measurement, name)
        if not spent or not facts.span_ns:
            yield not_checked(f"limits.{name}_fraction", "the trace has no time on a GPU")
            continue
        share = sum(spent) / len(spent) / facts.span_ns
        if share > limit:
            yield finding(
                code,
                f"{what} is {format_percent(share)} of the step ({format_time(share * facts.span_ns)}), "
                f"at most {format_percent(limit)} may be",
                hint=hint,
                measured=share,
                limit=limit,
                unit="fraction",
            )


def _check_links(facts: Facts, policy: Policy) -> Iterator[Finding]:
    limit = policy.limits.link_fraction
    if limit is None:
        return
    known = [
        link
        for link in facts.measurement.links or ()
        if link.complete and link.link_fraction is not None and link.from_bytes >= LARGE_BYTES
    ]
    if not known:
        yield not_checked("limits.link_fraction", "no large call was read on all members of a group with a known link")
    for link in known:
        if (link.link_fraction or 0) < limit:
            group = facts.groups.get(link.group or "")
            yield finding(
                Code.bandwidth_under_link,
                f"{link.primitive} of {format_bytes(link.from_bytes)} and more reaches "
                f"{format_rate(link.busbw_bytes_per_s)}, {format_percent(link.link_fraction)} of the link; "
                f"at least {format_percent(limit)} is wanted",
                hint="compare with nccl-tests on the same nodes",
                axis=None if group is None else group.axis,
                measured=link.link_fraction,
                limit=limit,
                unit="fraction",
            )


def _check_stragglers(facts: Facts, policy: Policy) -> Iterator[Finding]:
    limit = policy.limits.straggler_wait_fraction
    if limit is None:
        return
    if facts.measurement.skew is None or not facts.span_ns:
        yield not_checked("limits.straggler_wait_fraction", "it needs several ranks of a group")
        return
    steps = max(1, len({row.step for row in facts.measurement.time}))
    for skew in facts.measurement.skew:
        if skew.last is None or not skew.last.systematic or not skew.wait_ns:
            continue
        share = skew.wait_ns / steps / facts.span_ns
        if share > limit:
            yield finding(
                Code.straggler,
                f"rank {skew.last.rank} comes last in {skew.last.calls} of {skew.last.of} {skew.primitive} calls; a "
                f"rank waits {format_time(skew.wait_ns / steps)} a step on average ({format_percent(share)})",
                hint=f"what it does more before: {skew.last.cause.value}",
                axis=skew.axis,
                ranks=(skew.last.rank,),
                measured=share,
                limit=limit,
                unit="fraction",
            )


def _check_nodes(facts: Facts, policy: Policy) -> Iterator[Finding]:
    for axis in policy.limits.node_local:
        crossing = [g for g in facts.measurement.groups if g.axis is axis and g.spans_nodes]
        if crossing:
            group = crossing[0]
            yield finding(
                Code.group_spans_nodes,
                f"{len(crossing)} groups of {axis} cross nodes of {facts.measurement.run.gpus_per_node} GPUs, "
                f"such as that of {group.size} ranks from {min(group.ranks or (0,))}",
                hint="change the order of the axes, or their degrees",
                axis=axis,
                ranks=group.ranks or (),
                measured=float(group.size) if group.size is not None else None,
                limit=None if (nodes := facts.measurement.run.gpus_per_node) is None else float(nodes),
                unit="ranks",
            )
