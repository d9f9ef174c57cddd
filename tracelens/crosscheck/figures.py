"""HTA's figures from GPU work, by HTA's arithmetic, so that its faults can be put in one after another.

Definitions read in HTA 0.5.0: `get_comm_comp_overlap` (analyzers/communication_analysis.py),
`get_temporal_breakdown` and `get_gpu_kernel_breakdown` (analyzers/breakdown_analysis.py),
`merge_kernel_intervals` (utils/utils.py). On exact times all of them are plain unions and intersections.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.crosscheck.recording import COMMUNICATION, COMPUTATION, MEMORY

Floats: TypeAlias = npt.NDArray[np.float64]
Spans: TypeAlias = tuple[Floats, Floats]
Figures: TypeAlias = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Work:
    """GPU work in HTA's order: starts and ends in µs, and of what kind each is."""

    starts: Floats
    ends: Floats
    kinds: npt.NDArray[np.str_]

    def of(self, kind: str) -> Spans:
        """The spans of one kind."""
        mine = self.kinds == kind
        return self.starts[mine], self.ends[mine]


KINDS = (COMPUTATION, COMMUNICATION, MEMORY)
_WEIGHTS = {COMPUTATION: 1, COMMUNICATION: 2, MEMORY: 4}
OVERLAP = "communication overlapped %"

DECIMALS = {"%": 2, "share": 1, "µs": 0, "steps": 0}
"""Digits after the point that HTA prints, by the last word of a figure's name."""


def decimals_of(name: str) -> int:
    """Digits after the point that HTA prints of a figure."""
    return DECIMALS[name.rpartition(" ")[2]]


def label_of(running: int) -> str:
    """HTA's name for the kinds that run at the same time, from the sum of their weights."""
    return " overlapping ".join(kind for kind in KINDS if running & _WEIGHTS[kind])


def figures_of(work: Work) -> Figures:
    """All figures of one rank, µs and percent; None where HTA has none."""
    by_kind = {kind: work.of(kind) for kind in KINDS}
    merged = {kind: merge(*spans) for kind, spans in by_kind.items()}
    added_up = {f"{kind} added up µs": _length(spans) for kind, spans in by_kind.items()}
    return {OVERLAP: overlap_percent(merged), **temporal(work, merged), **breakdown(merged), **added_up}


def merge(starts: Floats, ends: Floats) -> Spans:
    """Work that touches or overlaps becomes one span.

    HTA sorts without a stable order and lets a span that rounding has turned around (end before start) stand with
    its negative length; both are kept here, since they are in HTA's numbers.
    """
    if starts.size == 0:
        return starts, ends
    order = np.argsort(starts, kind="quicksort")
    starts, ends = starts[order], ends[order]
    opens = np.flatnonzero(np.concatenate(([True], starts[1:] > np.maximum.accumulate(ends)[:-1])))
    return starts[opens], np.maximum.reduceat(ends, opens)


def _length(spans: Spans) -> float:
    return float((spans[1] - spans[0]).sum())


def overlap_percent(merged: Mapping[str, Spans]) -> float | None:
    """|communication ∩ computation| / |communication| in percent; None without communication."""
    comm = _length(merged[COMMUNICATION])
    both = _running_time({kind: merged[kind] for kind in (COMPUTATION, COMMUNICATION)}).get(3, 0.0)
    return float(np.round(100 * (both / comm), 2)) if comm else None


def temporal(work: Work, merged: Mapping[str, Spans]) -> Figures:
    """From the first start to the last end: computing, busy with something else, idle."""
    starts, ends = merge(work.starts, work.ends)
    if starts.size == 0:
        return {}
    total = float(ends[-1] - starts[0])
    idle, compute = total - _length((starts, ends)), _length(merged[COMPUTATION])
    parts = {"compute": compute, "non-compute": total - compute - idle, "idle": idle}
    shares = {
        f"{name} %": float(np.round(100 * (value / total), 2)) if total else None for name, value in parts.items()
    }
    return {"kernel time µs": total, **{f"{name} µs": value for name, value in parts.items()}, **shares}


def breakdown(merged: Mapping[str, Spans]) -> Figures:
    """How long which kinds run at the same time, and their share of all of it."""
    running = _running_time(merged)
    sums = {label_of(state): running.get(state, 0.0) for state in range(1, 8)}
    total = sum(sums.values())
    shares = {
        f"{name} share": float(np.round(value / total * 100, 1)) if total else None for name, value in sums.items()
    }
    return {**{f"{name} µs": value for name, value in sums.items()}, **shares}


def _running_time(merged: Mapping[str, Spans]) -> dict[int, float]:
    """Time by what runs, as the sum of the kinds' weights: a sweep over all starts and ends."""
    times = np.concatenate([np.concatenate(part) for part in merged.values()])
    changes = np.concatenate(
        [np.repeat((_WEIGHTS[kind], -_WEIGHTS[kind]), part[0].size) for kind, part in merged.items()]
    )
    order = np.argsort(times, kind="stable")
    running, lengths = np.cumsum(changes[order])[:-1], np.diff(times[order])
    return {int(state): float(lengths[running == state].sum()) for state in np.unique(running) if state > 0}
