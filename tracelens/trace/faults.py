"""Faults of recordings that are no fault of their text: found here, told as problems or refused."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.errors import InputError
from tracelens.summary import StepSpan
from tracelens.trace.columns import Events
from tracelens.trace.remote import Location
from tracelens.units import noun, plural

Told = tuple[str, str]
"""A problem's code and message."""

_SLACK_NS = 10_000_000_000
"""GPU work may lag this far behind the CPU events around it; what lies further off has a wrong timestamp."""


def refuse_merged(path: Location, events: Events) -> None:
    """Refuse a file into which the traces of several ranks were merged: their ids collide.

    Raises:
        InputError: kernels were launched by more than one process of the host, or nearly all ids occur on several
            devices.
    """
    processes = _launching(events)
    if len(processes) > 1 or _ids_collide(events.gpu):
        raise InputError(
            f"`{path}` holds more than one rank ({len(processes)} processes): calls and kernels can't be told apart",
            hint="give the traces of the single ranks, not the file that was merged for a viewer",
        )


def _launching(events: Events) -> set[object]:
    """Processes of the host that launch work. MTIA's firmware launches too, under the number of its device."""
    launching = _processes(events, events.launches)
    at_work = [_processes(events, own) for own in (events.records, events.operators, events.annotations)]
    return launching - (set(events.gpu["device"].unique()) - set().union(*at_work))


def _processes(events: Events, rows: pl.DataFrame) -> set[object]:
    return {events.threads[code][0] for code in rows["thread"].unique()}


def _ids_collide(gpu: pl.DataFrame) -> bool:
    if gpu["device"].n_unique() < 2:
        return False
    devices = gpu.drop_nulls("correlation").group_by("correlation").agg(devices=pl.col("device").n_unique())
    return len(devices) > 1 and float((devices["devices"] > 1).mean() or 0) > 0.5  # type: ignore[arg-type]


def drop_misplaced(gpu: pl.DataFrame, events: Events) -> tuple[pl.DataFrame, list[Told]]:
    """GPU work without the events whose timestamps the profiler lost or spoilt.

    Returns:
        What is left, and what was left out.
    """
    told: list[Told] = []
    timeless = int((gpu["start_ns"] == 0).sum())
    if timeless:
        message = f"{plural(timeless, 'kernel')} without a time {noun(timeless, 'was', 'were')} left out"
        told.append(("kernels-without-time", message))
        gpu = gpu.filter(pl.col("start_ns") != 0)
    reversed_rows = int((gpu["end_ns"] < gpu["start_ns"]).sum())
    if reversed_rows:
        count = noun(reversed_rows, "counts", "count")
        message = f"{plural(reversed_rows, 'kernel')} with a negative duration {count} as empty"
        told.append(("durations-negative", message))
        gpu = gpu.with_columns(end_ns=pl.max_horizontal("start_ns", "end_ns"))
    bounds = _recording(events)
    if bounds is None:
        return gpu, told
    inside = pl.col("start_ns").is_between(*bounds) & pl.col("end_ns").is_between(*bounds)
    if lost := len(gpu) - int(gpu.select(inside.sum()).item()):
        message = (
            f"{plural(lost, 'kernel')} outside the recording {noun(lost, 'was', 'were')} left out: timestamps are wrong"
        )
        told.append(("kernels-misplaced", message))
        gpu = gpu.filter(inside)  # a copy of everything, so only where there is need
    return gpu, told


def _recording(events: Events) -> tuple[int, int] | None:
    frames = [f for f in (events.launches, events.records, events.operators, events.annotations) if len(f)]
    if frames:
        low = min(int(frame["start_ns"].to_numpy().min()) for frame in frames)
        high = max(int(frame["end_ns"].to_numpy().max()) for frame in frames)
    elif events.window_ns is not None:
        low, high = events.window_ns
    else:
        return None
    slack = max(_SLACK_NS, high - low)
    return low - slack, high + slack


def check_steps(calls: pl.DataFrame, steps: Sequence[StepSpan], *, marked: bool) -> list[Told]:
    """Whether the steps are what repeats: calls outside of them, or none at all.

    Args:
        calls: `step`, `primitive`, `group`, `payload_bytes` in the order of issue.
        steps: of the trace.
        marked: whether the profiler marked them.
    """
    if not steps:
        return []
    if steps[0].number is not None and not marked:
        taken = plural(len(steps), "annotation is", "annotations are")
        message = f"no ProfilerStep: {taken} taken for steps, numbered from 0"
        return [("steps-from-annotations", message)]
    if steps[0].number is None:
        return [("no-steps", "no ProfilerStep: the whole recording is taken for one step")]
    outside = int(calls["step"].null_count())
    if not outside:
        return []
    inside = len(calls) - outside
    repetitions = _repetitions(calls)
    if repetitions and repetitions != len(steps) and inside:
        found = f"{plural(repetitions, 'repetition')}, {plural(len(steps), 'step')}"
        message = f"{found}: per-step numbers are over the steps that are marked"
        return [("steps-differ", message)]
    message = f"{outside:,} of {plural(len(calls), 'call')} {noun(outside, 'was', 'were')} issued outside of all steps"
    return [("calls-outside-steps", message)]


_LONG = 1.25
"""How much more compute than any other step the last one must hold to be told."""


def check_last_step(budget: pl.DataFrame, steps: Sequence[StepSpan]) -> list[Told]:
    """Whether the window of the last step also holds the end of the step before.

    GPU time is cut at the first kernel of each step. Where a step launches its first kernel early (input that is
    prefetched on a stream of its own), each window begins in the step before, and the last holds what is left over.

    Args:
        budget: `summary.BUDGET`.
        steps: of the trace.
    """
    if len(budget) < 3 or budget["step"][-1] != len(steps) - 1:
        return []
    compute, span = budget["compute_ns"].to_list(), budget["span_ns"].to_list()
    if compute[-1] < _LONG * max(compute[:-1]) or span[-1] < _LONG * max(span[:-1]):
        return []
    message = (
        f"the last step holds {compute[-1] / max(compute[:-1]):.2f} times the compute of any other: its window reaches "
        f"to the end of the recording; leave it out of the means with --steps"
    )
    return [("last-step-long", message)]


def _repetitions(calls: pl.DataFrame) -> int | None:
    """How often the calls of the first marked step repeat over the whole recording; None when they do not."""
    rows = calls.select(pl.struct("primitive", "group", "payload_bytes").hash().alias("row"), "step")
    first = rows.drop_nulls("step")["step"].first()
    if first is None:
        return None
    period = rows.filter(pl.col("step") == first)["row"].to_list()
    whole = rows["row"].to_list()
    times, rest = divmod(len(whole), len(period) or 1)
    return times if period and not rest and whole == period * times else None
