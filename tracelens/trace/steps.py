"""Steps and phases: which step launched a call, and whether it belongs to forward, backward or optimizer."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import polars as pl

from tracelens.results import Phase
from tracelens.summary import StepSpan
from tracelens.trace.columns import Events, GpuWork

_PROFILER_STEP = re.compile(r"^ProfilerStep#(\d+)")
_OPTIMIZER = re.compile(r"^Optimizer\.step#|optimizer_step|## optimizer ##|^optimizer\.step", re.IGNORECASE)
_NOT_LABELS = re.compile(r"^(?:nccl:|gloo:|c10d|ProfilerStep#|PyTorch Profiler|tracelens::)|CompiledFxGraph|DataLoader")
_AUTOGRAD_THREAD = "pt_autograd"


def find_steps(events: Events) -> list[StepSpan]:
    """The profiler steps by time; without any, one step over all that the CPU and the GPU did."""
    numbers = {code: int(m[1]) for code, name in enumerate(events.names) if (m := _PROFILER_STEP.match(name))}
    rows = (
        events.annotations.filter(pl.col("name").is_in(list(numbers)))
        .unique(["name", "start_ns"], keep="first")
        .sort("start_ns")
        .select("name", "start_ns", "end_ns")
        .iter_rows()
    )
    steps = [StepSpan(number=numbers[code], cpu_start_ns=start, cpu_end_ns=end) for code, start, end in rows]
    return steps or _whole_trace(events)


def _whole_trace(events: Events) -> list[StepSpan]:
    frames = (events.launches, events.records, events.operators, events.annotations, events.gpu)
    starts = [int(frame["start_ns"].min()) for frame in frames if len(frame)]  # type: ignore[arg-type]
    ends = [int(frame["end_ns"].max()) for frame in frames if len(frame)]  # type: ignore[arg-type]
    if not starts:
        return []
    return [StepSpan(number=None, cpu_start_ns=min(starts), cpu_end_ns=max(ends) + 1)]


def step_index(times: str, steps: Sequence[StepSpan]) -> pl.Expr:
    """The index of the step during which something happened on the CPU; null outside of all steps.

    Args:
        times: name of a column of ns.
        steps: as `find_steps` gives them.
    """
    if not steps:
        return pl.lit(None, pl.Int32)
    starts = pl.Series([step.cpu_start_ns for step in steps], dtype=pl.Int64)
    ends = pl.Series([step.cpu_end_ns for step in steps], dtype=pl.Int64)

    def locate(series: pl.Series) -> pl.Series:
        place = starts.search_sorted(series.fill_null(-(2**62)), side="right").cast(pl.Int64) - 1
        end = ends.gather(place.clip(0)).rename(series.name)
        inside = (place >= 0) & (series < end)
        return pl.select(pl.when(inside).then(place).otherwise(None).cast(pl.Int32)).to_series()

    return pl.col(times).map_batches(locate, return_dtype=pl.Int32)


def cut_gpu_time(steps: Sequence[StepSpan], gpu: pl.DataFrame) -> list[StepSpan]:
    """Give each step its GPU window: from the first kernel that it launched to the next step's first.

    Copies and fills open no window: the input of a step is often copied while the step before still computes.

    Args:
        steps: by time.
        gpu: `work`, `start_ns`, `end_ns` and `step` (index, null when launched outside of all steps).
    """
    if not steps or gpu.is_empty():
        return list(steps)
    launched = gpu.filter(pl.col("work") == GpuWork.kernel).drop_nulls("step")
    first = dict(launched.group_by("step").agg(pl.col("start_ns").min()).iter_rows())
    end: int = gpu["end_ns"].max()  # type: ignore[assignment]
    cut: list[StepSpan] = []
    for index in reversed(range(len(steps))):
        start = first.get(index)
        stop = end if start is not None else None
        cut.append(msgspec.structs.replace(steps[index], gpu_start_ns=start, gpu_end_ns=stop))
        end = end if start is None else min(start, end)
    return cut[::-1]


def add_phases(calls: pl.DataFrame, events: Events, steps: Sequence[StepSpan]) -> pl.DataFrame:
    """Add `phase` and `label` (innermost annotation around the call, such as an FSDP module) to the calls.

    Backward is what autograd's threads, or an operator that autograd evaluates, issue; optimizer what lies in
    `Optimizer.step` or after the last backward of its step; forward the rest of a trace that has a backward. What
    the pipeline's own thread sends and receives between backwards may be either, and stays unknown.
    """
    if calls.is_empty():
        return calls.with_columns(phase=pl.lit(None, pl.String), label=pl.lit(None, pl.String))
    around = _annotations_around(calls, events)
    calls = calls.join(around, on="call", how="left", maintain_order="left")
    calls = calls.join(_evaluated_by_autograd(calls, events), on="call", how="left", maintain_order="left")
    threads = _autograd_threads(events)
    in_backward = pl.col("thread").is_in(threads).fill_null(value=False) | pl.col("evaluated").fill_null(value=False)
    bounds = _backward_bounds(events, threads, steps)
    calls = calls.with_columns(step_index("issue_ns", steps).alias("_step"))
    calls = calls.join(bounds, left_on="_step", right_on="step", how="left", maintain_order="left")
    after = pl.col("issue_ns") >= pl.col("last_backward_ns")
    between = (pl.col("issue_ns") >= pl.col("first_backward_ns")) & ~after
    p2p = pl.col("primitive").is_in(["send", "recv"])
    phase = (
        pl.when(in_backward)
        .then(pl.lit(Phase.backward.value))
        .when(pl.col("in_optimizer").fill_null(value=False))
        .then(pl.lit(Phase.optimizer.value))
        .when(pl.col("last_backward_ns").is_null() | (between & p2p))
        .then(None)
        .when(after)
        .then(pl.lit(Phase.optimizer.value))
        .otherwise(pl.lit(Phase.forward.value))
    )
    return calls.with_columns(phase=phase).drop(
        "_step", "in_optimizer", "evaluated", "first_backward_ns", "last_backward_ns"
    )


def _annotations_around(calls: pl.DataFrame, events: Events) -> pl.DataFrame:
    """Per call the innermost annotation that could label it, and whether it lies in an optimizer step."""
    labels = [code for code, name in enumerate(events.names) if not _NOT_LABELS.search(name)]
    optimizers = [code for code, name in enumerate(events.names) if _OPTIMIZER.search(name)]
    spans = events.annotations.filter(pl.col("name").is_in(labels)).select(
        "name", span_thread="thread", span_start="start_ns", span_end="end_ns"
    )
    pairs = calls.select("call", "thread", "issue_ns").join_where(
        spans,
        pl.col("thread") == pl.col("span_thread"),
        pl.col("issue_ns") >= pl.col("span_start"),
        pl.col("issue_ns") < pl.col("span_end"),
    )
    named = pl.Series(events.names, dtype=pl.String)
    return (
        pairs.sort("span_start", "span_end", descending=[False, True])
        .group_by("call")
        .agg(pl.col("name").last(), in_optimizer=pl.col("name").is_in(optimizers).any())
        .with_columns(label=pl.col("name").map_batches(lambda s: named.gather(s), return_dtype=pl.String))
        .drop("name")
    )


def _evaluated_by_autograd(calls: pl.DataFrame, events: Events) -> pl.DataFrame:
    """Calls inside an operator that autograd evaluates on the same thread (backward on the main thread)."""
    spans = events.backward.select("thread", span_start="start_ns", span_end="end_ns").sort("span_start")
    joined = (
        calls.select("call", "thread", "issue_ns")
        .sort("issue_ns")
        .join_asof(spans, left_on="issue_ns", right_on="span_start", by="thread", check_sortedness=False)
    )
    return joined.filter(pl.col("issue_ns") < pl.col("span_end")).select("call", evaluated=pl.lit(value=True))


def _autograd_threads(events: Events) -> list[int]:
    return [
        code for code, key in enumerate(events.threads) if _AUTOGRAD_THREAD in events.thread_names.get(key, "")
    ] or _threads_without_steps(events)


def _threads_without_steps(events: Events) -> list[int]:
    """Threads that evaluate backward and carry no profiler step, for traces that do not name their threads."""
    main = {
        thread
        for code, thread in events.annotations.select("name", "thread").unique().iter_rows()
        if not events.names[code].startswith("nccl:")
    }
    return [thread for thread in events.backward["thread"].unique() if thread not in main]


def _backward_bounds(events: Events, threads: Sequence[int], steps: Sequence[StepSpan]) -> pl.DataFrame:
    """First start and last end of backward in each step, from what autograd evaluates and its threads launch."""
    launched = events.launches.filter(pl.col("thread").is_in(threads)).select("start_ns", "end_ns")
    spans = pl.concat([events.backward.select("start_ns", "end_ns"), launched])
    return (
        spans.with_columns(step=step_index("start_ns", steps))
        .drop_nulls("step")
        .group_by("step")
        .agg(first_backward_ns=pl.col("start_ns").min(), last_backward_ns=pl.col("end_ns").max())
    )
