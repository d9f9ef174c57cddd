"""Steps and phases: which step launched a call, and whether it belongs to forward, backward or optimizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import polars as pl

from tracelens.results import Phase
from tracelens.summary import StepSpan
from tracelens.trace.columns import PROFILER_STEP, Events, GpuWork
from tracelens.trace.nesting import find_innermost

_PROFILER_STEP = re.compile(rf"^{PROFILER_STEP}(\d+)")
_OPTIMIZER = re.compile(r"^Optimizer\.step#|optimizer_step|## optimizer ##|^optimizer\.step", re.IGNORECASE)
_FINAL_CALLBACK = "FSDP::root_post_backward_callback"
"""Queued with the engine (torch/distributed/fsdp/_fully_shard/_fsdp_state.py), which evaluates no operator for it."""
_NOT_LABELS = re.compile(r"^(?:nccl:|gloo:|c10d|ProfilerStep#|PyTorch Profiler|tracelens::)|CompiledFxGraph|DataLoader")
_AUTOGRAD_THREAD = "pt_autograd"


def find_steps(events: Events) -> list[StepSpan]:
    """The profiler steps by time; without any, annotations that mark steps, else one step over the whole trace."""
    numbers = {code: int(m[1]) for code, name in enumerate(events.names) if (m := _PROFILER_STEP.match(name))}
    ended = pl.col("end_ns").shift().over("name")
    rows = (
        events.annotations.filter(pl.col("name").is_in(list(numbers)))
        .sort("start_ns")
        # one that is told as an operator and as an annotation is one step
        .filter(ended.is_null() | (pl.col("start_ns") >= ended))
        .select("name", "start_ns", "end_ns")
        .iter_rows()
    )
    steps = [StepSpan(number=numbers[code], cpu_start_ns=start, cpu_end_ns=end) for code, start, end in rows]
    return steps or _annotated_steps(events) or _whole_trace(events)


# What training loops and engines write around an iteration when they do not step the profiler.
_STEP_WORDS = re.compile(
    r"^(?:## )?(?:train(?:ing)?[_ ]?)?(?:step|iteration|iter)\b|train[_ ](?:step|iteration|batch)"
    r"|^actor_update|^mini_batch|^execute_(?:context|model)|^forward_backward|^micro_batch",
    re.IGNORECASE,
)


def _annotated_steps(events: Events) -> list[StepSpan]:
    """Steps of a trace without ProfilerStep: an annotation that is called like one and comes at least twice.

    They are numbered from 0. Of several kinds the outermost, which covers most of the time, is taken.
    """
    kinds: dict[str, list[int]] = {}
    for code, name in enumerate(events.names):
        if _STEP_WORDS.search(name):
            kinds.setdefault(re.sub(r"\d+", "#", name), []).append(code)
    best: list[tuple[int, int]] = []
    for codes in kinds.values():
        spans = events.annotations.filter(pl.col("name").is_in(codes)).sort("start_ns")
        rows = list(spans.select("start_ns", "end_ns").unique(maintain_order=True).iter_rows())
        apart = all(later[0] >= sooner[1] for sooner, later in pairwise(rows))
        if len(rows) > 1 and apart and _covered(rows) > _covered(best):
            best = rows
    return [StepSpan(number=n, cpu_start_ns=start, cpu_end_ns=end) for n, (start, end) in enumerate(best)]


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)


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
    spans = events.annotations.filter(pl.col("name").is_in(labels))
    points = calls.select("thread", at_ns="issue_ns")
    codes = spans["name"].gather(find_innermost(points, spans))
    stepping = find_innermost(points, spans.filter(pl.col("name").is_in(optimizers)))
    named = pl.Series(events.names, dtype=pl.String)
    return calls.select("call", label=named.gather(codes), in_optimizer=stepping.is_not_null())


def _evaluated_by_autograd(calls: pl.DataFrame, events: Events) -> pl.DataFrame:
    """Calls inside what autograd evaluates on the same thread (backward on the main thread)."""
    around = find_innermost(calls.select("thread", at_ns="issue_ns"), _backward_spans(events))
    return calls.select("call", evaluated=around.is_not_null())


def _backward_spans(events: Events) -> pl.DataFrame:
    """What autograd evaluates, and the callback that its engine ends with: there FSDP2 reduces its first unit."""
    callbacks = [code for code, name in enumerate(events.names) if name == _FINAL_CALLBACK]
    ended = events.annotations.filter(pl.col("name").is_in(callbacks))
    return pl.concat([spans.select("thread", "start_ns", "end_ns") for spans in (events.backward, ended)])


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
    spans = pl.concat([_backward_spans(events).drop("thread"), launched])
    return (
        spans.with_columns(step=step_index("start_ns", steps))
        .drop_nulls("step")
        .group_by("step")
        .agg(first_backward_ns=pl.col("start_ns").min(), last_backward_ns=pl.col("end_ns").max())
    )
