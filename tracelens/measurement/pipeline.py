"""Pipelines as they ran: stages, schedule, and the bubble with what hides inside SendRecv kernels.

The span of a pipeline is common to its stages: from the first compute of any to the last backward of any. What a stage
does not spend on compute, on other communication or on the transfer of messages is bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import polars as pl

from tracelens.many_ranks import Block, Pipeline, PipelineRun, Stage
from tracelens.measurement.alignment import P2P, Alignment
from tracelens.measurement.blocks import BACKWARD, FORWARD, OTHER, WEIGHT, ComputeBlock, StageStep, cut_blocks
from tracelens.measurement.stages import count_microbatches, name_schedule, order_stages
from tracelens.summary import RankSummary

MOST_PIPELINES = 16
"""Pipelines measured: those of a job are alike, and thousands of drawings help nobody."""

_LEAST_MESSAGES = 2
"""A message that is sent once makes no pipeline."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A pipeline in one step: where its ranks' summaries are, and their steps in them."""

    group: str | None
    members: tuple[int, ...]
    """All ranks that send or receive, read or not."""
    ranks: tuple[int, ...]
    step: int | None
    indices: dict[int, tuple[int, int]]
    """Rank to (number of its summary, index of the step in it)."""


def measure_pipelines(
    ranks: Sequence[RankSummary], alignment: Alignment, timed: pl.DataFrame, steps: Sequence[Sequence[int]]
) -> Pipeline | None:
    """Measure the pipelines of a job; None where no ranks exchange messages as stages do.

    Args:
        ranks: the summaries.
        alignment: their calls.
        timed: as `skew.time_calls` gives them.
        steps: the indices of the steps to use, per summary.
    """
    places = _find_places(ranks, alignment, steps)
    groups = list(dict.fromkeys((place.group, place.ranks) for place in places))
    chosen = set(groups[:MOST_PIPELINES])
    offsets = dict(alignment.offsets().iter_rows())
    transfers = _transfers(timed)
    runs = [
        run
        for place in places
        if (place.group, place.ranks) in chosen and (run := _run(place, ranks, offsets, transfers)) is not None
    ]
    if not runs:
        return None
    fractions = [run.bubble_fraction for run in runs if run.bubble_fraction is not None]
    first = max(runs, key=lambda run: len(run.stages))
    return Pipeline(
        pipelines=len(groups),
        stages=len(first.stages),
        virtual_stages=first.virtual_stages,
        microbatches=first.microbatches,
        schedule=first.schedule,
        bubble_fraction=fmean(fractions) if fractions else None,
        ideal_bubble_over_work=first.ideal_bubble_over_work,
        runs=tuple(runs),
    )


def _find_places(ranks: Sequence[RankSummary], alignment: Alignment, steps: Sequence[Sequence[int]]) -> list[_Place]:
    """Process groups with messages both ways, per step that all of their ranks recorded."""
    lanes = alignment.lanes.filter(pl.col("src").is_not_null()).join(alignment.groups, on="pg")
    members = (
        lanes.group_by("run", "group", "name")
        .agg(
            members=pl.concat_list("src", "dst").explode().unique().sort(),
            ranks=pl.col("ranks").explode().unique().sort(),
        )
        .filter(pl.col("ranks").list.len() > 1)
        .sort("run", "ranks")
    )
    held: dict[int | None, dict[int | None, tuple[int, int]]] = {}
    for n, summary in enumerate(ranks):
        held.setdefault(summary.rank, {}).update({summary.head.steps[i].number: (n, i) for i in steps[n]})
    places = []
    for _, group, _, all_stages, stages in members.iter_rows():
        common = set.intersection(*(set(held[stage]) for stage in stages))
        for step in sorted(common, key=lambda number: number or 0):
            indices = {stage: held[stage][step] for stage in stages}
            places.append(_Place(group, tuple(all_stages), tuple(stages), step, indices))
    return places


