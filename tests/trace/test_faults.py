"""Faults of recordings that only their numbers show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracelens.errors import InputError
from tracelens.summary import BUDGET, StepSpan
from tracelens.trace.faults import check_last_step
from tracelens.trace.summarize import summarize


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


def launching(*pids: int, annotated: bool, devices: tuple[int, ...]) -> dict[str, Any]:
    """Kernels on some devices, each launched by the process beside it; in words of the trace format."""
    events: list[dict[str, Any]] = []
    for number, (pid, device) in enumerate(zip(pids, devices, strict=True)):
        kernel = {"device": device, "stream": 7, "correlation": number}
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": 1, "ts": 10, "dur": 2,
             "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": device, "tid": 7, "ts": 20, "dur": 5, "args": kernel},
        ]  # fmt: skip
        if annotated:
            events.append(
                {"ph": "X", "cat": "user_annotation", "name": "load", "pid": pid, "tid": 1, "ts": 9, "dur": 4}
            )
    return {"traceEvents": events}


def test_what_a_device_launches_itself_is_no_second_rank(tmp_path: Path) -> None:
    # the firmware of MTIA launches under the number of its device; the host is process 865
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(launching(865, 17, annotated=False, devices=(17, 17))))
    assert summarize(path).head.events == 4


def test_two_processes_of_small_numbers_are_two_ranks(tmp_path: Path) -> None:
    # in a container a process may have the number of a device
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(launching(1, 2, annotated=True, devices=(1, 2))))
    with pytest.raises(InputError, match=r"more than one rank \(2 processes\)"):
        summarize(path)
