"""A pipeline, drawn and in numbers."""

from __future__ import annotations

import re
from typing import Any

from tracelens.many_ranks import Block, Pipeline, PipelineRun, Stage
from tracelens.report.pipeline import draw, pipeline_lines


def a_stage(stage: int, *blocks: tuple[str, int, int]) -> Stage:
    return Stage(
        stage=stage,
        rank=stage * 2,
        order="".join(kind[0].upper() for kind, _, _ in blocks),
        forward_ns=10_000,
        backward_ns=20_000,
        work_ns=60_000,
        transfer_ns=1_000,
        bubble_ns=30_000,
        wait_in_p2p_ns=25_000,
        blocks=tuple(Block(kind=kind, start_ns=start, end_ns=end) for kind, start, end in blocks),
    )


def a_run(*stages: Stage, **changes: Any) -> PipelineRun:
    defaults: dict[str, Any] = {
        "group": "g0",
        "ranks": tuple(stage.rank for stage in stages),
        "complete": True,
        "order_from": "messages",
        "step": 3,
        "stages": stages,
        "virtual_stages": 1,
        "microbatches": 2,
        "schedule": "gpipe",
        "span_ns": 100,
        "bubble_fraction": 0.36,
        "bubble_over_work": 0.55,
        "ideal_bubble_over_work": 0.5,
        "imbalance": 1.0,
        "clocks": True,
    }
    return PipelineRun(**{**defaults, **changes})


def test_a_stage_is_drawn_to_scale() -> None:
    stage = a_stage(0, ("forward", 0, 20), ("send", 20, 30), ("receive", 40, 60), ("backward", 60, 100))
    assert draw(stage, a_run(stage), width=10) == "FF-.--BBBB"


def test_compute_is_drawn_over_a_message_that_waits_beside_it() -> None:
    stage = a_stage(0, ("receive", 0, 100), ("backward", 50, 70), ("backward_weight", 70, 100))
    assert draw(stage, a_run(stage), width=10) == "-----BBWWW"


def test_without_common_clocks_a_stage_begins_at_its_own_beginning() -> None:
    stage = a_stage(0, ("forward", 1000, 1050))
    assert draw(stage, a_run(stage, clocks=False), width=10) == "FFFFF....."
    assert draw(stage, a_run(stage), width=10) == ".........."


def test_the_bubble_is_told_beside_what_the_formula_promises() -> None:
    run = a_run(a_stage(0, ("forward", 0, 100)), a_stage(1, ("backward", 50, 100)))
    pipeline = Pipeline(
        pipelines=4,
        stages=2,
        virtual_stages=1,
        microbatches=2,
        schedule="gpipe",
        bubble_fraction=0.36,
        ideal_bubble_over_work=0.5,
        runs=(run, run),
    )
    lines = [line.text for line in pipeline_lines(pipeline, every_row=False)]
    words = " ".join(lines[1:3])
    assert "2 stages, 1 virtual a rank, 2 micro-batches, gpipe; bubble 36.0 % of the span" in words
    assert "55.0 % of the" in words
    assert "50.0 %" in words
    assert sum(line.startswith("  rank ") for line in lines) == 2
    assert any(re.search(r"^ +1 +2 +10.0 µs +20.0 µs +60.0 µs +1.00 µs +30.0 µs +25.0 µs$", line) for line in lines)
    every = [line.text for line in pipeline_lines(pipeline, every_row=True)]
    assert sum(line.startswith("  rank ") for line in every) == 4


def test_no_pipeline_is_no_line() -> None:
    assert pipeline_lines(None, every_row=False) == []
