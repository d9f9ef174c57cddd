"""Findings about waiting: bubbles, experts and bandwidth, which need several ranks, and idle GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.checks.codes import Code
from tracelens.checks.facts import Facts, finding
from tracelens.results import Finding
from tracelens.topology import Axis
from tracelens.units import format_bytes, format_percent, format_rate, format_time, noun, plural

_WORTH_BUBBLE, _MORE_THAN_PROMISED = 0.02, 1.2
IMBALANCED = 1.3
"""Most received over the mean: above, the busiest rank sets the pace."""
SLOW_LINK = 0.5
"""Share of the line rate; large calls of NCCL reach about 0.8."""
LARGE_BYTES = 16 << 20
LARGE_IDLE = 0.25
"""Part of the step; launch gaps of a healthy job are a few percent."""


def find_large_bubble(facts: Facts) -> Iterator[Finding]:
    """The schedule promises (p-1)/(v·m) of the work as a bubble, for equal stages; more is imbalance or waiting."""
    pipeline = facts.measurement.pipeline
    if pipeline is None:
        return
    told = [
        (run.bubble_over_work, run.ideal_bubble_over_work, run.imbalance)
        for run in pipeline.runs
        if run.bubble_over_work is not None and run.ideal_bubble_over_work is not None
    ]
    if not told:
        return
    seen = sum(one[0] for one in told) / len(told)
    promised = sum(one[1] for one in told) / len(told)
    if seen - promised < _WORTH_BUBBLE or seen < _MORE_THAN_PROMISED * promised:
        return
    imbalance = max((one[2] for one in told if one[2] is not None), default=None)
    unequal = "" if imbalance is None else f"; the longest stage works {imbalance:.2f} times the mean"
    rows = facts.rows(lambda row: facts.axis_of(row) is Axis.pp)
    work = [stage.work_ns for run in pipeline.runs for stage in run.stages]
    beyond = (seen - promised) * sum(work) / len(work) if work else 0.0
    yield finding(
        Code.bubble_over_promise,
        f"the pipeline's bubble is {format_percent(seen)} of its work; {pipeline.schedule or 'the schedule'} with "
        f"{pipeline.microbatches or '?'} "
        f"{noun(pipeline.microbatches or 2, 'micro-batch promises', 'micro-batches promise')} "
        f"{format_percent(promised)}{unequal}",
        hint="balance the stages (layers, embedding and head), use more micro-batches or virtual stages",
        axis=Axis.pp,
        measured=seen,
        limit=promised,
        unit="fraction",
        claimed_ns=facts.claims.take(rows, at_most=beyond),
        coverage=f"{plural(len(told), 'pipeline and step', 'pipelines and steps')}, "
        f"{plural(len(facts.measurement.run.ranks), 'rank')}",
    )


def find_unequal_experts(facts: Facts) -> Iterator[Finding]:
    """The rank that receives most computes longest; in the combine everybody waits for it."""
    routing = facts.measurement.routing
    if routing is None or routing.imbalance_median is None or routing.imbalance_median < IMBALANCED:
        return
    rows = facts.rows(lambda row: facts.axis_of(row) is Axis.ep)
    ranks = len(facts.measurement.run.ranks) or 1
    steps = max(1, len({row.step for row in facts.measurement.time}))
    waited = (routing.combine_wait_ns or 0) / ranks / steps
    explained = (
        ""
        if routing.explained_wait_fraction is None
        else f"; unequal loads explain {format_percent(routing.explained_wait_fraction)} of the waiting"
    )
    busiest = "" if routing.busiest is None else f", most often rank {routing.busiest}"
    yield finding(
        Code.experts_imbalanced,
        f"the busiest rank receives {routing.imbalance_median:.2f} times the mean (at most "
        f"{routing.imbalance_max or 0:.2f}){busiest}; {format_time(waited)} of waiting in a step{explained}",
        hint="an auxiliary loss, biases of the router, or a capacity limit even the loads out; it is no network fault",
        axis=Axis.ep,
        ranks=() if routing.busiest is None else (routing.busiest,),
        measured=routing.imbalance_median,
        limit=IMBALANCED,
        claimed_ns=facts.claims.take(rows, at_most=waited),
        coverage=f"{plural(routing.dispatches, 'dispatch', 'dispatches')} and {plural(routing.combines, 'combine')} "
        f"of {plural(ranks, 'rank')}",
    )


def find_slow_links(facts: Facts) -> Iterator[Finding]:
    """Large calls whose transfer, waiting left out, is far below what the link does."""
    slow = [
        link
        for link in facts.measurement.links or ()
        if link.complete
        and link.link_fraction is not None
        and link.link_fraction < SLOW_LINK
        and link.from_bytes >= LARGE_BYTES
        and link.group in facts.groups
    ]
    if not slow:
        return
    worst = min(slow, key=lambda link: link.link_fraction or 0)
    group = facts.groups[worst.group or ""]
    rows = facts.rows(lambda row: row.group == group.id and row.primitive.value == worst.primitive)
    lost = facts.mean(rows, lambda row: row.exposed_ns_per_step) * (1 - (worst.link_fraction or 0))
    yield finding(
        Code.bandwidth_under_link,
        f"{worst.primitive} of {format_bytes(worst.from_bytes)} and more in a group of {group.size} reaches "
        f"{format_rate(worst.busbw_bytes_per_s)}, {format_percent(worst.link_fraction)} of the link's "
        f"{format_rate(worst.link_bytes_per_s)}",
        hint="compare with nccl-tests on the same nodes; look at NCCL_DEBUG=INFO for the transport and the number of "
        "channels, and at what computes on the GPU meanwhile",
        axis=group.axis,
        ranks=group.ranks or (),
        measured=worst.link_fraction,
        limit=SLOW_LINK,
        unit="fraction",
        claimed_ns=facts.claims.take(rows, at_most=lost),
        coverage=plural(worst.calls, "call"),
    )


def find_idle(facts: Facts) -> Iterator[Finding]:
    """Steps in which nothing runs on the GPU for a large part of the time."""
    steps = [row for row in facts.measurement.time if row.step is not None and row.span_ns]
    if not steps:
        return  # a window without steps holds whatever was recorded around the work
    idle, span = sum(row.idle_ns for row in steps), sum(row.span_ns for row in steps)
    if idle < LARGE_IDLE * span:
        return
    yield finding(
        Code.idle_time,
        f"{format_percent(idle / span)} of the step is idle ({format_time(idle / len(steps))} of "
        f"{format_time(span / len(steps))}): neither compute nor communication nor copies run on the GPU",
        hint="look for launch overhead (CUDA graphs, torch.compile), the data loader and host synchronisation; a "
        "profiler that records stacks and shapes adds to it",
        measured=idle / span,
        limit=LARGE_IDLE,
        unit="fraction",
        coverage=f"{len({row.step for row in steps})} steps, {len({row.rank for row in steps})} ranks",
    )
