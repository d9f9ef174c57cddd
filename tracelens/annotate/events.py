"""Tracks as events of the JSON trace format, by Perfetto's rules for it.

Rules: complete slices (`ph: X`) of one thread must nest or follow one another; times are µs; metadata events name
processes and threads (perfetto.dev/docs/getting-started/other-formats, and the Trace Event Format that it refers to).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tracelens.annotate.tracks import Slice, Track
from tracelens.collectives import Primitive

CATEGORY = "tracelens"
FIRST_PROCESS = 1 << 28
"""No process has such a number: Linux counts them up to 2^22 (PID_MAX_LIMIT)."""
FIRST_ISSUE_THREAD = 1000

# Reserved colour names of the Trace Event Format. chrome://tracing and tools after it show them; Perfetto colours a
# slice by its name, which is why the names of slices begin with axis and primitive.
COLOURS: dict[str, str] = {
    Primitive.all_reduce: "rail_response",
    Primitive.all_gather: "thread_state_runnable",
    Primitive.reduce_scatter: "rail_idle",
    Primitive.all_to_all: "detailed_memory_dump",
    Primitive.send: "rail_load",
    Primitive.recv: "thread_state_running",
    Primitive.broadcast: "light_memory_dump",
    Primitive.reduce: "olive",
}
_OTHER_COLOUR = "generic_work"


def write_events(tracks: Sequence[Track], first_key: str = "ph") -> Iterator[bytes]:
    """The events of all tracks, each as JSON.

    Args:
        tracks: what to draw.
        first_key: the key to begin with, so that all events of the file begin alike.
    """
    for number, track in enumerate(tracks):
        for event in _track_events(track, FIRST_PROCESS + number, number):
            yield _encode(event, first_key)


def _track_events(track: Track, process: int, number: int) -> Iterator[dict[str, Any]]:
    start = min(one.start_ns for one in (*track.kernels, *track.issued))
    yield _metadata("process_name", process, 0, start, {"name": f"TraceLens: {track.label}"})
    yield _metadata("process_sort_index", process, 0, start, {"sort_index": number - 1000})
    for slices, first, what in (
        (track.kernels, 1, "on the GPU"),
        (track.issued, FIRST_ISSUE_THREAD, "issued on the CPU, no kernel"),
    ):
        for lane in range(1 + max((one.lane for one in slices), default=-1)):
            name = f"{what}, lane {lane + 1}" if lane else what
            yield _metadata("thread_name", process, first + lane, start, {"name": name})
            yield _metadata("thread_sort_index", process, first + lane, start, {"sort_index": first + lane})
        for one in slices:
            yield _slice_event(one, process, first + one.lane)


def _metadata(name: str, process: int, thread: int, start_ns: int, args: dict[str, Any]) -> dict[str, Any]:
    """What a process or thread is called; its time is that of the first slice, so that it stretches no trace."""
    event = {"ph": "M", "cat": CATEGORY, "name": name, "pid": process, "tid": thread}
    return {**event, "ts": _microseconds(start_ns), "args": args}


def _slice_event(one: Slice, process: int, thread: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": CATEGORY,
        "name": one.name,
        "pid": process,
        "tid": thread,
        "ts": _microseconds(one.start_ns),
        "dur": _microseconds(one.end_ns - one.start_ns),
        "cname": COLOURS.get(one.primitive, _OTHER_COLOUR),
        "args": one.args,
    }


def _microseconds(ns: int) -> msgspec.Raw:
    """Ns as a decimal of µs, exact: a float has no room for the ns of an absolute time."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return msgspec.Raw(f"{sign}{ns // 1000}.{ns % 1000:03d}".encode())


def _encode(event: dict[str, Any], first_key: str) -> bytes:
    if first_key in event:
        event = {first_key: event[first_key], **event}
    return msgspec.json.encode(event)
