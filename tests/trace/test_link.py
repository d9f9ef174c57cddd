"""Kernels to calls, and GPU time to steps, where a plain reading goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from tests.crosscheck.traces import GEMM, Event, kernel, launch, on_stream, step, write_trace
from tracelens.trace.summarize import summarize


def record(collective: str, at: float, *, group: str, size: int, external_id: int) -> Event:
    args: dict[str, Any] = {"External id": external_id, "Collective name": collective, "dtype": "Float"}
    args |= {"In msg nelems": 1, "Out msg nelems": 1, "Group size": size, "Process Group Name": group}
    event = on_stream("cpu_op", "record_param_comms", at, 5, args)
    return {**event, "pid": 9, "tid": 9, "args": args}


def test_a_call_in_a_group_of_one_does_not_wait_for_the_kernel_of_a_batch(tmp_path: Path) -> None:
    # GIVEN an all-reduce in a group of one, then a batched send and receive whose kernel carries nothing
    path = write_trace(
        tmp_path / "rank0.json",
        record("allreduce", 10, group="15", size=1, external_id=1),
        record("send", 20, group="38", size=4, external_id=2),
        record("recv", 30, group="38", size=4, external_id=3),
        launch(7, 40),
        kernel("ncclDevKernel_SendRecv", 100, 20, 7, stream=20),
    )

    # WHEN kernels are linked
    summary = summarize(path)

    # THEN the kernel serves the two that need one
    linked = summary.links.join(summary.calls.select("call", "primitive"), on="call")
    assert sorted(linked["primitive"]) == ["recv", "send"]
    assert summary.calls.filter(pl.col("primitive") == "all_reduce")["kernels"].to_list() == [0]


def test_a_copy_opens_no_window_of_a_step(tmp_path: Path) -> None:
    # GIVEN a step whose input is copied while the step before still computes
    path = write_trace(
        tmp_path / "rank0.json",
        *(step(3, 0, 1000), step(4, 1000, 1000)),
        *(launch(1, 10), launch(2, 1010), launch(3, 1020)),
        kernel(GEMM, 100, 1900, 1),
        on_stream("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1500, 50, {"correlation": 2, "stream": 9}),
        kernel(GEMM, 2000, 300, 3),
    )

    # WHEN GPU time is cut into steps
    third, fourth = summarize(path).budget.iter_rows(named=True)

    # THEN the fourth begins at its first kernel, and the copy counts in the third
    assert (third["span_ns"], third["memory_ns"]) == (1_900_000, 50_000)
    assert (fourth["span_ns"], fourth["memory_ns"]) == (300_000, 0)
