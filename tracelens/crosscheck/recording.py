"""The GPU work of one file, as we see it and as HTA reads it: one row an event, in file order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.summary import RankSummary
from tracelens.trace.columns import Collector, GpuWork
from tracelens.trace.decode import AnyEvent, Reader
from tracelens.trace.faults import drop_misplaced
from tracelens.trace.kernels import Family
from tracelens.trace.link import classify_gpu, drop_duplicates
from tracelens.trace.remote import Location
from tracelens.trace.schema import KINDS, Kind

COMMUNICATION, COMPUTATION, MEMORY, OTHER = "COMMUNICATION", "COMPUTATION", "MEMORY", "OTHER"
"""HTA's words for kinds of kernels (`hta.utils.utils.KernelType`)."""

ROWS: dict[str, pl.DataType] = {
    "place": pl.Float64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "our_start_ns": pl.Int64(),
    "our_end_ns": pl.Int64(),
    "kind": pl.String(),
    "hta_kind": pl.String(),
    "is_gpu_work": pl.Boolean(),
    "is_duplicate": pl.Boolean(),
    "launches": pl.UInt32(),
    "early_launches": pl.UInt32(),
    "is_keyed": pl.Boolean(),
}
"""One row per event that either of us takes for GPU work, in file order (`place`).

Times are as written, and as we use them; `kind` is ours (null: we leave the event out), `hta_kind` what HTA makes of
the name (null: HTA does not see the event). `launches` are the CPU events of the same correlation, `early_launches`
those before the last profiler step; `is_keyed` tells whether HTA looks for a launch at all.
"""


@dataclass(frozen=True, slots=True)
class Recording:
    """One file.

    Attributes:
        summary: what the package says of it.
        gpu: the GPU work that this rests on: `start_ns`, `end_ns`, `work`, `is_comm`.
        rows: `ROWS`.
        steps: different ProfilerStep names.
    """

    summary: RankSummary
    gpu: pl.DataFrame
    rows: pl.DataFrame
    steps: int


def read_recording(path: Location, summary: RankSummary, kernels: tuple[Family, ...] = ()) -> Recording:
    """Read a trace once more, with what HTA looks at.

    Args:
        path: the trace.
        summary: of it.
        kernels: communication kernels that the user knows, as the summary was made with.

    Raises:
        InputError: the file can't be read as a trace.
    """
    collector, others = Collector(), _Others()
    for batch in Reader(path):
        collector.add(batch)
        others.add(batch)
    events = collector.finish()
    classified = classify_gpu(events, kernels)
    unique, _ = drop_duplicates(classified)
    gpu, _ = drop_misplaced(unique, events)
    used = gpu.select("row", our_start_ns="start_ns", our_end_ns="end_ns", kind=our_kind())
    written = (
        classified.with_columns(
            place=pl.col("row").cast(pl.Float64),
            name=pl.Series(events.names, dtype=pl.String).gather(classified["name"]),
            is_gpu_work=pl.lit(value=True),
            is_duplicate=~pl.col("row").is_in(unique["row"].implode()),
        )
        .join(used, on="row", how="left", maintain_order="left")
        .drop("launch_ns", "launch_thread")
    )
    foreign = others.rows().with_columns(is_gpu_work=pl.lit(value=False), is_duplicate=pl.lit(value=False))
    rows = pl.concat([written, foreign], how="diagonal")
    rows = _count_launches(rows, events.launches, others.last_step_ns()).with_columns(hta_kind=_hta_kind())
    return Recording(
        summary, gpu, rows.select(pl.col(name).cast(dtype) for name, dtype in ROWS.items()), others.steps()
    )


def our_kind() -> pl.Expr:
    """What GPU work is to us."""
    return (
        pl.when(pl.col("is_comm"))
        .then(pl.lit(COMMUNICATION))
        .when(pl.col("work") == GpuWork.kernel)
        .then(pl.lit(COMPUTATION))
        .otherwise(pl.lit(MEMORY))
    )


def _hta_kind() -> pl.Expr:
    """What HTA takes an event for, by its name alone (0.5.0, `hta/utils/utils.py`)."""
    name = pl.col("name")
    return (
        pl.when(pl.col("stream").is_null() | (pl.col("stream") == -1))
        .then(None)
        .when(name.str.contains(r"^nccl.*Kernel"))
        .then(pl.lit(COMMUNICATION))
        .when(name.str.contains(r"^(?:Memcpy|Memset|dma)"))
        .then(pl.lit(MEMORY))
        .when(name.str.contains(r"Memcpy|^Memset|Sync"))
        .then(pl.lit(OTHER))
        .otherwise(pl.lit(COMPUTATION))
    )


