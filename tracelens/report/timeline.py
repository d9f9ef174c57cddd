"""One step of one rank over time: what computes, what is exposed, and what each kind of group sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens import intervals
from tracelens.report.document import Document
from tracelens.report.families import find_families, find_owners
from tracelens.results import Group
from tracelens.summary import LocalGroup, RankSummary, StepSpan

BINS = 240
"""Equal parts of a step in which a lane with many kernels is told."""
_FEW = 120
"""Kernels that are told one by one."""
_MOST_LANES = 10

_Floats = npt.NDArray[np.float64]


class Piece(msgspec.Struct, frozen=True):
    """Something that runs: from and to as parts of the step, how much of that time it fills, and what it is."""

    start: float
    end: float
    filled: float
    kind: str
    """A primitive, `compute` or `exposed`."""
    duration_ns: int


class TimelineLane(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of group does."""

    label: str
    busy_ns: int
    pieces: tuple[Piece, ...]


class StepTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The lanes of one step of one rank."""

    rank: int | None
    step: int | None
    span_ns: int
    lanes: tuple[TimelineLane, ...]
    left_out: int
    """Kinds of groups that are busy for a shorter time and have no lane."""


def lay_timeline(summaries: Sequence[RankSummary], document: Document) -> StepTimeline | None:
    """The middle step, by its length, of the first rank that has GPU time and communication.

    Args:
        summaries: those behind the document, or none.
        document: tells the groups and which steps were used.
    """
    for summary in summaries:
        step = _middle_step(summary, document)
        if step is not None and not summary.kernels.is_empty():
            return _lay_step(summary, step, document)
    return None


def _middle_step(summary: RankSummary, document: Document) -> int | None:
    used = set(document.run.steps)
    lengths = sorted(
        (row["span_ns"], row["step"])
        for row in summary.budget.iter_rows(named=True)
        if not used or summary.head.steps[row["step"]].number in used
    )
    return lengths[(len(lengths) - 1) // 2][1] if lengths else None


def _lay_step(summary: RankSummary, index: int, document: Document) -> StepTimeline:
    step = summary.head.steps[index]
    start, end = _window(step)
    edges = np.linspace(start, end, BINS + 1).round().astype(np.int64)
    kernels = _labelled_kernels(summary, document).filter((pl.col("end_ns") > start) & (pl.col("start_ns") < end))
    by_label = kernels.partition_by("label", as_dict=True, maintain_order=True)
    lanes = [_lay_lane(str(label), frame, edges) for (label,), frame in by_label.items()]
    lanes.sort(key=lambda lane: -lane.busy_ns)
    budget = summary.budget.row(by_predicate=pl.col("step") == index, named=True)
    curve = _compute_curve(summary)
    compute = TimelineLane(label="compute", busy_ns=budget["compute_ns"], pieces=_compute(curve, edges))
    alone = _exposed(summary, curve, edges)
    exposed = TimelineLane(label="exposed comm", busy_ns=budget["exposed_comm_ns"], pieces=alone)
    return StepTimeline(
        rank=summary.rank,
        step=step.number,
        span_ns=end - start,
        lanes=(compute, exposed, *lanes[:_MOST_LANES]),
        left_out=max(0, len(lanes) - _MOST_LANES),
    )


def _window(step: StepSpan) -> tuple[int, int]:
    # the budget has rows only for steps with GPU work
    if step.gpu_start_ns is None or step.gpu_end_ns is None:
        return step.cpu_start_ns, step.cpu_end_ns
    return step.gpu_start_ns, step.gpu_end_ns


def label_local_groups(locals_: Sequence[LocalGroup], document: Document) -> dict[int, str]:
    """The label in the report of each process group of a rank, by its index in the rank's own list."""
    owners = find_owners(find_families(document.groups, world_size=document.run.world_size))
    found = {index: find_group(local, document.groups) for index, local in enumerate(locals_)}
    return {index: owners[group.id] for index, group in found.items() if group is not None}


def find_group(local: LocalGroup, groups: Sequence[Group]) -> Group | None:
    """The group of the report that a rank's own group is, by its ranks or else by its name and size."""
    ranks = None if local.ranks is None else tuple(sorted(local.ranks))
    if ranks is not None:
        return next((group for group in groups if group.ranks == ranks), None)
    return next((group for group in groups if local.name in group.names and local.size == group.size), None)


def _labelled_kernels(summary: RankSummary, document: Document) -> pl.DataFrame:
    """Kernels with the label of their group and the primitive of their call."""
    labels = label_local_groups(summary.head.groups, document)
    known = pl.DataFrame(
        {"group": list(labels), "label": list(labels.values())}, schema={"group": pl.Int32, "label": pl.String}
    )
    calls = summary.calls.select("call", "primitive", "group").join(known, on="group", how="left")
    return summary.kernels.join(calls, left_on="owner", right_on="call", how="left", maintain_order="left").select(
        "start_ns",
        "end_ns",
        label=pl.col("label").fill_null("unattributed"),
        primitive=pl.coalesce("primitive", "hint", pl.lit("other")),
    )


