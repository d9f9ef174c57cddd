"""Events to columns: batches of typed events become polars frames, names become small codes.

The extraction runs through `map`, `compress` and `fromiter`, whose loops are in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import compress
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracelens.trace.decode import AnyEvent
from tracelens.trace.schema import KINDS, MEMCPY_CATEGORIES, MEMSET_CATEGORIES, NO_ARGS, Args, Event, Kind

IntArray = npt.NDArray[np.int64]


class Codes(dict[Any, int]):
    """Values numbered in the order of their first appearance; `codes[value]` numbers a new one."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


CAPTURED_RECORD = "tracelens::record_param_comms"
"""What our own capture writes where PyTorch writes no record (docs/capture.md)."""


class CpuRole(IntEnum):
    """What a CPU operator is to us."""

    skip = 0
    record = 1
    collective = 2
    matmul = 3
    backward = 4


class _Roles(dict[Any, int]):
    def __missing__(self, name: Any) -> int:
        role = self[name] = _cpu_role(name)
        return role


_MATMULS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_grouped_mm"})


def _cpu_role(name: object) -> CpuRole:
    if not isinstance(name, str):
        return CpuRole.skip
    if name in ("record_param_comms", CAPTURED_RECORD):
        return CpuRole.record
    if name.startswith(("c10d::", "_c10d_functional::", "c10d_functional::", "gloo:")):
        return CpuRole.collective
    if name in _MATMULS:
        return CpuRole.matmul
    return CpuRole.backward if name.startswith("autograd::engine::evaluate_function") else CpuRole.skip


class _Kinds(dict[Any, Kind]):
    def __missing__(self, category: Any) -> Kind:
        self[category] = Kind.skip  # found without this detour from now on
        return Kind.skip


_KINDS = _Kinds(KINDS)
_GPU_KINDS = {**dict.fromkeys(MEMCPY_CATEGORIES, 1), **dict.fromkeys(MEMSET_CATEGORIES, 2)}


class GpuWork(IntEnum):
    """What the GPU does in an event."""

    kernel = 0
    memcpy = 1
    memset = 2


class _GpuWork(dict[Any, int]):
    def __missing__(self, category: Any) -> int:
        return 0


_GPU_WORK = _GpuWork(_GPU_KINDS)

_CATEGORY = attrgetter("cat")
_ARGS = attrgetter("args")

RECORD_FIELDS: dict[str, pl.DataType] = {
    "external_id": pl.Int64(),
    "collective": pl.String(),
    "dtype": pl.String(),
    "in_elements": pl.Int64(),
    "out_elements": pl.Int64(),
    "in_elements_2_2": pl.Int64(),
    "out_elements_2_2": pl.Int64(),
    "in_splits": pl.String(),
    "out_splits": pl.String(),
    "group_size": pl.Int64(),
    "group_name": pl.String(),
    "group_id": pl.String(),
    "group_description": pl.String(),
    "group_ranks": pl.String(),
    "rank_start": pl.Int64(),
    "rank_stride": pl.Int64(),
    "rank": pl.Int64(),
    "src_rank": pl.Int64(),
    "dst_rank": pl.Int64(),
    "seq": pl.Int64(),
    "is_async": pl.Int64(),
}
"""Columns of a `record_param_comms`, as the decoder names them; a communication kernel carries a part of them."""


