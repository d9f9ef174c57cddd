"""HTA's faults, each as what it does to the GPU work: put in one after another, they turn our figures into HTA's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

import numpy as np
import polars as pl

from tracelens.crosscheck.figures import Figures, Work, figures_of
from tracelens.crosscheck.recording import Recording, to_us


class Fault(StrEnum):
    """What HTA 0.5.0 does that it should not, in the order in which it is put in."""

    misplaced_kernels = "misplaced-kernels"
    duplicate_events = "duplicate-events"
    foreign_events = "foreign-events"
    names_only = "names-only"
    unseen_launch = "unseen-launch"
    last_step = "last-step"
    rounding = "rounding"


MEANINGS: dict[Fault, str] = {
    Fault.misplaced_kernels: "HTA keeps GPU work whose timestamps the profiler lost or spoilt",
    Fault.duplicate_events: "HTA counts an event twice that stands twice in the file",
    Fault.foreign_events: "HTA takes all events with a stream number for GPU work: synchronization, Triton's launches",
    Fault.names_only: "HTA knows communication by `nccl...Kernel` only, copies by `Memcpy`; the rest computes",
    Fault.unseen_launch: "HTA drops kernels without a recorded launch (launched before the window), given two steps",
    Fault.last_step: "HTA drops what the last profiler step launched, unless told to keep it",
    Fault.rounding: "HTA rounds starts up and ends down to whole µs; what is shorter vanishes or counts as -1 µs",
}


def stages(recording: Recording) -> Iterator[tuple[Fault | None, Figures]]:
    """Our figures (None), and after each further fault that changes anything."""
    rows = recording.rows.filter(pl.col("kind").is_not_null())
    rows = rows.with_columns(start_ns="our_start_ns", end_ns="our_end_ns")
    yield None, _exact(rows)
    for fault, put_in in _FAULTS.items():
        changed = put_in(recording, rows)
        if not changed.equals(rows):
            rows = changed
            yield fault, _exact(rows)
    if rows.select((pl.col("start_ns", "end_ns") % 1000 != 0).any()).row(0) != (False, False):
        yield Fault.rounding, figures_of(_round(rows))


def _keep_misplaced(recording: Recording, _: pl.DataFrame) -> pl.DataFrame:
    return _our_kind_first(recording.rows.filter("is_gpu_work", ~pl.col("is_duplicate")))


def _repeat_duplicates(recording: Recording, _: pl.DataFrame) -> pl.DataFrame:
    return _our_kind_first(recording.rows.filter("is_gpu_work"))


def _add_foreign(recording: Recording, _: pl.DataFrame) -> pl.DataFrame:
    return _our_kind_first(recording.rows.filter(pl.col("hta_kind").is_not_null()))


def _our_kind_first(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(kind=pl.coalesce("kind", "hta_kind")).filter(pl.col("kind").is_not_null())


def _rename(_: Recording, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(kind="hta_kind")


def _drop_unlaunched(recording: Recording, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("launches") > 0) if recording.steps > 1 else rows


def _drop_last_step(recording: Recording, rows: pl.DataFrame) -> pl.DataFrame:
    """Each kernel once for each CPU event of its correlation: HTA joins the two."""
    if recording.steps < 2:
        return rows
    joined = rows.with_columns(copy=pl.int_ranges(0, "early_launches")).explode("copy").drop_nulls("copy").drop("copy")
    return joined if joined.equals(rows) else joined.sort(~pl.col("is_keyed"), "place", maintain_order=True)


_FAULTS: dict[Fault, Callable[[Recording, pl.DataFrame], pl.DataFrame]] = {
    Fault.misplaced_kernels: _keep_misplaced,
    Fault.duplicate_events: _repeat_duplicates,
    Fault.foreign_events: _add_foreign,
    Fault.names_only: _rename,
    Fault.unseen_launch: _drop_unlaunched,
    Fault.last_step: _drop_last_step,
}


def _exact(rows: pl.DataFrame) -> Figures:
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    base = starts.min() if starts.size else 0
    return figures_of(Work((starts - base) / 1000, (ends - base) / 1000, rows["kind"].to_numpy()))


def _round(rows: pl.DataFrame) -> Work:
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    us = to_us(starts)
    return Work(np.ceil(us), np.floor(us + to_us(ends - starts)), rows["kind"].to_numpy())
