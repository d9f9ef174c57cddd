"""A measurement held against a policy: the expected layout, the reference, and limits of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tracelens.checks.baseline import Baseline, share_of_step
from tracelens.checks.codes import Code
from tracelens.checks.expected import check_layout, check_traffic
from tracelens.checks.facts import Facts, finding, waited_for
from tracelens.checks.judged import Judged, judge, not_checked
from tracelens.checks.policy import Level, Policy
from tracelens.checks.regressions import check_overlap, check_time, is_open, why_open
from tracelens.checks.waiting import LARGE_BYTES
from tracelens.errors import Severity
from tracelens.many_ranks import LinkUse, Skew
from tracelens.results import Finding, Limit
from tracelens.topology import Axis
from tracelens.units import format_bytes, format_percent, format_rate, format_time, noun, plural


class Checked(NamedTuple):
    """Every limit that a policy sets, and what was found where one is not kept."""

    limits: tuple[Limit, ...]
    findings: tuple[Finding, ...]


def check(facts: Facts, policy: Policy, baseline: Baseline | None) -> Checked:
    """Hold a run against every limit of a policy; those that the policy has off are left out.

    Args:
        facts: the run, with the comparison where a model is the reference.
        policy: the limits.
        baseline: what good runs did.
    """
    judged = [
        *check_layout(facts, policy),
        *(() if baseline is None else check_traffic(facts, policy, baseline)),
        *(() if baseline is None else check_time(facts, policy, baseline)),
        *(() if baseline is None else check_overlap(facts, policy, baseline)),
        *_check_unexplained(facts, policy),
        *_check_shares(facts, policy),
        *_check_links(facts, policy),
        *_check_stragglers(facts, policy),
        *_check_nodes(facts, policy),
    ]
    weighed = [
        (one.limit, one.finding is None, weigh([] if one.finding is None else [one.finding], policy)) for one in judged
    ]
    kept_on = [(limit, found) for limit, kept, found in weighed if kept or found]
    findings = sorted((finding for _, found in kept_on for finding in found), key=_gravity)
    return Checked(tuple(_told(limit, found) for limit, found in kept_on), tuple(findings))


def _told(limit: Limit, found: tuple[Finding, ...]) -> Limit:
    """The limit as the job takes it: one that is not kept is `broken` where that fails the job, else `exceeded`."""
    fails = any(one.severity is Severity.error for one in found)
    if limit.verdict != "broken" or fails:
        return limit
    return msgspec.structs.replace(limit, verdict="exceeded")


def weigh(findings: list[Finding], policy: Policy) -> tuple[Finding, ...]:
    """Give findings the severity that the policy has for them, and leave out those that it has off."""
    weighed = []
    for one in findings:
        level = policy.severity.get(one.name or "")
        if level is Level.off:
            continue
        weighed.append(one if level is None else msgspec.structs.replace(one, severity=Severity(level.value)))
    return tuple(sorted(weighed, key=_gravity))


def _gravity(finding: Finding) -> int:
    return (Severity.error, Severity.warning, Severity.info).index(finding.severity)


def _check_unexplained(facts: Facts, policy: Policy) -> Iterator[Judged]:
    name, limit = "limits.unexplained_bytes_fraction", policy.limits.unexplained_bytes_fraction
    if limit is None:
        return
    if facts.comparison is None or facts.comparison.explained_bytes_fraction is None:
        yield not_checked(name, "at most", limit, unit="fraction", why="it needs [reference] model")
        return
    unexplained = 1 - facts.comparison.explained_bytes_fraction
    broken = finding(
        Code.bytes_unexplained,
        f"{format_percent(unexplained)} of the bytes are not explained by the ledger, "
        f"at most {format_percent(limit)} may be",
        hint="the comparison lists them, the largest first, each with a reason",
        measured=unexplained,
        limit=limit,
        unit="fraction",
    )
    yield judge(name, "at most", unexplained, limit, unit="fraction", broken=broken if unexplained > limit else None)


# --- time -------------------------------------------------------------------------------------------------


class _Share(NamedTuple):
    """A limit on a part of the step."""

    code: Code
    part: str
    what: str
    hint: str


_SHARES = (
    _Share(
        Code.exposed_communication,
        "exposed_comm",
        "exposed communication",
        "the other findings say which axis, and why",
    ),
    _Share(
        Code.idle_time,
        "idle",
        "idle time",
        "look for launch overhead (CUDA graphs, torch.compile), the data loader and host synchronisation",
    ),
)


def _check_shares(facts: Facts, policy: Policy) -> Iterator[Judged]:
    for one in _SHARES:
        name, limit = f"limits.{one.part}_fraction", getattr(policy.limits, f"{one.part}_fraction")
        if limit is None:
            continue
        share = share_of_step(facts.measurement, one.part)
        if share is None or not facts.span_ns:
            yield not_checked(name, "at most", limit, unit="fraction", why="the trace has no time on a GPU")
            continue
        if is_open(facts, one.part, broken=share > limit):
            yield not_checked(name, "at most", limit, unit="fraction", why=why_open(facts))
            continue
        broken = finding(
            one.code,
            f"{one.what} is {format_percent(share)} of the step ({format_time(share * facts.span_ns)}), "
            f"at most {format_percent(limit)} may be",
            hint=one.hint,
            measured=share,
            limit=limit,
            unit="fraction",
        )
        yield judge(name, "at most", share, limit, unit="fraction", broken=broken if share > limit else None)


def _check_links(facts: Facts, policy: Policy) -> Iterator[Judged]:
    limit = policy.limits.link_fraction
    if limit is None:
        return
    known = [
        link
        for link in facts.measurement.links or ()
        if link.complete and link.link_fraction is not None and link.from_bytes >= LARGE_BYTES
    ]
    if not known:
        why = "no large call was read on all members of a group with a known link"
        yield not_checked("limits.link_fraction", "at least", limit, unit="fraction", why=why)
    for link in known:
        reached = link.link_fraction or 0.0
        broken = _slow(facts, link, reached, limit) if reached < limit else None
        name = f"limits.link_fraction: {link.primitive} in {link.group}, from {format_bytes(link.from_bytes)}"
        yield judge(name, "at least", reached, limit, unit="fraction", broken=broken)


def _slow(facts: Facts, link: LinkUse, reached: float, limit: float) -> Finding:
    group = facts.groups.get(link.group or "")
    return finding(
        Code.bandwidth_under_link,
        f"{link.primitive} of {format_bytes(link.from_bytes)} and more reaches "
        f"{format_rate(link.busbw_bytes_per_s)}, {format_percent(reached)} of the link; "
        f"at least {format_percent(limit)} is wanted",
        hint="compare with nccl-tests on the same nodes",
        axis=None if group is None else group.axis,
        measured=reached,
        limit=limit,
        unit="fraction",
    )


def _check_stragglers(facts: Facts, policy: Policy) -> Iterator[Judged]:
    name, limit = "limits.straggler_wait_fraction", policy.limits.straggler_wait_fraction
    if limit is None:
        return
    if facts.measurement.skew is None or not facts.span_ns:
        yield not_checked(name, "at most", limit, unit="fraction", why="it needs several ranks of a group")
        return
    steps = max(1, len({row.step for row in facts.measurement.time}))
    shares = [
        (waited_for(skew) / steps / facts.span_ns, skew)
        for skew in facts.measurement.skew
        if skew.last is not None and skew.last.systematic and skew.wait_ns
    ]
    late = [(share, skew) for share, skew in shares if share > limit]
    for share, skew in late:
        broken = _straggler(skew, share, share * facts.span_ns, limit)
        yield judge(f"{name}: {skew.group}", "at most", share, limit, unit="fraction", broken=broken)
    if not late:
        worst = max((share for share, _ in shares), default=0.0)
        yield judge(name, "at most", worst, limit, unit="fraction", broken=None)


def _straggler(skew: Skew, share: float, wait_ns: float, limit: float) -> Finding:
    assert skew.last is not None
    return finding(
        Code.straggler,
        f"rank {skew.last.rank} comes last in {skew.last.calls} of {skew.last.of} {skew.primitive} "
        f"{noun(skew.last.of, 'call')}; a rank waits {format_time(wait_ns)} a step on average "
        f"({format_percent(share)})",
        hint=f"what it does more before: {skew.last.cause.value}",
        axis=skew.axis,
        ranks=(skew.last.rank,),
        measured=share,
        limit=limit,
        unit="fraction",
    )


def _check_nodes(facts: Facts, policy: Policy) -> Iterator[Judged]:
    for axis in policy.limits.node_local:
        name = f"limits.node_local: groups of {axis} across nodes"
        groups = [group for group in facts.measurement.groups if group.axis is axis]
        crossing = sum(group.spans_nodes is True for group in groups)
        if not crossing and any(group.spans_nodes is None for group in groups):
            yield not_checked(name, "exactly", 0, unit="groups", why="which ranks its groups hold is not known")
            continue
        if not groups and any(group.axis is None for group in facts.measurement.groups):
            yield not_checked(name, "exactly", 0, unit="groups", why="what some groups are for is not known")
            continue
        broken = _crossing(facts, axis) if crossing else None
        yield judge(name, "exactly", crossing, 0, unit="groups", broken=broken)


def _crossing(facts: Facts, axis: Axis) -> Finding:
    crossing = [group for group in facts.measurement.groups if group.axis is axis and group.spans_nodes]
    group, nodes = crossing[0], facts.measurement.run.gpus_per_node
    return finding(
        Code.group_spans_nodes,
        f"{plural(len(crossing), 'group')} of {axis} {noun(len(crossing), 'crosses', 'cross')} nodes of {nodes} GPUs, "
        f"such as that of {group.size} ranks from {min(group.ranks or (0,))}",
        hint="change the order of the axes, or their degrees",
        axis=axis,
        ranks=group.ranks or (),
        measured=float(group.size) if group.size is not None else None,
        limit=None if nodes is None else float(nodes),
        unit="ranks",
    )
