"""Predicted against measured: the ledger's rows joined with the measured ones, and why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tracelens.collectives import Primitive
from tracelens.compared import Comparison, ComparisonRow, Verdict
from tracelens.comparison.items import Item, Unit, measured_units, place_groups, predicted_items
from tracelens.comparison.join import Pair, join
from tracelens.comparison.reasons import Explanation, explain_differences
from tracelens.comparison.sizes import SizeDifference, differing_sizes
from tracelens.errors import UsageError
from tracelens.ledger.groups import AXIS_OF, group_mesh
from tracelens.ledger.layout import Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.predict import predict
from tracelens.ledger.results import Ledger
from tracelens.results import Measurement, Phase
from tracelens.topology import Axis, Mesh
from tracelens.units import format_bytes

_MOST_SIZES = 3
"""Sizes that differ which are told of one row."""

Origin = Literal["given", "metadata", "inferred"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What a measurement is held against, and where it comes from."""

    model: ModelSpec
    layout: Layout
    sizes_from: Origin = "given"
    layout_from: Origin = "given"
    assumptions: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    """Where options say otherwise than the trace shows."""


@dataclass(frozen=True, slots=True)
class JoinedUnit:
    """A unit of ranks with its pairs."""

    unit: Unit
    pairs: tuple[Pair, ...]


def compare(measurement: Measurement, expected: Expectation, *, tolerance: float = 0.01) -> Comparison:
    """Hold what was measured against what a model and a layout should send.

    Args:
        measurement: of any subset of the ranks.
        expected: the model and the layout.
        tolerance: bytes may differ by this fraction (or 1 KiB); calls may not.

    Raises:
        ModelError: for a layout that the model or the framework can't have.
        UsageError: the layout has another number of ranks than the job.
    """
    layout = expected.layout
    check_world(measurement, layout)
    units = measured_units(measurement, layout)
    joined = join_units(measurement, units, predict(expected.model, layout), tolerance)

    def try_out(model: ModelSpec, changed: Layout, some: Sequence[Unit]) -> list[JoinedUnit]:
        return join_units(measurement, some, predict(model, changed), tolerance)

    reasons = explain_differences(joined, expected.model, layout, try_out)
    meshes = _axes_of_meshes(layout, joined)
    rows = [_row(one.unit, pair, reasons, meshes, tolerance) for one in joined for pair in one.pairs]
    explained, absent = _fractions(joined)
    return Comparison(
        sizes_from=expected.sizes_from,
        layout_from=expected.layout_from,
        model=expected.model.name,
        layout=describe_layout(layout),
        tolerance=tolerance,
        rows=tuple(sorted(rows, key=_rank_rows)),
        explained_bytes_fraction=explained,
        absent_bytes_fraction=absent,
        unsized_time_fraction=unsized_time_fraction(measurement),
        inside_tolerance=(1 - (1.0 if explained is None else explained)) <= tolerance and (absent or 0.0) <= tolerance,
        assumptions=expected.assumptions,
        contradictions=expected.contradictions,
    )


def check_world(measurement: Measurement, layout: Layout) -> None:
    """Refuse a layout of another number of ranks than the job has.

    Raises:
        UsageError: naming the factors.
    """
    world = measurement.run.world_size
    if world is not None and world != layout.world_size:
        raise UsageError(
            f"tp {layout.tp} · pp {layout.pp} · cp {layout.cp} · dp {layout.dp} = {layout.world_size}, "
            f"and the trace is of a job of {world} ranks",
            hint="choose degrees whose product is the world size",
        )


def join_units(measurement: Measurement, units: Sequence[Unit], ledger: Ledger, tolerance: float) -> list[JoinedUnit]:
    """Join every unit with the rows of its pipeline rank.

    Where the stage is unknown, or the ranks of a group, those are taken that fit best.
    """
    return [_join_unit(measurement, unit, ledger, tolerance) for unit in units]


