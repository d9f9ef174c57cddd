"""What only several ranks together tell: clocks, waiting, pipelines, experts, links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from tracelens.errors import Problem, Severity
from tracelens.many_ranks import Clock, LinkUse, Pipeline, Routing, Skew
from tracelens.measurement.alignment import Alignment, align
from tracelens.measurement.groups import GroupTable
from tracelens.measurement.links import measure_links
from tracelens.measurement.pipeline import measure_pipelines
from tracelens.measurement.routing import measure_routing
from tracelens.measurement.skew import measure_skew, time_calls
from tracelens.summary import RankSummary
from tracelens.topology import format_ranks
from tracelens.units import plural


@dataclass(frozen=True, slots=True)
class Across:
    """The parts of a measurement that need several ranks; all None with one."""

    skew: tuple[Skew, ...] | None = None
    clocks: tuple[Clock, ...] | None = None
    pipeline: Pipeline | None = None
    routing: Routing | None = None
    links: tuple[LinkUse, ...] | None = None
    problems: tuple[Problem, ...] = ()


def measure_across(
    ranks: Sequence[RankSummary],
    table: GroupTable,
    steps: Sequence[Sequence[int]],
    gpus_per_node: int | None,
    *,
    whole: bool,
    links: Mapping[str, float] | None = None,
) -> Across:
    """Put the calls of all ranks side by side and measure what they tell together.

    Args:
        ranks: the summaries.
        table: the groups of the job.
        steps: the indices of the steps to use, per summary.
        gpus_per_node: ranks that share a node.
        whole: use calls outside of all steps too.
        links: line rates, where they are given (see `measure_links`).
    """
    alignment = align(ranks, table)
    if alignment is None:
        return Across()
    if not whole:
        alignment = _within(alignment, ranks, steps)
    timed = time_calls(ranks, alignment)
    devices = tuple(dict.fromkeys(device for summary in ranks for device in summary.head.devices))
    return Across(
        skew=measure_skew(alignment, timed),
        clocks=alignment.clocks,
        pipeline=measure_pipelines(ranks, alignment, timed, steps),
        routing=measure_routing(ranks, alignment, timed),
        links=measure_links(timed, alignment, table.groups(gpus_per_node), devices, gpus_per_node, links),
        problems=_late_profilers(timed),
    )


def _within(alignment: Alignment, ranks: Sequence[RankSummary], steps: Sequence[Sequence[int]]) -> Alignment:
    rows = [(n, ranks[n].head.steps[i].number) for n, use in enumerate(steps) for i in use]
    kept = pl.DataFrame(rows, schema={"rank_index": pl.Int32, "step": pl.Int64}, orient="row")
    return replace(alignment, calls=alignment.calls.join(kept, on=["rank_index", "step"], how="semi"))


def _late_profilers(timed: pl.DataFrame) -> tuple[Problem, ...]:
    late = timed.filter(pl.col("is_late_profiler") & pl.col("is_last"))
    if late.is_empty():
        return ()
    ranks = late["rank"].unique().sort().to_list()
    message = (
        f"the recording of {'rank' if len(ranks) == 1 else 'ranks'} {format_ranks(ranks)} began while others waited "
        f"in a call already: {plural(len(late), 'call is', 'calls are')} left out of waiting, "
        "which shows the profiler's start"
    )
    return (Problem(code="profiler-started-late", severity=Severity.info, message=message),)
