"""What is told of two sides put beside one another: a ledger and a job, or two runs of a job.

Plain immutable structs like those of `tracelens.results`, one field per JSON key of the contract.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from tracelens.collectives import Primitive
from tracelens.results import Phase
from tracelens.topology import Axis


class Verdict(StrEnum):
    """What a comparison says of a row: `absent` has only the first side, `unpredicted` only the second."""

    match = "match"
    more = "more"
    less = "less"
    absent = "absent"
    unpredicted = "unpredicted"


class ExampleCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call to look up in the trace."""

    rank: int | None
    step: int | None
    group: str | None
    name: str | None
    """Name of the process group."""
    seconds: float | None
    """Since the first event of the trace's file."""
    payload_bytes: int | None
    label: str | None = None
    """The module or operator that issued it, where the trace tells."""


class ComparisonRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of call, predicted and measured; calls and bytes are those of one rank in one step."""

    term: str | None
    """The terms of the ledger; several joined with ` + `. null: nothing was predicted."""
    rank_class: int = msgspec.field(name="class")
    stage: int | None
    """Pipeline rank; null without a pipeline."""
    axis: Axis | None
    mesh: tuple[tuple[int, int], ...] | None
    primitive: Primitive
    dtype: str | None
    phase: Phase | None
    predicted_calls: float | None
    measured_calls: float | None
    predicted_bytes: float | None
    """Wire bytes."""
    measured_bytes: float | None
    lacks_bytes: bool = False
    """Whether measured calls are without bytes, so that there are at least `measured_bytes`."""
    ratio: float | None
    """Measured over predicted bytes."""
    predicted_overlap: Literal["yes", "partial", "no"] | None
    measured_overlap_pct: float | None
    verdict: Verdict
    why: str | None = None
    """What explains a difference; null for a match."""
    ranks: tuple[int, ...] = ()
    group: str | None = None
    payload_bytes: int | None = None
    """Of one call, of the largest; null where calls differ, or none was measured."""
    example: ExampleCall | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True, tag_field="against", tag="ledger"):
    """Predicted against measured."""

    sizes_from: Literal["given", "metadata", "inferred"]
    layout_from: Literal["given", "metadata", "inferred"] = "given"
    model: str | None = None
    layout: str | None = None
    """The layout as options of `predict`."""
    tolerance: float = 0.01
    rows: tuple[ComparisonRow, ...]
    """What is unexplained comes first, the largest ahead."""
    explained_bytes_fraction: float | None
    """Share of the measured wire bytes in rows that match."""
    absent_bytes_fraction: float | None
    """Predicted wire bytes that were not seen, over all predicted."""
    unsized_time_fraction: float | None
    """Share of the communication time whose bytes are unknown."""
    inside_tolerance: bool
    """Neither what is unexplained nor what is absent is more than the tolerance."""
    assumptions: tuple[str, ...] = ()
    """What was taken for granted where neither options nor trace tell."""
    contradictions: tuple[str, ...] = ()
    """Where options say otherwise than the trace shows."""


class TimeVerdict(StrEnum):
    """What is said of a change in time."""

    same = "same"
    slower = "slower"
    faster = "faster"
    within_spread = "within_spread"
    """Smaller than the steps differ among themselves."""
    not_enough_data = "not_enough_data"
    not_comparable = "not_comparable"
    """The two sides read different ranks, which differ among themselves."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of call in two runs, per rank and step."""

    axis: Axis | None
    group: str
    """What the group is called: its axis, else its size and stride."""
    primitive: Primitive
    dtype: str | None
    from_bytes: int | None
    """Payload of a call, at least; both null in the row that holds all sizes."""
    to_bytes: int | None
    base_calls: float | None
    """0 where a run has no such call; null where it may be among those that no record tells of."""
    candidate_calls: float | None
    base_bytes: float | None
    candidate_bytes: float | None
    ratio: float | None
    base_busy_ns: float | None
    candidate_busy_ns: float | None
    base_exposed_ns: float | None
    candidate_exposed_ns: float | None
    spread_ns: float | None
    """By how much the busy time changes by chance: three standard errors of the difference."""
    verdict: Verdict
    """Of calls and bytes."""
    time_verdict: TimeVerdict
    why: str | None = None
    base_lacks_bytes: bool = False
    """Whether calls are without bytes, so that there are at least those that are told; likewise below."""
    candidate_lacks_bytes: bool = False
    base_lacks_time: bool = False
    candidate_lacks_time: bool = False


class MetricChange(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the step's time in two runs; ns."""

    name: str
    base: float | None
    candidate: float | None
    change: float | None
    """Candidate over base, less one."""
    base_steps: int
    candidate_steps: int
    spread: float | None
    """Three standard errors of the difference; null with fewer than three steps on either side."""
    verdict: TimeVerdict


class RunComparison(msgspec.Struct, frozen=True, kw_only=True, tag_field="against", tag="run"):
    """Measured against measured."""

    base: str
    candidate: str
    tolerance: float = 0.01
    metrics: tuple[MetricChange, ...]
    rows: tuple[RunRow, ...]
    explained_bytes_fraction: float | None
    """Share of the candidate's wire bytes in rows that match."""
    absent_bytes_fraction: float | None
    """Bytes of the base that the candidate lacks."""
    unsized_time_fraction: float | None
    inside_tolerance: bool
    notes: tuple[str, ...] = ()
    """What else differs between the runs."""