def _join_unit(measurement: Measurement, unit: Unit, ledger: Ledger, tolerance: float) -> JoinedUnit:
    stages = [unit.stage] if unit.stage is not None or ledger.layout.pp == 1 else list(range(ledger.layout.pp))
    candidates = []
    for stage in stages:
        predicted = predicted_items(ledger, stage)
        candidates += [
            JoinedUnit(replace(unit, stage=stage), tuple(join(predicted, measured, tolerance)))
            for measured in place_groups(unit.measured, predicted, measurement.groups)
        ]
    return min(candidates, key=lambda one: residual_bytes([one]))


def residual_bytes(joined: Sequence[JoinedUnit]) -> float:
    """Bytes of all pairs that don't match, both sides, over all ranks read."""
    return sum(
        one.unit.weight * (pair.predicted_bytes + (pair.measured_bytes or 0))
        for one in joined
        for pair in one.pairs
        if pair.verdict is not Verdict.match
    )


def unexplained_bytes(joined: Sequence[JoinedUnit]) -> float:
    """Measured bytes of all pairs that don't match, over all ranks read."""
    return sum(
        one.unit.weight * (pair.measured_bytes or 0)
        for one in joined
        for pair in one.pairs
        if pair.verdict is not Verdict.match
    )


def _fractions(joined: Sequence[JoinedUnit]) -> tuple[float | None, float | None]:
    """Explained over measured, and absent over predicted, over all ranks read."""
    measured = explained = predicted = absent = 0.0
    for one in joined:
        for pair in one.pairs:
            sent = one.unit.weight * (pair.measured_bytes or 0)
            measured += sent
            explained += sent if pair.verdict is Verdict.match else 0
            expected = one.unit.weight * pair.predicted_bytes
            predicted += expected
            absent += _missing(pair) * one.unit.weight
    return (explained / measured if measured else None), (absent / predicted if predicted else None)


def _missing(pair: Pair) -> float:
    """Predicted bytes of a pair that were not seen."""
    if pair.verdict is Verdict.match or (pair.measured and (pair.measured_bytes is None or pair.lacks_bytes)):
        return 0.0
    return max(0.0, pair.predicted_bytes - (pair.measured_bytes or 0))


def unsized_time_fraction(measurement: Measurement) -> float | None:
    """Share of the communication time that is spent in kernels whose bytes are unknown."""
    busy = unsized = 0.0
    for row in measurement.traffic:
        ranks = max(1, len(row.ranks))
        busy += (row.busy_ns_per_step or 0) * ranks
        unsized += row.unsized_busy_ns_per_step * ranks
    return unsized / busy if busy else None


def _axes_of_meshes(layout: Layout, joined: Sequence[JoinedUnit]) -> dict[Mesh, Axis]:
    """What a mesh is for: what the ledger uses it for, else what the layout has it for, where that is one thing."""
    named: dict[Mesh, set[Axis]] = {}
    for kind, axis in AXIS_OF.items():
        if axis not in (Axis.mixed, Axis.world):
            named.setdefault(group_mesh(layout, kind), set()).add(axis)
    used: dict[Mesh, set[Axis]] = {}
    for one in joined:
        for pair in one.pairs:
            for item in pair.predicted:
                if item.mesh is not None and item.axis is not None:
                    used.setdefault(item.mesh, set()).add(item.axis)
    axes = named | used
    return {mesh: next(iter(told)) for mesh, told in axes.items() if mesh and len(told) == 1}


def _row(
    unit: Unit, pair: Pair, reasons: Sequence[Explanation], meshes: dict[Mesh, Axis], tolerance: float
) -> ComparisonRow:
    lead = pair.lead
    axes = {item.axis for item in pair.predicted} or {item.axis for item in pair.measured}
    axis = axes.pop() if len(axes) == 1 else Axis.mixed
    if axis is None and lead.mesh is not None:
        axis = meshes.get(lead.mesh)
    phases = {item.phase for item in (pair.measured or pair.predicted)}
    bytes_seen = pair.measured_bytes
    return ComparisonRow(
        term=" + ".join(dict.fromkeys(item.term for item in pair.predicted if item.term)) or None,
        rank_class=unit.rank_class,
        stage=unit.stage,
        axis=axis,
        mesh=lead.mesh,
        primitive=lead.primitive,
        dtype=lead.dtype,
        phase=phases.pop() if len(phases) == 1 else Phase.mixed,
        predicted_calls=pair.predicted_calls if pair.predicted else None,
        measured_calls=pair.measured_calls if pair.measured else None,
        predicted_bytes=pair.predicted_bytes if pair.predicted else None,
        measured_bytes=bytes_seen,
        lacks_bytes=pair.lacks_bytes,
        ratio=_ratio(pair),
        predicted_overlap=_promised_overlap(pair.predicted),
        measured_overlap_pct=_seen_overlap(pair.measured),
        verdict=pair.verdict,
        why=None if pair.verdict is Verdict.match else _why(unit, pair, reasons) + _residual(pair, tolerance),
        ranks=unit.ranks,
        group=next((item.group for item in pair.measured if item.group), None),
        payload_bytes=lead.payload_bytes if pair.measured else None,
    )