def _transfers(timed: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Per summary the transfer of its message kernels: `kernel`, `transfer_ns`."""
    messages = timed.filter(pl.col("what") == P2P).group_by("rank_index", "kernel").agg(pl.col("transfer_ns").max())
    return {int(key[0]): part for key, part in messages.partition_by("rank_index", as_dict=True).items()}


def _run(
    place: _Place, ranks: Sequence[RankSummary], offsets: dict[int, int], transfers: dict[int, pl.DataFrame]
) -> PipelineRun | None:
    steps = {rank: cut_blocks(ranks[n], n, i) for rank, (n, i) in place.indices.items()}
    if any(not step.of_kind(BACKWARD) and not step.of_kind(FORWARD) for step in steps.values()):
        return None
    if all(len(step.messages) < _LEAST_MESSAGES for step in steps.values()):
        return None
    clocks = all(rank in offsets for rank in place.ranks)
    shift = {rank: offsets[rank] if clocks else _begin(steps[rank]) for rank in place.ranks}
    sends = {rank: at - shift[rank] for rank, step in steps.items() if (at := _first_send(ranks, step)) is not None}
    found = order_stages(steps, sends if clocks else {})
    if found is None:
        return None
    order, source = found
    window = (
        min(_begin(step) - shift[rank] for rank, step in steps.items()),
        max(_end(step) - shift[rank] for rank, step in steps.items()),
    )
    numbers = _number_stages(order, place.members)
    stages = tuple(
        _stage(numbers[rank], steps[rank], ranks, transfers, (window[0] + shift[rank], window[1] + shift[rank]))
        for rank in order
    )
    return _summarize(place, stages, source, steps, window[1] - window[0], clocks=clocks)


def _number_stages(order: Sequence[int], members: Sequence[int]) -> dict[int, int | None]:
    """Stages by place in the order; where ranks are missing by place among all, if the order is that of the ranks."""
    if len(order) == len(members):
        return {rank: place for place, rank in enumerate(order)}
    ascending = list(order) == sorted(order)
    return {rank: members.index(rank) if ascending else None for rank in order}


def _summarize(
    place: _Place, stages: tuple[Stage, ...], source: str, steps: dict[int, StageStep], span: int, *, clocks: bool
) -> PipelineRun:
    order = tuple(stage.rank for stage in stages)
    complete = len(order) == len(place.members)
    microbatches, virtual = count_microbatches(order, steps) if complete else (None, None)
    ideal = None if not microbatches or not virtual else (len(order) - 1) / (virtual * microbatches)
    work = [stage.work_ns for stage in stages]
    total, bubble = sum(work), sum(stage.bubble_ns for stage in stages)
    told = clocks and complete
    return PipelineRun(
        group=place.group,
        ranks=order,
        complete=complete,
        order_from=source,
        step=place.step,
        stages=stages,
        virtual_stages=virtual,
        microbatches=microbatches,
        schedule=name_schedule([stage.order for stage in stages], microbatches, virtual),
        span_ns=span,
        bubble_fraction=bubble / len(stages) / span if told and span else None,
        bubble_over_work=bubble / total if told and total else None,
        ideal_bubble_over_work=ideal,
        imbalance=max(work) / fmean(work) if total else None,
        clocks=clocks,
    )


def _begin(step: StageStep) -> int:
    return min(block.start_ns for block in step.blocks if block.kind != OTHER)


def _end(step: StageStep) -> int:
    return max(block.end_ns for block in step.blocks if block.kind != OTHER)


def _first_send(ranks: Sequence[RankSummary], step: StageStep) -> int | None:
    sends = step.messages.filter(pl.col("primitive") == "send")["call"]
    started = ranks[step.rank_index].calls.filter(pl.col("call").is_in(sends.implode()))["gpu_start_ns"].drop_nulls()
    return min(started.to_list(), default=None)


def _stage(
    number: int | None,
    step: StageStep,
    ranks: Sequence[RankSummary],
    transfers: dict[int, pl.DataFrame],
    window: tuple[int, int],
) -> Stage:
    """What a stage does in the window of its pipeline, on its own clock."""
    summary = ranks[step.rank_index]
    inside = [b for b in step.blocks if b.start_ns >= window[0] and b.end_ns <= window[1]]
    compute = sum(block.busy_ns for block in inside)
    kernels = _message_kernels(summary, step)
    messages, collectives = _exposed(summary, kernels, window)
    transfer = min(_exposed_transfer(summary, kernels, transfers.get(step.rank_index)), messages)
    work = compute + collectives
    bubble = max(0, window[1] - window[0] - work - transfer)
    return Stage(
        stage=number,
        rank=step.rank,
        order=step.order,
        forward_ns=_typical(step, FORWARD),
        backward_ns=_typical(step, BACKWARD) + _typical(step, WEIGHT),
        work_ns=work,
        transfer_ns=transfer,
        bubble_ns=bubble,
        wait_in_p2p_ns=min(messages - transfer, bubble),
        blocks=_draw(step, kernels, window[0]),
    )


def _typical(step: StageStep, kind: str) -> int:
    return round(median([block.busy_ns for block in step.of_kind(kind)] or [0]))


def _message_kernels(summary: RankSummary, step: StageStep) -> pl.DataFrame:
    """The kernels that carry the step's messages: `kernel`, `start_ns`, `end_ns`, `receives`."""
    serving = (
        summary.links.join(step.messages, on="call")
        .group_by("kernel")
        .agg(receives=(pl.col("primitive") == "recv").any())
    )
    return summary.kernels.select("kernel", "start_ns", "end_ns").join(serving, on="kernel").sort("start_ns", "kernel")


def _exposed_transfer(summary: RankSummary, kernels: pl.DataFrame, transfers: pl.DataFrame | None) -> int:
    """What the transfers of messages take outside of compute: of each kernel no more than is exposed of it."""
    if transfers is None:
        return 0
    uncovered = (
        summary.segments.join(kernels.select("kernel"), on="kernel")
        .group_by("kernel")
        .agg(exposed_ns=(pl.col("length_ns") - pl.col("covered_ns")).sum())
    )
    return int(
        uncovered.join(transfers, on="kernel").select(pl.min_horizontal("exposed_ns", "transfer_ns").sum()).item()
    )


def _exposed(summary: RankSummary, kernels: pl.DataFrame, window: tuple[int, int]) -> tuple[int, int]:
    """Time in the window that no compute covers, in messages and (beside them) in other communication."""
    inside = summary.kernels.filter((pl.col("start_ns") >= window[0]) & (pl.col("end_ns") <= window[1]))
    carrying = kernels.select("kernel", carries=pl.lit(value=True))
    running = summary.segments.join(inside.select("kernel"), on="kernel").join(carrying, on="kernel", how="left")
    exposed = running.group_by("segment").agg(
        exposed_ns=(pl.col("length_ns") - pl.col("covered_ns")).first(),
        only_messages=pl.col("carries").is_not_null().all(),
    )
    messages = int(exposed.filter("only_messages")["exposed_ns"].sum())
    return messages, int(exposed["exposed_ns"].sum()) - messages


def _draw(step: StageStep, kernels: pl.DataFrame, begin_ns: int) -> tuple[Block, ...]:
    counts: dict[str, int] = {}
    blocks = []
    for block in step.blocks:
        number = counts[block.kind] = counts.get(block.kind, -1) + 1
        blocks.append(_block(block, None if block.kind == OTHER else number, begin_ns))
    for _, start, end, receives in kernels.iter_rows():
        kind = "receive" if receives else "send"
        blocks.append(Block(kind=kind, start_ns=start - begin_ns, end_ns=end - begin_ns))
    return tuple(sorted(blocks, key=lambda block: (block.start_ns, block.end_ns, block.kind)))


def _block(block: ComputeBlock, number: int | None, begin_ns: int) -> Block:
    return Block(kind=block.kind, start_ns=block.start_ns - begin_ns, end_ns=block.end_ns - begin_ns, number=number)
