"""The pipeline: what each stage does when, drawn and in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.many_ranks import Block, Pipeline, PipelineRun, Stage
from tracelens.report.lines import TITLE, Line, limit, note, titled_table
from tracelens.report.table import Column
from tracelens.units import UNKNOWN, format_percent, format_time, noun, plural

_MOST_STAGES = 16
_DRAWN = 84
_LETTERS = {"forward": "F", "backward": "B", "backward_weight": "W", "other": "o", "send": "-", "receive": "-"}

_COLUMNS = [
    Column("stage"),
    Column("rank"),
    Column("forward"),
    Column("backward"),
    Column("work"),
    Column("transfer"),
    Column("bubble"),
    Column("of it in SendRecv"),
]


def pipeline_lines(pipeline: Pipeline | None, *, every_row: bool) -> list[Line]:
    """The schedule in words, then the first run: its stages drawn over time, and their numbers."""
    if pipeline is None:
        return []
    lines = [Line("Pipeline", TITLE), *note(_in_words(pipeline), style="")]
    for run in pipeline.runs[: limit(1, every_row=every_row)]:
        lines += _run(run, every_row=every_row)
    return lines


def _in_words(pipeline: Pipeline) -> str:
    parts = [
        plural(pipeline.stages, "stage"),
        f"{_known(pipeline.virtual_stages)} virtual a rank",
        f"{_known(pipeline.microbatches)} {noun(pipeline.microbatches or 2, 'micro-batch', 'micro-batches')}",
        pipeline.schedule or "a schedule of its own",
    ]
    text = f"{', '.join(parts)}; bubble {format_percent(pipeline.bubble_fraction)} of the span"
    if pipeline.ideal_bubble_over_work is not None:
        measured = [run.bubble_over_work for run in pipeline.runs if run.bubble_over_work is not None]
        mean = sum(measured) / len(measured) if measured else None
        text += (
            f", {format_percent(mean)} of the work where (p-1)/(v·m) promises "
            f"{format_percent(pipeline.ideal_bubble_over_work)}"
        )
    return text


def _run(run: PipelineRun, *, every_row: bool) -> list[Line]:
    stages = run.stages[: limit(_MOST_STAGES, every_row=every_row)]
    rows = [
        [
            _known(stage.stage),
            str(stage.rank),
            *(format_time(value) for value in (stage.forward_ns, stage.backward_ns, stage.work_ns)),
            *(format_time(value) for value in (stage.transfer_ns, stage.bubble_ns, stage.wait_in_p2p_ns)),
        ]
        for stage in stages
    ]
    where = "whole recording" if run.step is None else f"step {run.step}"
    title = f"  {where}, {format_time(run.span_ns)}; F forward, B backward, W of the weights, - message, . nothing"
    drawing = [Line(f"  rank {stage.rank:>5}  {draw(stage, run)}") for stage in stages]
    rest = len(run.stages) - len(stages)
    more = [Line(f"  … {rest:,} more stages; all with --per-rank or --format json")] if rest else []
    return [Line(title), *drawing, *titled_table("Stages", _COLUMNS, rows), *more]


def draw(stage: Stage, run: PipelineRun, *, width: int = _DRAWN) -> str:
    """A stage as `width` letters over the span of its run: the block that fills most of each letter's time.

    Without common clocks every stage is drawn from its own beginning.
    """
    begin = 0 if run.clocks else min((block.start_ns for block in stage.blocks), default=0)
    cells = [_letter(stage.blocks, begin, run.span_ns, index, width) for index in range(width)]
    return "".join(cells).rstrip()


def _letter(blocks: Sequence[Block], begin: int, span: int, index: int, width: int) -> str:
    left, right = begin + span * index // width, begin + span * (index + 1) // width
    filled: dict[str, int] = {}
    for block in blocks:
        inside = min(block.end_ns, right) - max(block.start_ns, left)
        if inside > 0:
            letter = _LETTERS.get(block.kind, "o")
            filled[letter] = filled.get(letter, 0) + inside
    work = {letter: length for letter, length in filled.items() if letter != "-"}
    chosen = work or filled
    return max(chosen, key=lambda letter: chosen[letter]) if chosen else "."


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else str(number)
