"""Summaries to one measurement: groups, classes of ranks, traffic, time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import polars as pl

from tracelens.engine import Summaries
from tracelens.errors import InputError, UsageError
from tracelens.measurement.across import measure_across
from tracelens.measurement.classes import find_classes
from tracelens.measurement.dilation import measure_dilation
from tracelens.measurement.groups import GroupTable
from tracelens.measurement.jobs import gather_job
from tracelens.measurement.rows import merge_group_time, merge_traffic
from tracelens.measurement.run import describe_run, find_node_size
from tracelens.measurement.sizes import measure_sizes
from tracelens.measurement.traffic import measure_traffic, stack
from tracelens.results import Measurement, Overlap, StepTime
from tracelens.summary import RankSummary


def measure(
    summaries: Summaries | Sequence[RankSummary],
    *,
    steps: tuple[int, int | None] | None = None,
    per_rank: bool = False,
    gpus_per_node: int | None = None,
    links: Mapping[str, float] | None = None,
) -> Measurement:
    """Measure a job from the summaries of its ranks.

    Args:
        summaries: any subset of the ranks of one job; files of other jobs or runs are left out and named.
        steps: first and last profiler step to use, both included, None as last for all from the first on; all when left
            out.
        per_rank: keep every rank on rows of its own instead of one row per class of ranks.
        gpus_per_node: ranks that share a node, in the order of their numbers.
        links: line rates `inside` and `across` nodes, bytes/s per GPU and direction, instead of what the GPU is sold
            with.

    Raises:
        InputError: there is nothing to measure.
        UsageError: no rank has a step in the range.
    """
    job = gather_job(summaries)
    ranks = job.ranks
    if not ranks:
        raise InputError("no trace was given", hint="give at least one trace or summary")
    nodes, assumed = find_node_size(ranks, gpus_per_node)
    table = GroupTable(ranks)
    chosen = [_choose_steps(rank, steps) for rank in ranks]
    if steps is not None and not any(chosen):
        raise UsageError(_no_steps(ranks, steps), hint="give a range that the traces hold, such as --steps 3:5")
    rows, totals = measure_traffic(ranks, table, chosen)
    classes = list(range(len(ranks))) if per_rank else find_classes(rows, len(ranks))
    across = measure_across(ranks, table, chosen, nodes, whole=steps is None, links=links)
    met = (*job.problems, *assumed, *across.problems)
    return Measurement(
        run=describe_run(ranks, chosen, nodes, job.skipped, met),
        groups=table.groups(nodes),
        traffic=merge_traffic(rows, ranks, classes, chosen),
        group_time=merge_group_time(totals, classes, chosen),
        sizes=measure_sizes(ranks, table, chosen, classes),
        time=_step_times(ranks, chosen),
        overlap=tuple(_overlap(rank) for rank in ranks),
        skew=across.skew,
        clocks=across.clocks,
        pipeline=across.pipeline,
        routing=across.routing,
        dilation=measure_dilation(ranks),
        links=across.links,
    )


def _choose_steps(summary: RankSummary, steps: tuple[int, int | None] | None) -> list[int]:
    spans = summary.head.steps
    if steps is None:
        return list(range(len(spans)))
    first, last = steps
    last = sys.maxsize if last is None else last
    return [i for i, span in enumerate(spans) if span.number is not None and first <= span.number <= last]


def _no_steps(ranks: Sequence[RankSummary], steps: tuple[int, int | None]) -> str:
    held = sorted({span.number for rank in ranks for span in rank.head.steps if span.number is not None})
    have = f"they hold {held[0]} to {held[-1]}" if held else "they hold no ProfilerStep"
    to = "on" if steps[1] is None else f"to {steps[1]}"
    return f"no trace has a step from {steps[0]} {to}: {have}"


def _step_times(ranks: Sequence[RankSummary], steps: Sequence[Sequence[int]]) -> tuple[StepTime, ...]:
    used = {(n, step): ranks[n].head.steps[step].number for n, use in enumerate(steps) for step in use}
    budgets = stack([summary.budget for summary in ranks]).with_columns(pl.col("untimed_calls").fill_null(0))
    rows = budgets.iter_rows(named=True)
    return tuple(
        StepTime(rank=ranks[place[0]].rank, step=used[place], **row)
        for row in rows
        if (place := (row.pop("rank_index"), row.pop("step"))) in used
    )


def _overlap(summary: RankSummary) -> Overlap:
    comm = summary.head.comm_ns
    return Overlap(rank=summary.rank, comm_overlap_pct=100 * summary.head.overlap_ns / comm if comm else None)