@dataclass(slots=True)
class Events:
    """The events of one file that are of use, as frames; times in ns without the base of the trace.

    Attributes:
        names: code of a name to the name.
        threads: code of a CPU thread to its (pid, tid).
        gpu: kernels, copies and fills: name, work, start_ns, end_ns, device, stream, correlation, external_id, and
            grid, where a number stands for equal grids.
        kernel_records: what Kineto copied from records to kernels: row of `gpu`, and `RECORD_FIELDS`.
        launches: runtime and driver calls with a correlation: name, start_ns, end_ns, thread, correlation,
            external_id.
        records: `record_param_comms`, or ours (`captured`): start_ns, end_ns, thread, the fields above, and the raw
            inputs as text.
        operators: c10d operators, `nccl:` annotations and matrix products: name, start_ns, end_ns, thread,
            external_id, input dims and types as text.
        backward: what autograd evaluates: start_ns, end_ns, thread.
        annotations: user annotations: name, start_ns, end_ns, thread.
    """

    names: list[str]
    threads: list[tuple[object, object]]
    thread_names: dict[object, str]
    gpu: pl.DataFrame
    kernel_records: pl.DataFrame
    launches: pl.DataFrame
    records: pl.DataFrame
    operators: pl.DataFrame
    backward: pl.DataFrame
    annotations: pl.DataFrame
    window_ns: tuple[int, int] | None
    process_names: dict[object, str] = field(default_factory=dict)
    dropped: int = 0
    """Events without the fields that make them an event (no timestamp, no name)."""