def _lay_lane(label: str, kernels: pl.DataFrame, edges: intervals.Array) -> TimelineLane:
    """Single kernels where they are few, else how much of each bin its busiest primitive fills."""
    kinds = kernels.partition_by("primitive", as_dict=True, maintain_order=True)
    unions = {
        str(kind): intervals.clip(
            intervals.union(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()), edges[0], edges[-1]
        )
        for (kind,), frame in kinds.items()
    }
    busy = intervals.union(*(np.concatenate(part) for part in zip(*unions.values(), strict=True)))
    runs = sum(union[0].size for union in unions.values())
    pieces = _single(unions, edges) if runs <= _FEW else _binned(unions, edges)
    return TimelineLane(label=label, busy_ns=intervals.length(busy), pieces=tuple(pieces))


def _single(unions: Mapping[str, intervals.Intervals], edges: intervals.Array) -> list[Piece]:
    first, span = int(edges[0]), int(edges[-1] - edges[0])
    return [
        Piece((start - first) / span, (end - first) / span, 1.0, kind, end - start)
        for kind, (starts, ends) in unions.items()
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def _binned(unions: Mapping[str, intervals.Intervals], edges: intervals.Array) -> list[Piece]:
    kinds = list(unions)
    filled = np.stack([intervals.covered(unions[kind], edges[:-1], edges[1:]) for kind in kinds])
    return _bins(filled.astype(np.float64), kinds, edges)


def _bins(filled: _Floats, kinds: Sequence[str], edges: intervals.Array) -> list[Piece]:
    """Bins in which something runs, named after the kind that fills most of each; `filled` is kinds x bins, ns."""
    widths = np.maximum(edges[1:] - edges[:-1], 1)
    most = filled.argmax(axis=0)
    total = np.minimum(filled.sum(axis=0), widths)
    places = np.linspace(0, 1, len(edges))
    return [
        Piece(float(places[bin_]), float(places[bin_ + 1]), float(total[bin_] / widths[bin_]), kinds[most[bin_]],
              round(total[bin_]))
        for bin_ in np.flatnonzero(total > 0).tolist()
    ]  # fmt: skip


def _compute(compute: _Curve, edges: intervals.Array) -> tuple[Piece, ...]:
    per_bin = np.diff(compute.at(edges))
    return tuple(_bins(per_bin[np.newaxis, :], ["compute"], edges))


def _exposed(summary: RankSummary, compute: _Curve, edges: intervals.Array) -> tuple[Piece, ...]:
    """Communication that no compute covers.

    A segment of the communication timeline tells how much of it is covered, not where; compute tells that.
    """
    placed = (
        summary.segments.sort("kernel", "segment")
        .join(summary.kernels.select("kernel", "start_ns"), on="kernel", how="left", maintain_order="left")
        .with_columns(end_ns=pl.col("start_ns") + pl.col("length_ns").cum_sum().over("kernel"))
        .unique("segment", keep="first", maintain_order=True)
        .sort("end_ns")
    )
    if placed.is_empty():
        return ()
    ends, lengths = placed["end_ns"].to_numpy(), placed["length_ns"].to_numpy()
    starts, covered = ends - lengths, placed["covered_ns"].to_numpy()
    guessed = compute.at(ends) - compute.at(starts)
    scale = np.divide(covered, guessed, out=np.zeros(len(ends)), where=guessed > 0)
    even = np.where(guessed > 0, 0.0, covered / np.maximum(lengths, 1))
    points = np.unique(np.concatenate((starts, ends, edges)))
    left, length = points[:-1], np.diff(points)
    segment = np.searchsorted(starts, left, side="right") - 1
    inside = (segment >= 0) & (left < ends[segment]) & (left >= edges[0]) & (left < edges[-1])
    hidden = scale[segment] * np.diff(compute.at(points)) + even[segment] * length
    exposed = np.where(inside, np.clip(length - hidden, 0, length), 0)
    place = np.clip(np.searchsorted(edges, left, side="right") - 1, 0, BINS - 1)
    per_bin = np.bincount(place, weights=exposed, minlength=BINS).astype(np.float64)
    return tuple(_bins(per_bin[np.newaxis, :], ["exposed"], edges))


class _Curve:
    """How much was done before each moment, when every amount is spread evenly over its interval."""

    def __init__(self, starts: intervals.Array, ends: intervals.Array, amounts: _Floats) -> None:
        slopes = amounts / np.maximum(ends - starts, 1)
        points, places = np.unique(np.concatenate((starts, ends)), return_inverse=True)
        changes = np.bincount(places, weights=np.concatenate((slopes, -slopes)), minlength=points.size)
        # two threads that compute at once fill their time once
        rising = np.clip(np.cumsum(changes)[:-1], 0, 1) * np.diff(points)
        self._points, self._before = points, np.concatenate(([0.0], np.cumsum(rising)))

    def at(self, moments: intervals.Array) -> _Floats:
        """The amount before each moment."""
        if not self._points.size:
            return np.zeros(len(moments))
        return np.interp(moments, self._points, self._before)


def _compute_curve(summary: RankSummary) -> _Curve:
    """Compute between calls, spread over the time from its first kernel to its last."""
    compute = summary.compute.drop_nulls(["start_ns", "end_ns"]).filter(pl.col("end_ns") > pl.col("start_ns"))
    busy = compute["busy_ns"].to_numpy().astype(np.float64)
    return _Curve(compute["start_ns"].to_numpy(), compute["end_ns"].to_numpy(), busy)
