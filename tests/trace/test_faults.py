"""Faults of recordings that only their numbers show."""

from __future__ import annotations

import polars as pl
import pytest

from tracelens.summary import BUDGET, StepSpan
from tracelens.trace.faults import check_last_step


def budget(*steps: tuple[int, int]) -> tuple[pl.DataFrame, list[StepSpan]]:
    rows = [{"step": n, "span_ns": span, "compute_ns": compute} for n, (span, compute) in enumerate(steps)]
    spans = [StepSpan(number=n, cpu_start_ns=n, cpu_end_ns=n + 1) for n in range(len(steps))]
    return pl.DataFrame(rows, schema=BUDGET), spans


def test_a_last_step_that_holds_the_end_of_the_one_before_is_told() -> None:
    # the two-level recommendation trace: 36 ms of compute a step, and 66 in the last
    (told,) = check_last_step(*budget((208, 36), (216, 36), (216, 36), (370, 66)))
    assert told[0] == "last-step-long"
    assert "1.83 times" in told[1]


@pytest.mark.parametrize(
    "steps",
    [
        [(100, 60), (110, 61), (105, 60)],  # alike
        [(100, 60), (100, 60), (180, 60)],  # the last one waits: that is its own time
        [(100, 60), (200, 120)],  # two steps tell nothing
        [(300, 90), (100, 60), (100, 60)],  # a slow first step
    ],
)
def test_other_steps_are_not(steps: list[tuple[int, int]]) -> None:
    assert check_last_step(*budget(*steps)) == []
