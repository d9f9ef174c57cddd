"""Clocks, slow GPUs, schedules and loads that the generator puts into traces are found in them."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens.engine import summarize_all
from tracelens.many_ranks import Cause
from tracelens.measurement.measure import measure
from tracelens.results import Measurement
from tracelens.trace.discover import discover

GENERATOR = Path(__file__).resolve().parents[2] / "fixtures" / "generate.py"
SEED, SKEW_PCT, CLOCK_US = 1, 20, 250


def generated(folder: Path, case: str, *arguments: str) -> Measurement:
    options = ["--clock-offset", str(CLOCK_US), "--skew", str(SKEW_PCT), "--seed", str(SEED), "--compression", "none"]
    subprocess.run([sys.executable, str(GENERATOR), case, "-o", str(folder), *options, *arguments], check=True)
    return measure(summarize_all(discover([folder / f"rank{rank}_trace.json" for rank in range(8)])))


def pace(rank: int) -> float:
    """How much slower than a perfect one the generator makes the GPU of a rank."""
    return random.Random(1000 * SEED + rank).uniform(0, SKEW_PCT)


def test_clocks_and_the_slowest_gpu_are_found(tmp_path: Path) -> None:
    found = generated(tmp_path, "fsdp8", "--layers", "3")
    assert found.clocks is not None
    assert [clock.offset_ns for clock in found.clocks] == [CLOCK_US * 1000 * rank for rank in range(8)]
    assert found.skew is not None
    [scatter] = [row for row in found.skew if row.primitive == "reduce_scatter"]
    assert scatter.last is not None
    assert scatter.last.rank == max(range(8), key=pace)
    assert (scatter.last.systematic, scatter.last.cause) == (True, Cause.compute)
    assert scatter.unmatched_calls == scatter.conflicting_calls == 0


@pytest.mark.parametrize("microbatches", [4, 8])
def test_the_schedule_of_a_pipeline_is_found(tmp_path: Path, microbatches: int) -> None:
    found = generated(tmp_path, "pp4_1f1b", "--micro-batches", str(microbatches)).pipeline
    assert found is not None
    assert (found.pipelines, found.stages, found.virtual_stages, found.microbatches, found.schedule) == (
        2, 4, 1, microbatches, "1f1b",
    )  # fmt: skip
    assert {run.ranks for run in found.runs} == {(0, 2, 4, 6), (1, 3, 5, 7)}
    for run in found.runs:
        assert run.bubble_over_work is not None
        assert run.ideal_bubble_over_work == 3 / microbatches


def test_the_loads_of_experts_are_found(tmp_path: Path) -> None:
    found = generated(tmp_path, "ep8_moe").routing
    assert found is not None
    assert (found.dispatches, found.unpaired) == (16, 0)
    for call in found.calls:
        assert sum(call.sent) == sum(call.received)
        assert call.imbalance == pytest.approx(max(call.received) / (sum(call.received) / 8))
    assert found.explained_wait_fraction is not None
    assert 0 < found.explained_wait_fraction <= 1