def _ratio(pair: Pair) -> float | None:
    seen = pair.measured_bytes
    return None if seen is None or pair.lacks_bytes or not pair.predicted_bytes else seen / pair.predicted_bytes


def _promised_overlap(items: Sequence[Item]) -> Literal["yes", "partial", "no"] | None:
    told = {item.overlap for item in items if item.primitive is not Primitive.recv or len(items) == 1}
    if not told:
        return None
    if told == {"yes"}:
        return "yes"
    return "no" if told == {"no"} else "partial"


def _seen_overlap(items: Sequence[Item]) -> float | None:
    timed = [item for item in items if item.busy_ns]
    busy = sum(item.busy_ns or 0 for item in timed)
    exposed = sum(item.exposed_ns or 0 for item in timed)
    return 100 * (1 - exposed / busy) if busy else None


def _why(unit: Unit, pair: Pair, reasons: Sequence[Explanation]) -> str:
    for elsewhere in (False, True):
        for reason in reasons:
            if reason.covers(unit, pair, elsewhere=elsewhere):
                return reason.words
    return "no known alternative explains it"


def _residual(pair: Pair, tolerance: float) -> str:
    """Words for the sizes of a row that are not as predicted; none where calls or types differ, which say it all."""
    dtypes = {item.dtype for item in pair.predicted}, {item.dtype for item in pair.measured}
    if dtypes[0] != dtypes[1]:
        return ""
    sizes = differing_sizes(pair.predicted, pair.measured, tolerance)
    told = (_told_size(one, pair.measured_calls) for one in sizes[:_MOST_SIZES] if one.predicted)
    return "".join(f"; {text}" for text in told)


def _told_size(one: SizeDifference, of: float) -> str:
    change = 100 * (one.measured / one.predicted - 1)
    who, each = ("the call sends", "") if of == 1 else (f"{one.calls:g} of {of:g} calls send", " each")
    return f"{who} {format_bytes(one.measured)}{each}, not {format_bytes(one.predicted)} ({change:+.3g} %)"


def _rank_rows(row: ComparisonRow) -> tuple[bool, float, int]:
    difference = abs((row.measured_bytes or 0) - (row.predicted_bytes or 0))
    matches = row.verdict is Verdict.match
    size = max(row.measured_bytes or 0, row.predicted_bytes or 0) if matches else max(difference, 1)
    return (matches, -size * max(1, len(row.ranks)), row.rank_class)


def describe_layout(layout: Layout) -> str:
    """The layout as options of `predict`; what is left at its default is left out."""
    default = Layout(framework=layout.framework)
    parts = [f"--framework {layout.framework}"]
    for name in ("tp", "pp", "dp", "cp", "ep", "etp", "zero", "hsdp_shard", "cp_kind", "vp", "schedule",
                 "micro_batch", "num_microbatches", "seq_len", "recompute", "grad_dtype", "param_dtype",
                 "capacity_factor"):  # fmt: skip
        value = getattr(layout, name)
        if value is not None and value != getattr(default, name):
            flag = "microbatches" if name == "num_microbatches" else name.replace("_", "-")
            parts.append(f"--{flag} {value}")
    if layout.reshard_after_forward is False:
        parts.append("--no-reshard")
    if layout.tp > 1 and not layout.sequence_parallel:
        parts.append("--no-sequence-parallel")
    return " ".join(parts)
