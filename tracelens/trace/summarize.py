"""One trace file to the summary of its rank: the only place where a whole trace's events exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import polars as pl

from tracelens import intervals
from tracelens.errors import InputError, Problem, Severity
from tracelens.results import Evidence
from tracelens.summary import CALLS, KERNELS, LINKS, LocalGroup, RankSummary, StepSpan, SummaryHead
from tracelens.trace import timeline
from tracelens.trace.calls import size_calls
from tracelens.trace.columns import PROFILER_STEP, Collector, Events
from tracelens.trace.communicators import name_by_stream, take_gloo_group
from tracelens.trace.decode import Decoded, Reader
from tracelens.trace.discover import rank_from_name
from tracelens.trace.faults import Told, check_last_step, check_steps, drop_misplaced, refuse_merged
from tracelens.trace.groups import configured_groups
from tracelens.trace.kernels import Family
from tracelens.trace.link import Link, classify_gpu, drop_duplicates, link_kernels
from tracelens.trace.lookup import look_up
from tracelens.trace.records import calls_from_kernels, find_calls
from tracelens.trace.remote import Location, load_summary, locate, size_of
from tracelens.trace.schema import TraceHead
from tracelens.trace.source import Progress, is_archive
from tracelens.trace.steps import add_phases, cut_gpu_time, find_steps, step_index
from tracelens.units import plural


def summarize(
    path: str | Location, *, progress: Progress | None = None, kernels: tuple[Family, ...] = ()
) -> RankSummary:
    """Read a trace, or a saved summary, into the summary of its rank.

    Args:
        path: a trace (`.json`, plain or compressed with gzip or zstd) or a summary, or the URL of one.
        progress: called with the compressed bytes read so far.
        kernels: communication kernels that the user knows, beside the built-in table.

    Raises:
        InputError: the file can't be read as a trace or as a summary.
    """
    path = locate(path)
    if is_archive(path):
        return load_summary(path)
    reader, collector = Reader(path, progress), Collector()
    for batch in reader:
        collector.add(batch)
    events = collector.finish()
    return _Summarizer(path, reader.decoded, events, kernels).run()


@dataclass(slots=True)
class _Identity:
    """Who recorded the trace."""

    rank: int | None
    rank_source: str | None
    world_size: int | None
    head: TraceHead


class _Summarizer:
    """The steps from events to a summary, and the problems met on the way."""

    def __init__(self, path: Location, decoded: Decoded, events: Events, families: tuple[Family, ...]) -> None:
        self.path = path
        self.decoded = decoded
        self.events = events
        self.families = families
        self.problems = list(decoded.problems)
        self.who = _identify(path, _merge_heads(decoded.heads))
        if self.who.rank_source == "file name":
            self._problem("rank-from-name", f"the file does not say its rank; {self.who.rank} is taken from its name")

    def run(self) -> RankSummary:
        events = self.events
        if self.decoded.events == 0:
            raise InputError(f"`{self.path}` holds no events", hint="record the trace again")
        self._tell(events.told)
        refuse_merged(self.path, events)
        gpu, repeated = drop_duplicates(classify_gpu(events, self.families))
        gpu, told = drop_misplaced(gpu, events)
        self._tell(told)
        steps = find_steps(events)
        gpu = gpu.with_columns(step=step_index("launch_ns", steps))
        steps = cut_gpu_time(steps, gpu)
        calls, repeated_calls = self._find_calls(gpu)
        self._note_duplicates(repeated + repeated_calls)
        comm = gpu.filter("is_comm").sort("start_ns", "row")
        links = link_kernels(comm, calls)
        calls, told = name_by_stream(calls, comm, links, self.who.world_size)
        self._tell(told)
        info = self.who.head.distributed_info
        configured = configured_groups(info)
        calls, told = take_gloo_group(calls, configured, None if info is None else info.backend)
        self._tell(told)
        calls, groups = size_calls(calls, configured, self.who.rank, self.who.world_size)
        calls = self._finish_calls(calls, comm, links, steps)
        marked = any(name.startswith(PROFILER_STEP) for name in events.names)
        self._tell(check_steps(calls, steps, marked=marked))
        kernels, links = _finish_kernels(comm, links, calls, events)
        covered = timeline.union_of(timeline.computing(gpu, "start_ns", "end_ns"))
        comm_time = timeline.union_of(comm)
        budget = timeline.budget_steps(steps, comm_time, covered, timeline.union_of(timeline.moving(gpu)))
        self._tell(check_last_step(budget, steps))
        budget = timeline.count_untimed(budget, steps, calls, kernels, None if info is None else info.backend)
        return RankSummary(
            head=self._head(gpu, steps, groups, comm_time, covered),
            calls=calls,
            kernels=kernels,
            links=links,
            segments=timeline.cut_segments(kernels, covered),
            compute=timeline.compute_between_calls(gpu, calls),
            budget=budget,
            shapes=_shapes(events),
            matmuls=timeline.time_matmuls(gpu, comm_time, events),
        )

    def _find_calls(self, gpu: pl.DataFrame) -> tuple[pl.DataFrame, int]:
        calls, repeated = find_calls(self.events.records, self.events.operators, self.events.names)
        if self.events.kernel_records.is_empty():
            return calls, repeated
        kept = self.events.kernel_records.join(
            gpu.filter("is_comm").select("row", "start_ns", "end_ns", "launch_ns"), on="row"
        )
        orphans = kept.join(calls.select("external_id").drop_nulls(), on="external_id", how="anti")
        if orphans.is_empty():
            return calls, repeated
        records = calls_from_kernels(orphans)
        self._problem(
            "records-missing",
            plural(len(records), "call is known from its kernel only", "calls are known from their kernels only"),
            Severity.info,
        )
        extra, _ = find_calls(records, self.events.operators, self.events.names)
        calls = pl.concat([calls.drop("call"), extra.drop("call")]).sort("start_ns", maintain_order=True)
        return calls.with_row_index("call"), repeated

    def _finish_calls(
        self, calls: pl.DataFrame, comm: pl.DataFrame, links: pl.DataFrame, steps: Sequence[StepSpan]
    ) -> pl.DataFrame:
        served = (
            links.join(comm, on="row")
            .group_by("call")
            .agg(
                launch_ns=pl.col("launch_ns").min(),
                gpu_start_ns=pl.col("start_ns").min(),
                gpu_end_ns=pl.col("end_ns").max(),
                kernels=pl.len().cast(pl.UInt32),
                stream=pl.col("stream").first(),
                by_position=(pl.col("link") == Link.position.value).all(),
            )
        )
        calls = calls.rename({"start_ns": "issue_ns", "end_ns": "issue_end_ns"})
        calls = calls.with_columns(step=step_index("issue_ns", steps))
        calls = add_phases(calls, self.events, steps)
        p2p = pl.col("primitive").is_in(["send", "recv"])
        rooted = pl.col("primitive").is_in(["broadcast", "reduce", "gather", "scatter"])
        return (
            calls.join(served, on="call", how="left", maintain_order="left")
            .with_columns(
                kernels=pl.col("kernels").fill_null(0),
                ordinal=pl.int_range(pl.len(), dtype=pl.UInt32).over("group", p2p),
                root=pl.when(rooted).then(pl.col("rank")),
                evidence=pl.when(pl.col("by_position").fill_null(value=False))
                .then(pl.lit(Evidence.position.value))
                .otherwise(pl.col("evidence")),
            )
            .select([pl.col(name).cast(dtype) for name, dtype in CALLS.items()])
        )

    def _head(
        self,
        gpu: pl.DataFrame,
        steps: Sequence[StepSpan],
        groups: Sequence[LocalGroup],
        comm: intervals.Intervals,
        compute: intervals.Intervals,
    ) -> SummaryHead:
        head, info = self.who.head, self.who.head.distributed_info
        window = self._window(gpu)
        return SummaryHead(
            path=str(self.path),
            bytes=size_of(self.path),
            events=self.decoded.events,
            rank=self.who.rank,
            rank_source=self.who.rank_source,
            world_size=self.who.world_size,
            backend=None if info is None or info.backend == "undefined" else info.backend,
            nccl_version=None if info is None else info.nccl_version,
            host=head.host_name,
            devices=_devices(gpu, head),
            base_time_ns=head.base_time_ns,
            start_ns=None if window is None else window[0],
            end_ns=None if window is None else window[1],
            steps=tuple(steps),
            groups=tuple(groups),
            comm_ns=intervals.length(comm),
            overlap_ns=intervals.length(intervals.intersection(comm, compute)),
            capture=head.tracelens if head.tracelens else msgspec.Raw(b"null"),
            problems=tuple(self.problems),
        )

    def _window(self, gpu: pl.DataFrame) -> tuple[int, int] | None:
        if self.events.window_ns is not None or gpu.is_empty():
            return self.events.window_ns
        return int(gpu["start_ns"].min()), int(gpu["end_ns"].max())  # type: ignore[arg-type]

    def _tell(self, told: Sequence[Told]) -> None:
        for code, message in told:
            self._problem(code, message)

    def _note_duplicates(self, repeated: int) -> None:
        if repeated:
            self._problem(
                "events-duplicated",
                f"{plural(repeated, 'event stands', 'events stand')} in the file twice; each counts once",
            )

    def _problem(self, code: str, message: str, severity: Severity = Severity.warning) -> None:
        self.problems.append(
            Problem(code=code, severity=severity, message=message, file=str(self.path), rank=self.who.rank)
        )


def _merge_heads(heads: Sequence[TraceHead]) -> TraceHead:
    """The keys before the events and those after them; the first that says something wins."""
    merged: dict[str, object] = {}
    for head in heads:
        for name in TraceHead.__struct_fields__:
            value = getattr(head, name)
            if value not in (None, b"") and name not in merged:
                merged[name] = value
    return TraceHead(**merged)  # type: ignore[arg-type]


def _identify(path: Location, head: TraceHead) -> _Identity:
    info = head.distributed_info
    rank = None if info is None else _as_integer(info.rank)
    world = None if info is None else _as_integer(info.world_size)
    source = "metadata" if rank is not None else None
    if rank is None:
        rank = rank_from_name(path.name)
        source = None if rank is None else "file name"
    return _Identity(rank, source, world, head)


def _as_integer(value: int | str | None) -> int | None:
    if isinstance(value, str):
        return int(value) if value.strip().isdecimal() else None
    return value if value is None or value >= 0 else None


def _devices(gpu: pl.DataFrame, head: TraceHead) -> tuple[str, ...]:
    used = set(gpu["device"].drop_nulls().unique().to_list())
    properties = head.device_properties or []
    return tuple(dict.fromkeys(entry.name for entry in properties if entry.id in used and entry.name))


def _finish_kernels(
    comm: pl.DataFrame, links: pl.DataFrame, calls: pl.DataFrame, events: Events
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Number the kernels by start and charge each to one call: a send before a receive, else the first."""
    numbered = comm.with_row_index("kernel").with_columns(
        name=look_up(pl.col("name"), dict(enumerate(events.names)), pl.String())
    )
    links = links.join(numbered.select("row", "kernel"), on="row")
    receives = calls.select("call", is_receive=pl.col("primitive") == "recv")
    owners = (
        links.join(receives, on="call").sort("is_receive", "call").group_by("kernel").agg(owner=pl.col("call").first())
    )
    kernels = numbered.join(owners, on="kernel", how="left", maintain_order="left")
    return kernels.select([pl.col(n).cast(t) for n, t in KERNELS.items()]), links.sort("kernel", "call").select(*LINKS)


def _shapes(events: Events) -> pl.DataFrame:
    counted = events.products.group_by("name", "dims").agg(count=pl.len().cast(pl.UInt32))
    return counted.select(
        operator=pl.Series(events.names, dtype=pl.String).gather(counted["name"]),
        input_dims=pl.Series(events.texts, dtype=pl.String).gather(counted["dims"]),
        count="count",
    ).sort("operator", "input_dims")