def _count_launches(rows: pl.DataFrame, launches: pl.DataFrame, last_step_ns: int | None) -> pl.DataFrame:
    """Add what HTA's join of kernels with CPU events over the correlation finds."""
    early = pl.lit(value=True) if last_step_ns is None else _is_before(last_step_ns)
    counted = (
        launches.select("correlation", early=early)
        .group_by("correlation")
        .agg(launches=pl.len(), early_launches=pl.col("early").sum())
    )
    synchronizes = pl.col("name").is_in(["Event Sync", "Context Sync"])
    has_key = (pl.col("stream") >= 0) & (pl.col("correlation") >= 0)
    return rows.join(counted, on="correlation", how="left", maintain_order="left").with_columns(
        pl.when(has_key.fill_null(value=False) | synchronizes)
        .then(pl.col("launches", "early_launches").fill_null(0))
        .otherwise(early.cast(pl.UInt32)),
        is_keyed=has_key.fill_null(value=False) | synchronizes,
    )


def _is_before(ns: int) -> pl.Expr:
    """Whether an event starts before a moment, both rounded up to whole µs as HTA does."""
    limit = np.ceil(to_us(np.array([ns])))[0]
    return pl.col("start_ns").map_batches(lambda s: pl.Series(np.ceil(to_us(s.to_numpy())) < limit), pl.Boolean)


def to_us(ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The float that a JSON reader makes of a number of microseconds: the one nearest to `ns / 1000`."""
    # beyond 2^53 an integer has no float of its own; the whole microseconds still have
    split = (ns // 1000).astype(np.float64) + (ns % 1000) / 1000
    return np.where(np.abs(ns) < 1 << 53, ns / 1000, split)


class _Others:
    """Collects what is no GPU work to us: events of other kinds that carry a stream number, and the steps."""

    def __init__(self) -> None:
        self._rows: list[dict[str, object]] = []
        self._gpu_rows = 0
        self._steps: dict[str, float] = {}

    def add(self, batch: Sequence[AnyEvent]) -> None:
        is_gpu = [KINDS.get(category) is Kind.gpu for category in map(attrgetter("cat"), batch)]
        has_stream = [args is not None and args.stream is not None for args in map(attrgetter("args"), batch)]
        if any(stream and not gpu for stream, gpu in zip(has_stream, is_gpu, strict=True)):
            self._take_foreign(batch, is_gpu, has_stream)
        self._gpu_rows += sum(is_gpu)
        names = list(map(attrgetter("name"), batch))
        steps = {name for name in set(names) if isinstance(name, str) and "ProfilerStep" in name}
        for event in compress(batch, map(steps.__contains__, names)):
            start = _number(event.ts)
            if start is not None and event.name is not None and event.dur is not None:
                self._steps[event.name] = max(self._steps.get(event.name, start), start)

    def _take_foreign(self, batch: Sequence[AnyEvent], is_gpu: Sequence[bool], has_stream: Sequence[bool]) -> None:
        before = self._gpu_rows
        for event, gpu, stream in zip(batch, is_gpu, has_stream, strict=True):
            before += gpu
            start = _number(event.ts)
            if gpu or not stream or event.args is None or event.dur is None or start is None:
                continue
            first = round(start * 1000)
            self._rows.append(
                {
                    "place": before - 0.5,
                    "name": event.name,
                    "start_ns": first,
                    "end_ns": first + round(event.dur * 1000),
                    "stream": _stream(event.args.stream),
                    "correlation": event.args.correlation,
                }
            )

    def rows(self) -> pl.DataFrame:
        schema = {"place": pl.Float64, "name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
        return pl.DataFrame(self._rows, schema=schema | {"stream": pl.Int64, "correlation": pl.Int64})

    def steps(self) -> int:
        return len(self._steps)

    def last_step_ns(self) -> int | None:
        """Where HTA sees the last step begin, on the CPU or in an annotation of the GPU; None below two steps."""
        return round(max(self._steps.values()) * 1000) if len(self._steps) > 1 else None


def _number(us: object) -> float | None:
    if us is None:
        return None
    return float(us) if isinstance(us, int | float) else float(bytes(us))  # type: ignore[call-overload]


def _stream(value: int | str | None) -> int | None:
    """A stream as HTA reads it: what `int` can't read, such as `0x0`, is none."""
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
