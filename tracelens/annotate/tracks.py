"""What is drawn into a trace: a track per axis, with a slice per communication kernel or per call without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec
import polars as pl

from tracelens.collectives import Primitive
from tracelens.measurement.traffic import bandwidths
from tracelens.report.document import Document
from tracelens.report.families import find_families, find_owners
from tracelens.report.timeline import find_group
from tracelens.results import Group
from tracelens.summary import RankSummary
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, format_bytes

UNATTRIBUTED = "unattributed"


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """One slice; times in ns, counted as the trace counts its own."""

    start_ns: int
    end_ns: int
    name: str
    primitive: str
    lane: int
    """Slices of one lane never overlap partly; lanes count from 0."""
    args: Mapping[str, Any]


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one kind of group: its kernels, and its calls without one as they were issued."""

    label: str
    kernels: tuple[Slice, ...]
    issued: tuple[Slice, ...]


class _Named(msgspec.Struct, frozen=True):
    """What a process group is called in the report."""

    label: str
    group: Group


def lay_tracks(summary: RankSummary, document: Document) -> tuple[Track, ...]:
    """Tracks in the order of their first slice.

    Args:
        summary: of the trace.
        document: with axes on its groups, where they are known; a group without one goes by what it is called.
    """
    named = _name_groups(summary, document)
    kernels = [(label, row) for row in _kernel_rows(summary) for label in [_label(row, named)]]
    issued = [(label, row) for row in _call_rows(summary) for label in [_label(row, named)]]
    first = sorted((row["start_ns"], label) for label, row in (*kernels, *issued))
    return tuple(
        Track(
            label=label,
            kernels=_slices(label, [row for own, row in kernels if own == label], named),
            issued=_slices(label, [row for own, row in issued if own == label], named),
        )
        for label in dict.fromkeys(label for _, label in first)
    )


def _name_groups(summary: RankSummary, document: Document) -> dict[int, _Named]:
    owners = find_owners(find_families(document.groups, world_size=document.run.world_size))
    found = {index: find_group(local, document.groups) for index, local in enumerate(summary.head.groups)}
    return {index: _Named(owners[group.id], group) for index, group in found.items() if group is not None}


def _label(row: Mapping[str, Any], named: Mapping[int, _Named]) -> str:
    group = named.get(row["group"])
    return UNATTRIBUTED if group is None else group.label


_CALL = ("primitive", "dtype", "group", "group_size", "step", "phase", "label", "seq", "peer", "evidence")


def _kernel_rows(summary: RankSummary) -> list[dict[str, Any]]:
    """A row per communication kernel: its own time, what its calls say, and its exposed part."""
    served = (
        summary.links.join(summary.calls.select("call", "payload_bytes", "wire_bytes", "kernels"), on="call")
        .group_by("kernel")
        .agg(
            calls=pl.len(),
            kernels_of_call=pl.col("kernels").max(),
            payload_bytes=pl.when(pl.col("payload_bytes").is_not_null().any()).then(pl.col("payload_bytes").sum()),
            wire_bytes=pl.when(pl.col("wire_bytes").is_not_null().any()).then(pl.col("wire_bytes").sum()),
        )
    )
    exposed = summary.segments.group_by("kernel").agg(exposed_ns=(pl.col("length_ns") - pl.col("covered_ns")).sum())
    return (
        summary.kernels.select("kernel", "start_ns", "end_ns", "owner", "family", "hint", "stream", name="name")
        .join(summary.calls.select("call", *_CALL), left_on="owner", right_on="call", how="left", maintain_order="left")
        .join(served, on="kernel", how="left", maintain_order="left")
        .join(exposed, on="kernel", how="left", maintain_order="left")
        .with_columns(
            primitive=pl.coalesce("primitive", "hint", pl.lit(Primitive.other.value)), exposed=pl.col("exposed_ns")
        )
        .sort("start_ns", pl.col("end_ns"), descending=[False, True], maintain_order=True)
        .to_dicts()
    )


def _call_rows(summary: RankSummary) -> list[dict[str, Any]]:
    """A row per call that no kernel served: gloo, groups of one, and what the recording cut off."""
    calls = summary.calls.filter(pl.col("kernels") == 0).drop_nulls(["issue_ns", "issue_end_ns"])
    return (
        calls.select(*_CALL, "payload_bytes", "wire_bytes", start_ns="issue_ns", end_ns="issue_end_ns")
        .sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)
        .to_dicts()
    )


def _slices(label: str, rows: Sequence[Mapping[str, Any]], named: Mapping[int, _Named]) -> tuple[Slice, ...]:
    lanes = assign_lanes([(row["start_ns"], row["end_ns"]) for row in rows])
    return tuple(
        Slice(
            start_ns=row["start_ns"],
            end_ns=row["end_ns"],
            name=_slice_name(label, row),
            primitive=row["primitive"],
            lane=lane,
            args=_args(row, named.get(row["group"])),
        )
        for row, lane in zip(rows, lanes, strict=True)
    )


def assign_lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """A lane for each interval, the lowest that is free when it starts.

    >>> assign_lanes([(0, 5), (3, 8), (5, 6)])
    [0, 1, 0]

    Args:
        spans: start and end, by ascending start.
    """
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    lanes = []
    for start, end in spans:
        while taken and taken[0][0] <= start:
            heappush(free, heappop(taken)[1])
        lane = heappop(free) if free else len(taken)
        heappush(taken, (end, lane))
        lanes.append(lane)
    return lanes


def _slice_name(label: str, row: Mapping[str, Any]) -> str:
    if row.get("name") is not None and row["evidence"] is None:
        return f"{label} {row['family'] or row['name']}"
    size = row["payload_bytes"]
    return f"{label} {row['primitive']} {UNKNOWN if size is None else format_bytes(size)}"


def _args(row: Mapping[str, Any], named: _Named | None) -> dict[str, Any]:
    """What a click on the slice shows; nothing that is not known."""
    duration, payload = row["end_ns"] - row["start_ns"], row["payload_bytes"]
    is_alone = row.get("calls") == 1 and row.get("kernels_of_call") == 1
    algorithm, bus = (
        bandwidths(Primitive(row["primitive"]), row["group_size"], payload, duration) if is_alone else (None, None)
    )
    group = None if named is None else named.group
    told = {
        "primitive": row["primitive"],
        "dtype": row["dtype"],
        "payload bytes": payload,
        "wire bytes": None if row["wire_bytes"] is None else round(row["wire_bytes"]),
        "algbw GB/s": None if algorithm is None else round(algorithm / 1e9, 3),
        "busbw GB/s": None if bus is None else round(bus / 1e9, 3),
        "exposed us": None if row.get("exposed_ns") is None else row["exposed_ns"] / 1000,
        "group": None if group is None else group.id,
        "group names": None if group is None else ", ".join(group.names),
        "group ranks": None if group is None or group.ranks is None else format_ranks(group.ranks),
        "group size": row["group_size"],
        "phase": row["phase"],
        "module": row["label"],
        "Seq": row["seq"],
        "peer": row["peer"],
        "calls in this kernel": row.get("calls") if row.get("calls") != 1 else None,
        "kernels of this call": row.get("kernels_of_call") if row.get("kernels_of_call") != 1 else None,
        "known from": row["evidence"],
        "kernel": row.get("name"),
        "stream": row.get("stream"),
    }
    return {key: value for key, value in told.items() if value is not None}
