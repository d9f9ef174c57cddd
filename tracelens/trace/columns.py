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
from tracelens.trace.schema import KINDS, MEMCPY_CATEGORIES, MEMSET_CATEGORIES, NO_ARGS, Args, Kind
from tracelens.trace.tables import RECORD_FIELDS, SCHEMAS, Table
from tracelens.trace.times import Times, read_times
from tracelens.units import plural


class Codes(dict[Any, int]):
    """Values numbered in the order of their first appearance; `codes[value]` numbers a new one."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


PROFILER_STEP = "ProfilerStep#"
"""Begins the name of a step of the profiler; its number follows."""

CAPTURED_RECORD = "tracelens::record_param_comms"
"""What our own capture writes where PyTorch writes no record (docs/capture.md)."""


class CpuRole(IntEnum):
    """What a CPU operator is to us."""

    skip = 0
    record = 1
    collective = 2
    matmul = 3
    backward = 4
    step = 5


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
    if name.startswith(PROFILER_STEP):
        return CpuRole.step  # no annotation yet in 2021
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
_NAME = attrgetter("name")


@dataclass(slots=True)
class Events:
    """The events of one file that are of use, as frames; times in ns without the base of the trace.

    Attributes:
        names: code of a name to the name.
        threads: code of a CPU thread to its (pid, tid).
        gpu: kernels, copies and fills: name, work, start_ns, end_ns, device, stream, correlation, external_id, and
            grid, where a number stands for equal grids.
        kernel_records: what Kineto copied from records to kernels: row of `gpu`, and `RECORD_FIELDS`.
        launches: runtime and driver calls with a correlation: name, start_ns, end_ns, thread, correlation.
        records: `record_param_comms`, or ours (`captured`): start_ns, end_ns, thread, the fields above, and the raw
            inputs as text.
        operators: c10d operators, `nccl:` and `gloo:` annotations: name, start_ns, end_ns, thread, external_id, input
            dims and types as text.
        products: matrix products: name, external_id, and dims, a code of `texts`.
        texts: code to text of input dims, which are few for many products.
        backward: what autograd evaluates: start_ns, end_ns, thread.
        annotations: user annotations: name, start_ns, end_ns, thread.
        told: what was odd, code and message.
    """

    names: list[str]
    threads: list[tuple[object, object]]
    thread_names: dict[object, str]
    gpu: pl.DataFrame
    kernel_records: pl.DataFrame
    launches: pl.DataFrame
    records: pl.DataFrame
    operators: pl.DataFrame
    products: pl.DataFrame
    backward: pl.DataFrame
    annotations: pl.DataFrame
    window_ns: tuple[int, int] | None
    texts: list[str] = field(default_factory=list)
    process_names: dict[object, str] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)


class Collector:
    """Takes batches of events in and gives their columns once all are in."""

    def __init__(self) -> None:
        self._names = Codes()
        self._threads = Codes()
        self._grids = Codes()
        self._texts = Codes()
        self._roles = _Roles()
        self._thread_names: dict[object, str] = {}
        self._process_names: dict[object, str] = {}
        self._tables = {name: Table(schema) for name, schema in SCHEMAS.items()}
        self._gpu_rows = 0
        self._window: tuple[int, int] | None = None
        self._odd = dict.fromkeys(_ODD, 0)

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Take a batch in; its events are all of one type."""
        kinds = bytes(map(_KINDS.__getitem__, map(_CATEGORY, events)))
        for kind, take in _HANDLERS.items():
            if kind in kinds:
                take(self, _pick(events, kinds, kind))

    def finish(self) -> Events:
        """All columns; the collector is empty afterwards."""
        return Events(
            names=[name or "" for name in self._names],
            threads=list(self._threads),
            thread_names=self._thread_names,
            process_names=self._process_names,
            window_ns=self._window,
            texts=list(self._texts),
            told=[(code, plural(count, *_ODD[code])) for code, count in self._odd.items() if count],
            **{name: table.finish() for name, table in self._tables.items()},
        )

    def _timed(self, events: list[AnyEvent]) -> tuple[list[AnyEvent], Times]:
        """The events that have a time, and their times; Kineto writes no others, broken writers do."""
        times = read_times(events)
        if not times.known.all():
            self._odd["events-without-time"] += len(events) - int(times.known.sum())
            events = list(compress(events, times.known))
            times = times.where_known()
        return events, times

    def _name_codes(self, events: Sequence[AnyEvent]) -> npt.NDArray[np.uint32]:
        return np.fromiter(map(self._names.__getitem__, map(_NAME, events)), np.uint32, len(events))

    def _thread_codes(self, events: Sequence[AnyEvent]) -> npt.NDArray[np.int32]:
        pairs = zip(map(attrgetter("pid"), events), map(attrgetter("tid"), events), strict=True)
        return np.fromiter(map(self._threads.__getitem__, pairs), np.int32, len(events))

    def _take_gpu(self, events: list[AnyEvent]) -> None:
        events, times = self._timed(events)
        args = _arguments(events)
        grids = map(bytes, map(attrgetter("grid"), args))
        columns = {
            "name": self._name_codes(events),
            "start_ns": times.start,
            "end_ns": times.end,
            "work": np.fromiter(map(_GPU_WORK.__getitem__, map(_CATEGORY, events)), np.uint8, len(events)),
            "device": _numbers(args, "device", events, "pid"),
            "stream": _numbers(args, "stream", events, "tid"),
            "grid": np.fromiter(map(self._grids.__getitem__, grids), np.int32, len(events)),
            "correlation": _integers(args, "correlation"),
            "external_id": _integers(args, "external_id"),
        }
        self._tables["gpu"].put(columns, len(events))
        self._odd["durations-missing"] += len(events) - int(times.lasting.sum())
        if None in self._names:
            self._odd["kernels-without-name"] += list(map(_NAME, events)).count(None)
        self._take_kernel_records(args)
        self._gpu_rows += len(events)

    def _take_kernel_records(self, args: list[Args]) -> None:
        sized = [(row, arg) for row, arg in enumerate(args, self._gpu_rows) if arg.collective is not None]
        if sized:
            rows, carrying = zip(*sized, strict=True)
            self._tables["kernel_records"].put({"row": rows, **_record_columns(carrying)}, len(rows))

    def _take_launches(self, events: list[AnyEvent]) -> None:
        mask = [arg.correlation is not None for arg in _arguments(events)]
        events, columns = self._spans(list(compress(events, mask)))
        columns["correlation"] = _integers(_arguments(events), "correlation")
        self._tables["launches"].put(columns, len(events))

    def _take_cpu(self, events: list[AnyEvent]) -> None:
        roles = bytes(map(self._roles.__getitem__, map(_NAME, events)))
        for role, take in _CPU_HANDLERS.items():
            if role in roles:
                take(self, _pick(events, roles, role))

    def _take_records(self, events: list[AnyEvent]) -> None:
        events, times = self._timed(events)
        args = _arguments(events)
        columns = {
            "start_ns": times.start,
            "end_ns": times.end,
            "thread": self._thread_codes(events),
            "captured": [event.name == CAPTURED_RECORD for event in events],
            **_record_columns(args),
            **{key: _texts(args, key) for key in ("input_dims", "input_types", "concrete_inputs")},
        }
        self._tables["records"].put(columns, len(events))

    def _spans(self, events: list[AnyEvent]) -> tuple[list[AnyEvent], dict[str, Any]]:
        events, times = self._timed(events)
        threads = self._thread_codes(events)
        columns = {"name": self._name_codes(events), "start_ns": times.start, "end_ns": times.end, "thread": threads}
        return events, columns

    def _take_operators(self, events: list[AnyEvent]) -> None:
        events, columns = self._spans(events)
        args = _arguments(events)
        columns["external_id"] = _integers(args, "external_id")
        columns |= {key: _texts(args, key) for key in ("input_dims", "input_types")}
        self._tables["operators"].put(columns, len(events))

    def _take_products(self, events: list[AnyEvent]) -> None:
        args = _arguments(events)
        columns = {
            "name": self._name_codes(events),
            "external_id": _integers(args, "external_id"),
            "dims": [None if text is None else self._texts[text] for text in _texts(args, "input_dims")],
        }
        self._tables["products"].put(columns, len(events))

    def _take_backward(self, events: list[AnyEvent]) -> None:
        events, columns = self._spans(events)
        self._tables["backward"].put(columns, len(events))

    def _take_annotations(self, events: list[AnyEvent]) -> None:
        events, columns = self._spans(events)
        self._tables["annotations"].put(columns, len(events))
        named = [event for event in events if event.name is not None and event.name.startswith(("nccl:", "gloo:"))]
        if named:
            self._take_operators(named)

    def _take_metadata(self, events: list[AnyEvent]) -> None:
        for event in events:
            if event.dur is not None:
                self._odd["events-without-category"] += 1
            if event.args is None or event.args.name is None:
                continue
            if event.name == "thread_name":
                self._thread_names[event.pid, event.tid] = event.args.name
            elif event.name == "process_name":
                self._process_names[event.pid] = event.args.name

    def _take_window(self, events: list[AnyEvent]) -> None:
        events, times = self._timed(events)
        if len(events):
            self._window = int(times.start.min()), int(times.end.max())


