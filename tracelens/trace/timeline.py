"""The GPU's time: communication cut into segments, the budget of each step, the compute between calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracelens import intervals
from tracelens.intervals import Intervals
from tracelens.results import Evidence
from tracelens.summary import BUDGET, COMPUTE, MATMULS, SEGMENTS, StepSpan
from tracelens.trace.columns import Events, GpuWork


def union_of(gpu: pl.DataFrame) -> Intervals:
    """The time in which any of the given GPU work runs."""
    return intervals.union(gpu["start_ns"].to_numpy(), gpu["end_ns"].to_numpy())


def computing(gpu: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """The kernels that compute: neither communication nor copies nor fills; nearly all, so no column too many."""
    computes = (gpu["work"] == GpuWork.kernel) & ~gpu["is_comm"]
    return gpu.select(columns or gpu.columns).filter(computes)


def moving(gpu: pl.DataFrame) -> pl.DataFrame:
    """Copies and fills."""
    return gpu.filter(pl.col("work") != GpuWork.kernel)


def cut_segments(kernels: pl.DataFrame, compute: Intervals) -> pl.DataFrame:
    """The communication timeline, cut wherever a kernel starts or ends.

    Args:
        kernels: `kernel`, `start_ns`, `end_ns`.
        compute: the time in which compute kernels run.

    Returns:
        `SEGMENTS`: busy and exposed time of any set of kernels are sums over its distinct segments.
    """
    if kernels.is_empty():
        return pl.DataFrame(schema=SEGMENTS)
    starts, ends = kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()
    points = np.unique(np.concatenate((starts, ends)))
    first, last = np.searchsorted(points, starts), np.searchsorted(points, ends)
    counts = np.maximum(last - first, 0)
    offsets = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    segment = np.arange(counts.sum()) + offsets
    left, right = points[segment], points[segment + 1]
    return pl.DataFrame(
        {
            "segment": segment,
            "kernel": np.repeat(kernels["kernel"].to_numpy(), counts),
            "length_ns": right - left,
            "covered_ns": intervals.covered(compute, left, right),
        },
        schema=SEGMENTS,
    )


def budget_steps(steps: Sequence[StepSpan], comm: Intervals, compute: Intervals, memory: Intervals) -> pl.DataFrame:
    """Divide each step's GPU window between compute, exposed communication, exposed memory work and idling."""
    rows = []
    for index, step in enumerate(steps):
        if step.gpu_start_ns is None or step.gpu_end_ns is None:
            continue
        window = (step.gpu_start_ns, step.gpu_end_ns)
        parts = (intervals.clip(kind, *window) for kind in (comm, compute, memory))
        rows.append({"step": index, **_budget(window[1] - window[0], *parts)})
    return pl.DataFrame(rows, schema=BUDGET)


def count_untimed(
    budget: pl.DataFrame, steps: Sequence[StepSpan], calls: pl.DataFrame, kernels: pl.DataFrame, backend: str | None
) -> pl.DataFrame:
    """Add to each step how many of its calls have no kernel that could have been found.

    A call among one rank needs none, nor does one without an element or one on gloo, which leaves no record where NCCL
    does. A kernel that runs in the step and belongs to no known call is taken for that of one of them.

    Args:
        budget: as `budget_steps` gives it.
        steps: of the trace.
        calls: `summary.CALLS`.
        kernels: `summary.KERNELS`.
        backend: of the job.
    """
    is_recorded = pl.col("evidence") == Evidence.metadata.value
    on_gpu = pl.lit(backend != "gloo") & (is_recorded | ~is_recorded.any())
    is_alone, is_empty = pl.col("group_size") == 1, pl.col("payload_bytes") == 0
    needs_none = pl.any_horizontal(is_alone, is_empty).fill_null(value=False)
    missing = calls.filter((pl.col("kernels") == 0) & on_gpu & ~needs_none)["step"].value_counts()
    missing_of = dict(missing.iter_rows())
    begins = kernels.filter(pl.col("owner").is_null())["start_ns"].sort().to_numpy()
    counted = []
    for index in budget["step"]:
        first, last = np.searchsorted(begins, [steps[index].gpu_start_ns, steps[index].gpu_end_ns])
        counted.append(max(0, missing_of.get(index, 0) - int(last - first)))
    return budget.with_columns(untimed_calls=pl.Series(counted, dtype=pl.Int64))


