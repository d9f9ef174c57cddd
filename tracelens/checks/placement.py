"""Findings about groups: where they lie, how many there are, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracelens.checks.codes import ABOUT, Code
from tracelens.checks.facts import Facts, finding
from tracelens.collectives import Primitive
from tracelens.errors import Severity
from tracelens.results import Evidence, Finding, SizeRow, Traffic
from tracelens.topology import Axis
from tracelens.units import format_bytes, format_percent, format_time, noun

_RECORDING = "NCCL"
"""The library whose calls PyTorch records."""
_ACTIVATION = 1 / 4
_LEAST_UNSIZED = 0.01
"""Share of the communication time below which unknown bytes are not worth a word."""


def find_tp_across_nodes(facts: Facts) -> Iterator[Finding]:
    """Tensor parallelism sends activations in every layer, and hides little: across nodes it pays the slow link."""
    groups = {group.id: group for group in facts.measurement.groups if group.spans_nodes and group.axis is Axis.tp}
    rows = facts.rows(lambda row: row.group in groups)
    sent = facts.mean(rows, lambda row: row.wire_bytes_per_step)
    if not rows or not sent:
        return
    size = max(group.size or 0 for group in groups.values())
    nodes = facts.measurement.run.gpus_per_node
    exposed = facts.mean(rows, lambda row: row.exposed_ns_per_step)
    yield finding(
        Code.tp_across_nodes,
        f"tensor parallelism of {size} crosses nodes of {nodes} GPUs: {format_bytes(sent)} a step of each rank, "
        f"{format_time(exposed)} of it exposed{facts.doubt(rows, 'bytes', 'time')}",
        hint=f"keep tp within a node (at most {nodes}) and spend the other ranks on pp, cp or dp",
        axis=Axis.tp,
        measured=float(size),
        limit=None if nodes is None else float(nodes),
        unit="ranks",
        claimed_ns=facts.claims.take(rows),
        coverage=facts.coverage(rows),
    )


def find_groups_of_one(facts: Facts) -> Iterator[Finding]:
    """A collective among one rank moves nothing, and costs a launch, often a copy."""
    alone = {group.id for group in facts.measurement.groups if group.size == 1}
    rows = facts.rows(lambda row: row.group in alone and row.calls_per_step.max > 0)
    calls = facts.mean(rows, lambda row: row.calls_per_step.mean)
    if not rows:
        return
    busy = facts.mean(rows, lambda row: row.busy_ns_per_step)
    cost = (
        f"{noun(calls, 'takes', 'take')} {format_time(busy)}"
        if busy
        else f"{noun(calls, 'launches', 'launch')} no communication kernel"
    )
    yield finding(
        Code.group_of_one,
        f"{calls:.4g} {noun(calls, 'call')} a step in groups of one rank {noun(calls, 'moves', 'move')} nothing "
        f"between GPUs and {cost}",
        severity=ABOUT[Code.group_of_one].severity if busy else Severity.info,
        hint="leave the parallel wrapper out, or skip the call, where an axis has one rank",
        measured=calls,
        limit=0.0,
        unit="calls",
        claimed_ns=facts.claims.take(rows),
        coverage=facts.coverage(rows),
    )


def find_duplicated_groups(facts: Facts) -> Iterator[Finding]:
    """Each process group of NCCL has communicators and buffers of its own, and its calls don't wait for the others'."""
    found: dict[tuple[int, str], list[set[str]]] = {}
    for row in facts.measurement.traffic:
        if row.group in facts.groups and row.calls_per_step.max > 0 and (row.wire_bytes_per_step or 0) > 0:
            _merge(found.setdefault((row.rank_class, row.group), []), set(row.names))
    several = {key: sets for key, sets in found.items() if len(sets) > 1 and facts.groups[key[1]].ranks is not None}
    if not several:
        return
    worst = max(several, key=lambda key: len(several[key]))
    group, sets = facts.groups[worst[1]], several[worst]
    names = [min(one, default="?") for one in sets]
    yield finding(
        Code.groups_duplicated,
        f"{len(names)} process groups of the same {group.size} ranks carry traffic "
        f"({', '.join(sorted(names)[:4])}{', ..' if len(names) > 4 else ''})",
        hint="share one process group where the calls need not run at the same time: each keeps buffers on every GPU",
        axis=group.axis,
        ranks=group.ranks or (),
        measured=float(len(names)),
        limit=1.0,
        unit="groups",
    )


def _merge(sets: list[set[str]], names: set[str]) -> None:
    """Ranks of a class have other names for their own groups; names that never stand together are other groups."""
    for one in sets:
        if one & names:
            one |= names
            return
    sets.append(names)


def find_missing_sequence_parallel(facts: Facts) -> Iterator[Finding]:
    """Reduce-scatter and all-gather send what an all-reduce sends, and leave each rank a slice between them."""
    config = None if facts.inference is None else facts.inference.config
    if config is None or config.tp is None or config.tp <= 1 or config.sequence_parallel is not False:
        return
    rows = facts.rows(lambda row: facts.axis_of(row) is Axis.tp and row.primitive is Primitive.all_reduce)
    whole = _whole_activations(facts)
    sent = sum(facts.share(row) * (row.wire_bytes_per_step or 0) for row in whole)
    if not sent:
        return
    calls = sum(facts.share(row) * row.calls_per_step.mean for row in whole)
    yield finding(
        Code.sequence_parallel_missing,
        f"tensor parallelism of {config.tp} all-reduces whole activations ({calls:.4g} {noun(calls, 'call')}, "
        f"{format_bytes(sent)} a step): every rank keeps all of them between the layers{facts.doubt(rows, 'bytes')}",
        hint=f"sequence parallelism sends about the same bytes and keeps 1/{config.tp} of the activations there",
        axis=Axis.tp,
        measured=sent,
        unit="bytes",
        coverage=facts.coverage(rows),
    )


def _whole_activations(facts: Facts) -> list[SizeRow]:
    """All-reduces of tensor parallelism about as large as the largest: those of a loss hold one number a token."""
    sizes = [
        row
        for row in facts.measurement.sizes
        if facts.axis_of(row) is Axis.tp and row.primitive is Primitive.all_reduce and row.to_bytes
    ]
    largest = max((row.to_bytes or 0 for row in sizes), default=0)
    return [row for row in sizes if (row.to_bytes or 0) >= _ACTIVATION * largest]


def find_unsized_traffic(facts: Facts) -> Iterator[Finding]:
    """Kernels without a record, and records without sizes: they count in time only."""
    traffic = facts.measurement.traffic
    rows = [row for row in traffic if row.unsized_busy_ns_per_step > 0]
    unsized = facts.mean(rows, lambda row: row.unsized_busy_ns_per_step)
    busy = facts.mean(traffic, lambda row: row.busy_ns_per_step)
    if not busy or unsized / busy < _LEAST_UNSIZED:
        return
    coverage = facts.measurement.run.coverage
    yield finding(
        Code.traffic_unsized,
        f"the bytes of {format_percent(unsized / busy)} of the communication time are unknown "
        f"({coverage.unsized_kernels} of {coverage.kernels} kernels)",
        hint=_how_to_size(rows, recorded=coverage.calls > 0),
        measured=unsized / busy,
        limit=_LEAST_UNSIZED,
        unit="fraction",
        coverage=facts.coverage(rows),
    )


def _how_to_size(rows: Sequence[Traffic], *, recorded: bool) -> str:
    """What gives kernels their record; some libraries write none, however a job is recorded."""
    without = sorted({row.kernel for row in rows if row.kernel is not None and row.kernel != _RECORDING})
    unrecorded = any(row.kernel == _RECORDING for row in rows)
    told = []
    called = [row for row in rows if row.kernel is None]
    cut = [row for row in called if row.primitive is Primitive.all_to_all and row.evidence is Evidence.metadata]
    if len(called) > len(cut):
        told.append("record with PyTorch 2.4 or newer, whose records tell group, dtype and elements")
    if cut:
        told.append("PyTorch's records cut the splits of an all-to-all after 30 ranks: judge it by time")
    if unrecorded and recorded:
        told.append(
            "other kernels have their record: what lacks it is a replay of a CUDA graph, which writes none (record the "
            "step without graphs), or was launched before the recording (record a step more)"
        )
    elif unrecorded:
        told.append(
            "record with PyTorch 2.4 or newer and CPU activity on, so that every kernel has its record; a replay of a "
            "CUDA graph writes none"
        )
    if without:
        told.append(f"kernels of {', '.join(without)} carry no record, however they are recorded: judge them by time")
    return "; ".join(told)