class Collector:
    """Takes batches of events in and gives their columns once all are in."""

    def __init__(self) -> None:
        self._names = Codes()
        self._threads = Codes()
        self._grids = Codes()
        self._roles = _Roles()
        self._thread_names: dict[object, str] = {}
        self._process_names: dict[object, str] = {}
        self._parts: dict[str, list[pl.DataFrame]] = {name: [] for name in _EMPTY}
        self._gpu_rows = 0
        self._window: tuple[int, int] | None = None
        self._dropped = 0

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Take a batch in."""
        kinds = np.fromiter(map(_KINDS.__getitem__, map(_CATEGORY, events)), np.int8, len(events))
        for kind, take in _HANDLERS.items():
            mask = kinds == kind
            if mask.any():
                take(self, list(compress(events, mask)))

    def finish(self) -> Events:
        """All columns; the collector is empty afterwards."""
        frames = {name: pl.concat(parts) if parts else _EMPTY[name] for name, parts in self._parts.items()}
        self._parts = {name: [] for name in _EMPTY}
        names = [name if isinstance(name, str) else "" for name in self._names]
        return Events(
            names=names,
            threads=list(self._threads),
            thread_names=self._thread_names,
            process_names=self._process_names,
            window_ns=self._window,
            dropped=self._dropped,
            **frames,
        )

    def _timed(self, events: list[AnyEvent]) -> list[AnyEvent]:
        """Only events with a time; Kineto writes no others, broken writers do."""
        whole = [event for event in events if event.ts is not None and event.name is not None]
        self._dropped += len(events) - len(whole)
        return whole

    def _times(self, events: list[AnyEvent]) -> tuple[list[AnyEvent], IntArray, IntArray]:
        try:
            start = _start_ns(events)
        except TypeError:
            events = self._timed(events)
            start = _start_ns(events)
        durations = list(map(attrgetter("dur"), events))
        if None in durations:
            durations = [duration or 0.0 for duration in durations]
        return events, start, start + _to_ns(np.fromiter(durations, np.float64, len(events)))

    def _base(self, events: list[AnyEvent]) -> tuple[list[AnyEvent], dict[str, Any]]:
        events, start, end = self._times(events)
        name = np.fromiter(map(self._names.__getitem__, map(attrgetter("name"), events)), np.uint32, len(events))
        return events, {"name": name, "start_ns": start, "end_ns": end}

    def _thread_codes(self, events: list[AnyEvent]) -> npt.NDArray[np.int32]:
        pairs = zip(map(attrgetter("pid"), events), map(attrgetter("tid"), events), strict=True)
        return np.fromiter(map(self._threads.__getitem__, pairs), np.int32, len(events))

    def _put(self, name: str, columns: dict[str, Any]) -> None:
        self._parts[name].append(pl.DataFrame(columns, schema=_EMPTY[name].schema))

    def _take_gpu(self, events: list[AnyEvent]) -> None:
        events, columns = self._base(events)
        args = _arguments(events)
        streams = list(map(attrgetter("stream"), args))
        if None in streams or not all(map(int.__instancecheck__, streams)):
            streams = [_number(s if s is not None else e.tid) for s, e in zip(streams, events, strict=True)]
        devices = list(map(attrgetter("device"), args))
        if None in devices:
            devices = [_number(d if d is not None else e.pid) for d, e in zip(devices, events, strict=True)]
        work = np.fromiter(map(_GPU_WORK.__getitem__, map(_CATEGORY, events)), np.uint8, len(events))
        grids = map(bytes, map(attrgetter("grid"), args))
        grid = np.fromiter(map(self._grids.__getitem__, grids), np.int32, len(events))
        columns |= {"work": work, "device": devices, "stream": streams, "grid": grid}
        columns |= {key: list(map(attrgetter(key), args)) for key in ("correlation", "external_id")}
        self._put("gpu", columns)
        self._take_kernel_records(args)
        self._gpu_rows += len(events)

    def _take_kernel_records(self, args: list[Args]) -> None:
        sized = [(row, arg) for row, arg in enumerate(args, self._gpu_rows) if arg.collective is not None]
        if sized:
            rows, carrying = zip(*sized, strict=True)
            self._put("kernel_records", {"row": rows, **_record_columns(carrying)})

    def _take_launches(self, events: list[AnyEvent]) -> None:
        args = _arguments(events)
        mask = [arg.correlation is not None for arg in args]
        events = list(compress(events, mask))
        if not events:
            return
        events, columns = self._base(events)
        args = _arguments(events)
        columns["thread"] = self._thread_codes(events)
        columns |= {key: list(map(attrgetter(key), args)) for key in ("correlation", "external_id")}
        self._put("launches", columns)

    def _take_cpu(self, events: list[AnyEvent]) -> None:
        names = map(attrgetter("name"), events)
        roles = np.fromiter(map(self._roles.__getitem__, names), np.int8, len(events))
        if (roles == CpuRole.record).any():
            self._take_records(list(compress(events, roles == CpuRole.record)))
        for role, frame in ((CpuRole.backward, "backward"), (CpuRole.collective, "operators")):
            mask = roles == role
            if mask.any():
                self._take_spans(frame, list(compress(events, mask)))
        mask = roles == CpuRole.matmul
        if mask.any():
            self._take_spans("operators", list(compress(events, mask)))

    def _take_records(self, events: list[AnyEvent]) -> None:
        events, start, end = self._times(events)
        args = _arguments(events)
        columns: dict[str, Any] = {"start_ns": start, "end_ns": end, "thread": self._thread_codes(events)}
        columns["captured"] = [event.name == CAPTURED_RECORD for event in events]
        columns |= _record_columns(args)
        for key in ("input_dims", "input_types", "concrete_inputs"):
            columns[key] = _texts(args, key)
        self._put("records", columns)

    def _take_spans(self, frame: str, events: list[AnyEvent]) -> None:
        events, columns = self._base(events)
        columns["thread"] = self._thread_codes(events)
        if frame == "operators":
            args = _arguments(events)
            columns["external_id"] = list(map(attrgetter("external_id"), args))
            columns |= {key: _texts(args, key) for key in ("input_dims", "input_types")}
        self._put(frame, columns)

    def _take_annotations(self, events: list[AnyEvent]) -> None:
        self._take_spans("annotations", events)
        named = [event for event in events if event.name is not None and event.name.startswith("nccl:")]
        if named:
            self._take_spans("operators", named)

    def _take_metadata(self, events: list[AnyEvent]) -> None:
        for event in events:
            if event.args is None or event.args.name is None:
                continue
            if event.name == "thread_name":
                self._thread_names[event.pid, event.tid] = event.args.name
            elif event.name == "process_name":
                self._process_names[event.pid] = event.args.name

    def _take_window(self, events: list[AnyEvent]) -> None:
        events, start, end = self._times(events)
        if len(events):
            self._window = int(start.min()), int(end.max())


_HANDLERS = {
    Kind.gpu: Collector._take_gpu,
    Kind.launch: Collector._take_launches,
    Kind.cpu: Collector._take_cpu,
    Kind.annotation: Collector._take_annotations,
    Kind.metadata: Collector._take_metadata,
    Kind.span: Collector._take_window,
}

_SPAN: dict[str, pl.DataType] = {
    "name": pl.UInt32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "thread": pl.Int32(),
}
_IDS: dict[str, pl.DataType] = {"correlation": pl.Int64(), "external_id": pl.Int64()}
_GPU: dict[str, pl.DataType] = {"work": pl.UInt8(), "device": pl.Int64(), "stream": pl.Int64(), "grid": pl.Int32()}

_SCHEMAS: dict[str, dict[str, pl.DataType]] = {
    "gpu": {"name": pl.UInt32(), "start_ns": pl.Int64(), "end_ns": pl.Int64(), **_GPU, **_IDS},
    "kernel_records": {"row": pl.UInt32(), **RECORD_FIELDS},
    "launches": {**_SPAN, **_IDS},
    "records": {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "thread": pl.Int32(),
        "captured": pl.Boolean(),
        **RECORD_FIELDS,
        "input_dims": pl.String(),
        "input_types": pl.String(),
        "concrete_inputs": pl.String(),
    },
    "operators": {**_SPAN, "external_id": pl.Int64(), "input_dims": pl.String(), "input_types": pl.String()},
    "backward": _SPAN,
    "annotations": _SPAN,
}

_EMPTY = {name: pl.DataFrame(schema=schema) for name, schema in _SCHEMAS.items()}


def _arguments(events: list[AnyEvent]) -> list[Args]:
    args = list(map(_ARGS, events))
    return [arg or NO_ARGS for arg in args] if None in args else args


def _record_columns(args: Iterable[Args]) -> dict[str, Any]:
    args = list(args)
    columns: dict[str, Any] = {key: list(map(attrgetter(key), args)) for key in RECORD_FIELDS}
    for key in ("group_name", "group_id"):
        columns[key] = [None if value is None else str(value) for value in columns[key]]
    columns["is_async"] = [None if value is None else int(value) for value in columns["is_async"]]
    return columns


def _texts(args: Iterable[Args], key: str) -> list[str | None]:
    return [bytes(raw).decode() or None for raw in map(attrgetter(key), args)]


def _number(value: object) -> int | None:
    """The last number in a stream or process id such as `stream 7`; None when it has none."""
    if isinstance(value, int):
        return value
    digits = str(value).split()[-1:] if value is not None else []
    return int(digits[0]) if digits and digits[0].isdecimal() else None


def _start_ns(events: list[AnyEvent]) -> IntArray:
    if events and not isinstance(events[0], Event):
        return _exact_ns([bytes(event.ts).decode() for event in events if not isinstance(event, Event)])
    return _to_ns(np.fromiter(map(attrgetter("ts"), events), np.float64, len(events)))


def _to_ns(us: npt.NDArray[np.float64]) -> IntArray:
    """Microseconds to whole ns.

    The fraction is split off first: exact up to 2^43 µs, where a float's half spacing reaches half a ns.
    """
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _exact_ns(us: list[str]) -> IntArray:
    """Microseconds as written to ns, without a float in between."""
    text = pl.Series("us", us)
    parts = pl.DataFrame({"us": text}).select(
        whole=pl.col("us").str.extract(r"^(-?\d+)").cast(pl.Int64),
        fraction=pl.col("us").str.extract(r"\.(\d{1,3})").fill_null("0").str.pad_end(3, "0").cast(pl.Int64),
    )
    if parts["whole"].null_count():
        raise TypeError
    return (parts["whole"] * 1000 + parts["fraction"]).to_numpy()