def _budget(span: int, comm: Intervals, compute: Intervals, memory: Intervals) -> dict[str, int]:
    overlap = intervals.length(intervals.intersection(comm, compute))
    comm_ns, compute_ns = intervals.length(comm), intervals.length(compute)
    either = intervals.union(*(np.concatenate(pair) for pair in zip(comm, compute, strict=True)))
    exposed_memory = intervals.length(intervals.difference(memory, either))
    return {
        "span_ns": span,
        "compute_ns": compute_ns,
        "exposed_comm_ns": comm_ns - overlap,
        "exposed_memory_ns": exposed_memory,
        "idle_ns": span - intervals.length(either) - exposed_memory,
        "comm_ns": comm_ns,
        "overlap_ns": overlap,
        "memory_ns": intervals.length(memory),
    }


def compute_between_calls(gpu: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """What was computed between each two calls, by the thread that launched it.

    Args:
        gpu: all GPU work with `launch_ns`, `launch_thread`, `step`, `is_matmul`.
        calls: `call`, `issue_ns`.
    """
    compute = computing(gpu, "launch_ns", "launch_thread", "step", "start_ns", "end_ns", "is_matmul")
    launched = compute.filter(pl.col("launch_ns").is_not_null()).sort("launch_ns")
    del compute
    issued = calls.select(after_call="call", launch_ns="issue_ns").sort("launch_ns")
    length = pl.col("end_ns") - pl.col("start_ns")
    return (
        launched.join_asof(issued, on="launch_ns", strategy="backward")
        .group_by("after_call", thread="launch_thread", step="step", maintain_order=True)
        .agg(
            start_ns=pl.col("start_ns").min(),
            end_ns=pl.col("end_ns").max(),
            busy_ns=length.sum(),
            matmul_ns=length.filter(pl.col("is_matmul")).sum(),
            kernels=pl.len().cast(pl.UInt32),
        )
        .select(*COMPUTE)
    )


_UNDER = 0.9


def time_matmuls(gpu: pl.DataFrame, comm: Intervals, events: Events) -> pl.DataFrame:
    """How long matrix products run without communication beside them, and how long under it.

    Args:
        gpu: all GPU work with `name` (a code), `grid`, `external_id`, `start_ns`, `end_ns`, `is_matmul`.
        comm: the time in which communication runs.
        events: the names, and the products of the CPU, whose sizes tell products with equal grids apart.

    Returns:
        `MATMULS`.
    """
    used = ("name", "grid", "start_ns", "end_ns", "is_matmul", "correlation", "external_id")
    products = computing(gpu, *used).filter(pl.col("is_matmul") & (pl.col("end_ns") > pl.col("start_ns")))
    beside = intervals.covered(comm, products["start_ns"].to_numpy(), products["end_ns"].to_numpy())
    # until 2.1 a kernel's External id repeats its correlation and means nothing
    named = pl.col("external_id") != pl.col("correlation")
    sizes = events.products.select("external_id", "dims").drop_nulls("external_id").unique("external_id", keep="last")
    length = pl.col("end_ns") - pl.col("start_ns")
    alone, under = pl.col("beside") == 0, pl.col("beside") >= _UNDER * length
    timed = (
        products.with_columns(beside=pl.Series(beside, dtype=pl.Int64), external_id=pl.when(named).then("external_id"))
        .join(sizes, on="external_id", how="left", maintain_order="left")
        .group_by("name", "grid", "dims", maintain_order=True)
        .agg(
            alone=alone.sum(),
            alone_ns=length.filter(alone).median(),
            under=under.sum(),
            under_ns=length.filter(under).median(),
            partly=(~alone & ~under).sum(),
        )
    )
    spelled = timed.with_columns(
        name=pl.Series(events.names, dtype=pl.String).gather(timed["name"]),
        input_dims=pl.Series(events.texts, dtype=pl.String).gather(timed["dims"]),
    )
    return spelled.select([pl.col(column).cast(dtype) for column, dtype in MATMULS.items()])
