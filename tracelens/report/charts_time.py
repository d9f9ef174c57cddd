"""Charts over time: one step by kind of group, and the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from tracelens import intervals
from tracelens.many_ranks import Block, PipelineRun, Stage
from tracelens.report.charts import SCALE, Chart, Lane, Span, time_ticks
from tracelens.report.timeline import Piece, StepTimeline, TimelineLane
from tracelens.units import format_percent, format_time

_MOST_STAGES = 32
_MOST_BLOCKS = 120
"""Blocks of a stage that are drawn one by one."""
_BINS = 240
_LEAST_HEIGHT = 0.06
_LEAST_WIDTH = 0.8

_BLOCK_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "backward_weight": "backward of the weights",
    "message": "message",
    "other": "other compute",
}


def timeline_chart(timeline: StepTimeline) -> Chart:
    """A lane for compute, one for what is exposed, and one per kind of group."""
    lanes = [_timeline_lane(lane, timeline.span_ns) for lane in timeline.lanes]
    kinds = dict.fromkeys(piece.kind for lane in timeline.lanes for piece in lane.pieces)
    where = "the whole recording" if timeline.step is None else f"step {timeline.step}"
    who = "" if timeline.rank is None else f" of rank {timeline.rank}"
    more = f" {timeline.left_out} more kinds of groups have no lane." if timeline.left_out else ""
    return Chart(
        label=f"Timeline of {where}{who}",
        lanes=tuple(lanes),
        legend=tuple((kind, kind) for kind in kinds),
        ticks=time_ticks(timeline.span_ns),
        note=f"Height is the part of the time that is filled.{more}",
        dense=True,
    )


def _timeline_lane(lane: TimelineLane, span_ns: int) -> Lane:
    return Lane(
        label=lane.label,
        spans=tuple(_timeline_span(piece, span_ns) for piece in lane.pieces),
        value=format_time(lane.busy_ns),
    )


def _timeline_span(piece: Piece, span_ns: int) -> Span:
    filled = "" if piece.filled >= 1 else f", {format_percent(piece.filled)} filled"
    title = f"{piece.kind} {format_time(piece.duration_ns)} at {format_time(piece.start * span_ns)}{filled}"
    width = max((piece.end - piece.start) * SCALE, _LEAST_WIDTH)
    return Span(piece.start * SCALE, width, piece.kind, title, max(piece.filled, _LEAST_HEIGHT))


def pipeline_chart(run: PipelineRun) -> Chart:
    """What each stage does when."""
    stages = run.stages[:_MOST_STAGES]
    lanes = [
        Lane(
            label=f"rank {stage.rank}" if stage.stage is None else f"stage {stage.stage}, rank {stage.rank}",
            spans=_blocks(stage, run) if len(stage.blocks) <= _MOST_BLOCKS else _bins(stage, run),
            value=f"bubble {format_time(stage.bubble_ns)}",
        )
        for stage in stages
    ]
    kinds = dict.fromkeys(span.kind for lane in lanes for span in lane.spans)
    where = "the whole recording" if run.step is None else f"step {run.step}"
    notes = [
        "" if run.clocks else "The clocks of the stages are not known: each is drawn from its own beginning.",
        "" if len(stages) == len(run.stages) else f"{len(run.stages) - len(stages)} more stages are not drawn.",
    ]
    return Chart(
        label=f"Pipeline in {where}",
        lanes=tuple(lanes),
        legend=tuple((kind, _BLOCK_NAMES[kind]) for kind in _BLOCK_NAMES if kind in kinds),
        ticks=time_ticks(run.span_ns),
        note=" ".join(note for note in notes if note),
        dense=True,
    )


def _blocks(stage: Stage, run: PipelineRun) -> tuple[Span, ...]:
    begin = 0 if run.clocks else min((block.start_ns for block in stage.blocks), default=0)
    spans = []
    for block in sorted(stage.blocks, key=lambda block: block.kind not in ("send", "receive")):
        kind = _kind(block)
        number = "" if block.number is None else f" {block.number}"
        width = SCALE * (block.end_ns - block.start_ns) / run.span_ns
        title = f"{block.kind}{number}, {format_time(block.end_ns - block.start_ns)}"
        height = 0.5 if kind == "message" else 1.0
        spans.append(Span(SCALE * (block.start_ns - begin) / run.span_ns, max(width, 0.3), kind, title, height))
    return tuple(spans)


def _bins(stage: Stage, run: PipelineRun) -> tuple[Span, ...]:
    """A stage of many blocks: what fills most of each of equal parts of the time, work before messages."""
    begin = 0 if run.clocks else min((block.start_ns for block in stage.blocks), default=0)
    edges = begin + np.linspace(0, run.span_ns, _BINS + 1).round().astype(np.int64)
    kinds = list(_BLOCK_NAMES)
    filled = np.stack([intervals.covered(_union(stage, kind), edges[:-1], edges[1:]) for kind in kinds])
    work = filled * np.array([[kind != "message"] for kind in kinds])
    most = np.where(work.any(axis=0), work.argmax(axis=0), filled.argmax(axis=0))
    chosen = np.where(filled.any(axis=0), most, len(kinds)).tolist()
    spans, at = [], 0
    for index, group in groupby(chosen):
        length = sum(1 for _ in group)
        if index < len(kinds):
            kind = kinds[index]
            height = 0.5 if kind == "message" else 1.0
            spans.append(Span(SCALE * at / _BINS, SCALE * length / _BINS, kind, _BLOCK_NAMES[kind], height))
        at += length
    return tuple(spans)


def _union(stage: Stage, kind: str) -> intervals.Intervals:
    own = [(block.start_ns, block.end_ns) for block in stage.blocks if _kind(block) == kind]
    return intervals.union([start for start, _ in own], [end for _, end in own])


def _kind(block: Block) -> str:
    return block.kind if block.kind in _BLOCK_NAMES else "message"


def complete_runs(runs: Sequence[PipelineRun]) -> list[PipelineRun]:
    """Runs that can be drawn: those with a length, the complete ones first."""
    return sorted((run for run in runs if run.span_ns > 0 and run.stages), key=lambda run: not run.complete)
