"""A baseline: what good runs did, as JSON that is small enough to live in git."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tracelens import __version__
from tracelens.collectives import Primitive
from tracelens.comparison.kinds import sum_kinds
from tracelens.comparison.step_times import METRICS, deviation, means_by_step
from tracelens.errors import InputError
from tracelens.results import Measurement
from tracelens.topology import Axis

SCHEMA_VERSION = 1
PARTS = ("step_time", "exposed_comm", "idle")
"""Parts of the step that are held against limits."""

_OF_COMMUNICATION = ("exposed_comm", "comm_overlap_pct")

_AGAIN = "write it again with `tracelens baseline update PATH -o FILE`"


class BaselineRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of call, of one rank in one step."""

    group: str
    """Size and stride, which no inference can change."""
    axis: Axis | None
    primitive: Primitive
    dtype: str | None
    calls: float
    wire_bytes: float | None
    calls_differ: float = 0.0
    """Largest difference between the runs that it was made from."""
    bytes_differ: float = 0.0
    """Likewise, as a fraction."""


class BaselineTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of the step's time, ns; or `comm_overlap_pct`."""

    name: str
    mean: float
    deviation: float
    """Standard deviation: between runs, or between the steps of a single one."""
    values: int
    """Runs, or steps, that it was taken from."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one or several good runs did."""

    kind: Literal["baseline"] = "baseline"
    schema_version: int = SCHEMA_VERSION
    tracelens_version: str = __version__
    runs: tuple[str, ...]
    world_size: int | None
    ranks: tuple[int, ...]
    rows: tuple[BaselineRow, ...]
    time: tuple[BaselineTime, ...]

    def part(self, name: str) -> BaselineTime | None:
        """The part of the step by its name."""
        return next((one for one in self.time if one.name == name), None)


def make_baseline(measurements: Sequence[Measurement], names: Sequence[str]) -> Baseline:
    """Put good runs of one job into a baseline.

    Args:
        measurements: a run each.
        names: what to call them.

    Raises:
        InputError: the runs are not of one job.
    """
    worlds = {measurement.run.world_size for measurement in measurements}
    if len(worlds) > 1:
        raise InputError(
            f"the runs have different world sizes: {', '.join(sorted(map(str, worlds)))}", hint="give runs of one job"
        )
    return Baseline(
        runs=tuple(names),
        world_size=worlds.pop(),
        ranks=measurements[0].run.ranks,
        rows=_rows(measurements),
        time=tuple(part for name in (*PARTS, "comm_overlap_pct") if (part := _part(measurements, name)) is not None),
    )


def _rows(measurements: Sequence[Measurement]) -> tuple[BaselineRow, ...]:
    runs = [kinds_of(measurement) for measurement in measurements]
    rows = []
    for key in dict.fromkeys(key for run in runs for key in run):
        group, primitive, dtype = key
        seen = [run.get(key) for run in runs]
        calls = [0.0 if one is None else one.calls for one in seen]
        sent = [one.wire_bytes for one in seen if one is not None and one.wire_bytes is not None]
        mean = sum(sent) / len(sent) if sent else None
        rows.append(
            BaselineRow(
                group=group,
                axis=next((one.axis for one in seen if one is not None), None),
                primitive=primitive,
                dtype=dtype,
                calls=calls[0],
                wire_bytes=mean,
                calls_differ=max(calls) - min(calls),
                bytes_differ=(max(sent) - min(sent)) / mean if mean else 0.0,
            )
        )
    return tuple(rows)


def kinds_of(measurement: Measurement) -> dict[tuple[str, Primitive, str | None], KindOfCall]:
    """Calls and bytes by group (size and stride), primitive and dtype."""
    return {
        key: KindOfCall(sums.axis, sums.calls, None if sums.lacks_bytes else sums.wire_bytes)
        for (key, bucket), sums in sum_kinds(measurement, by_axis=False).items()
        if bucket is None
    }


def name_kind(group: str, axis: Axis | None, primitive: Primitive, dtype: str | None) -> str:
    """A kind of call in words: `all_gather of bf16 in tp [[2,1]]`, with the axis where it is known."""
    return f"{primitive.value} of {dtype or 'unknown dtype'} in {'groups' if axis is None else axis} {group}"


class KindOfCall(msgspec.Struct, frozen=True):
    """Calls and bytes of one rank in one step."""

    axis: Axis | None
    calls: float
    wire_bytes: float | None
    """None where those of any call are unknown."""


def part_of_steps(measurement: Measurement, name: str) -> list[float]:
    """One value per step of a part of the time, or the percentage under compute of each rank."""
    if name == "comm_overlap_pct":
        return [row.comm_overlap_pct for row in measurement.overlap if row.comm_overlap_pct is not None]
    return means_by_step(measurement.time, dict(METRICS)[name])


def share_of_step(measurement: Measurement, name: str) -> float | None:
    """A part of the time as a fraction of the step, means over the steps; None without time."""
    spent, spans = part_of_steps(measurement, name), part_of_steps(measurement, "step_time")
    return sum(spent) / sum(spans) if sum(spans) else None


def is_lower_bound(measurement: Measurement, name: str) -> bool:
    """Whether calls without a kernel leave open how long a part of the time is: no run could be held against it."""
    return name in _OF_COMMUNICATION and any(row.untimed_calls for row in measurement.time)


def _part(measurements: Sequence[Measurement], name: str) -> BaselineTime | None:
    if any(is_lower_bound(one, name) for one in measurements):
        return None
    runs = [values for one in measurements if (values := part_of_steps(one, name))]
    if not runs:
        return None
    means = [sum(values) / len(values) for values in runs]
    basis = means if len(means) > 1 else runs[0]
    return BaselineTime(name=name, mean=sum(means) / len(means), deviation=deviation(basis), values=len(basis))


def render_baseline(baseline: Baseline) -> str:
    """The baseline as indented JSON that ends in a newline."""
    return msgspec.json.format(msgspec.json.encode(baseline), indent=1).decode() + "\n"


class _Head(msgspec.Struct):
    kind: str | None = None
    schema_version: int | None = None


def load_baseline(path: str | Path) -> Baseline:
    """Read a baseline.

    Raises:
        InputError: the file can't be read, is no baseline, or is of another schema version.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read baseline `{path}`: {error.strerror or error}",
            hint="write one with `tracelens baseline write PATH -o FILE`",
        ) from error
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.kind != "baseline":
            raise InputError(f"`{path}` is no baseline of tracelens", hint=_AGAIN)
        if head.schema_version != SCHEMA_VERSION:
            raise InputError(
                f"`{path}` is a baseline of schema version {head.schema_version}, this is version {SCHEMA_VERSION}",
                hint=_AGAIN,
            )
        return msgspec.json.decode(data, type=Baseline)
    except msgspec.DecodeError as error:
        raise InputError(f"`{path}` is no baseline of tracelens, or a damaged one: {error}", hint=_AGAIN) from error
