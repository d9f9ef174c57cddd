"""Our own figures of a whole file, under HTA's names: the package's unions on exact ns."""

from __future__ import annotations

from functools import reduce

import polars as pl

from tracelens.crosscheck.figures import KINDS, OVERLAP, Figures, label_of
from tracelens.crosscheck.recording import Recording, our_kind
from tracelens.intervals import Intervals, intersection, length, union


def our_figures(recording: Recording) -> Figures:
    """What we say of the file, µs and percent; None where there is nothing to divide by."""
    head, gpu = recording.summary.head, recording.gpu
    parts = {kind: gpu.filter(our_kind() == kind) for kind in KINDS}
    alone = _exclusive([union(part["start_ns"].to_numpy(), part["end_ns"].to_numpy()) for part in parts.values()])
    return {
        OVERLAP: 100 * head.overlap_ns / head.comm_ns if head.comm_ns else None,
        **_temporal(gpu, alone),
        **_breakdown(alone),
        **{f"{kind} added up µs": _added_up(part) for kind, part in parts.items()},
    }


def _exclusive(sets: list[Intervals]) -> dict[int, int]:
    """Time in which exactly these kinds run, ns: bit i of a key stands for set i."""
    common = {
        state: length(reduce(intersection, [part for bit, part in enumerate(sets) if state >> bit & 1]))
        for state in range(1, 1 << len(sets))
    }
    alone: dict[int, int] = {}
    for state in sorted(common, key=int.bit_count, reverse=True):
        alone[state] = common[state] - sum(time for other, time in alone.items() if other & state == state)
    return alone


def _temporal(gpu: pl.DataFrame, alone: dict[int, int]) -> Figures:
    if gpu.is_empty():
        return {}
    span = int(gpu["end_ns"].max()) - int(gpu["start_ns"].min())  # type: ignore[arg-type]
    busy, compute = sum(alone.values()), sum(time for state, time in alone.items() if state & 1)
    parts = {"compute": compute, "non-compute": busy - compute, "idle": span - busy}
    times = {f"{name} µs": value / 1000 for name, value in parts.items()}
    return {
        "kernel time µs": span / 1000,
        **times,
        **{f"{name} %": 100 * value / span if span else None for name, value in parts.items()},
    }


def _breakdown(alone: dict[int, int]) -> Figures:
    busy = sum(alone.values())
    times = {f"{label_of(state)} µs": alone[state] / 1000 for state in sorted(alone)}
    return {**times, **{f"{label_of(s)} share": 100 * alone[s] / busy if busy else None for s in sorted(alone)}}


def _added_up(gpu: pl.DataFrame) -> float:
    return int((gpu["end_ns"] - gpu["start_ns"]).sum()) / 1000