_ODD = {
    "events-without-time": ("event without a usable time was left out", "events without a usable time were left out"),
    "durations-missing": (
        "kernel or copy has no usable duration and counts as empty",
        "kernels or copies have no usable duration and count as empty",
    ),
    "kernels-without-name": (
        "kernel or copy has no name: whether it communicates can't be told",
        "kernels or copies have no name: what communicates among them can't be told",
    ),
    "events-without-category": (
        "event that lasts has no category and was left out",
        "events that last have no category and were left out",
    ),
}

_HANDLERS = {
    Kind.gpu: Collector._take_gpu,
    Kind.launch: Collector._take_launches,
    Kind.cpu: Collector._take_cpu,
    Kind.annotation: Collector._take_annotations,
    Kind.metadata: Collector._take_metadata,
    Kind.span: Collector._take_window,
}
_CPU_HANDLERS = {
    CpuRole.record: Collector._take_records,
    CpuRole.collective: Collector._take_operators,
    CpuRole.matmul: Collector._take_products,
    CpuRole.backward: Collector._take_backward,
    CpuRole.step: Collector._take_annotations,
}


def _pick(events: Sequence[AnyEvent], codes: bytes, code: int) -> list[AnyEvent]:
    """The events whose code is the given one."""
    # a mask of bytes: iterating over an array of bools makes an object per event
    return list(compress(events, (np.frombuffer(codes, np.uint8) == code).tobytes()))


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
    return [bytes(raw).decode(errors="replace") or None for raw in map(attrgetter(key), args)]


def _integers(args: Sequence[Args], key: str) -> Any:
    """A field as an array, or as a list where it is missing or too large somewhere."""
    get = attrgetter(key)
    try:
        return np.fromiter(map(get, args), np.int64, len(args))
    except (TypeError, ValueError, OverflowError):
        return list(map(get, args))


def _numbers(args: Sequence[Args], key: str, events: Sequence[AnyEvent], instead: str) -> Any:
    """The number of a device or stream; where the arguments leave it out, that of the process or thread."""
    numbers = _integers(args, key)
    if isinstance(numbers, np.ndarray):
        return numbers
    told, other = map(attrgetter(key), args), map(attrgetter(instead), events)
    return [_number(value if value is not None else fallback) for value, fallback in zip(told, other, strict=True)]


def _number(value: object) -> int | None:
    """The last number in a stream or process id such as `stream 7`; None when it has none."""
    if isinstance(value, int):
        return value
    digits = str(value).split()[-1:] if value is not None else []
    return int(digits[0]) if digits and digits[0].isdecimal() else None
