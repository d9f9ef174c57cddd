"""Findings about data parallelism: in which dtype gradients travel, how often, and in how small pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracelens.checks.codes import Code
from tracelens.checks.facts import DATA_AXES, Facts, finding
from tracelens.collectives import DTYPE_BYTES, Primitive
from tracelens.inferred import InferredConfig
from tracelens.results import Finding, SizeRow, Traffic
from tracelens.topology import Axis
from tracelens.units import format_bytes, format_percent, format_time, noun

REDUCTIONS = frozenset({Primitive.reduce_scatter, Primitive.all_reduce, Primitive.reduce})
_WORTH_BYTES = 1 << 20
KNEE_BYTES = 1 << 20
"""Below about this payload a call costs its latency, whatever the link can do."""
_SCALAR_BYTES = 1024
_FEWEST_SMALL = 20
_MOST_SMALL = 0.5
_HALF = frozenset({"bf16", "fp16"})


def find_fp32_reduction(facts: Facts) -> Iterator[Finding]:
    """A model that computes in half precision and reduces its gradients in fp32 sends them at twice the size.

    What is gathered in fp32 too is kept in fp32: its gradients have no other dtype to travel in.
    """
    single = facts.rows(lambda row: facts.axis_of(row) in DATA_AXES and row.dtype == "fp32")
    rows = [row for row in single if row.primitive in REDUCTIONS]
    gathered = [row for row in single if row.primitive is Primitive.all_gather]
    halves = facts.rows(lambda row: row.dtype in _HALF and (row.wire_bytes_per_step or 0) > _WORTH_BYTES)
    reduced = _elements(rows)
    chosen = max(0.0, 1 - _elements(gathered) / reduced) if reduced else 0.0
    sent = chosen * facts.mean(rows, lambda row: row.wire_bytes_per_step)
    if sent < _WORTH_BYTES or not halves:
        return
    # half the bytes could save at most half the exposed time
    half = chosen * facts.mean(rows, lambda row: row.exposed_ns_per_step) / 2
    whole = not facts.rows(
        lambda row: (
            facts.axis_of(row) in DATA_AXES
            and row.primitive in REDUCTIONS
            and row.dtype in _HALF
            and (row.wire_bytes_per_step or 0) > _WORTH_BYTES
        )
    )
    yield finding(
        Code.reduction_in_fp32,
        f"{'gradients are' if whole else 'a part of the gradients is'} reduced in fp32: {format_bytes(sent)} a step, "
        f"{format_bytes(sent / 2)} in bf16{facts.doubt(rows, 'bytes')}",
        hint="it is the safer choice and the default of torchtitan and Megatron; where the loss allows it, "
        "reduce in bf16 (reduce_dtype of MixedPrecisionPolicy, --grad-reduce-in-bf16)",
        axis=Axis.dp,
        measured=sent,
        unit="bytes",
        claimed_ns=facts.claims.take(rows, at_most=half),
        coverage=facts.coverage(rows),
    )


def find_small_messages(facts: Facts) -> Iterator[Finding]:
    """Many calls below the knee of the bandwidth: their time is latency."""
    for axis in sorted({axis for row in facts.measurement.sizes if (axis := facts.axis_of(row)) in DATA_AXES}):
        sizes = [row for row in facts.measurement.sizes if facts.axis_of(row) is axis and _is_message(row)]
        # a class of ranks each: the one with the most calls speaks
        by_class: dict[int, list[SizeRow]] = {}
        for row in sizes:
            by_class.setdefault(row.rank_class, []).append(row)
        for own in sorted(by_class.values(), key=_calls, reverse=True)[:1]:
            yield from _small(facts, axis, own)


def _is_message(row: SizeRow) -> bool:
    return row.to_bytes is not None and row.to_bytes > _SCALAR_BYTES


def _calls(rows: Sequence[SizeRow]) -> float:
    return sum(row.calls_per_step.mean for row in rows)


def _small(facts: Facts, axis: Axis | None, sizes: Sequence[SizeRow]) -> Iterator[Finding]:
    small = [row for row in sizes if (row.to_bytes or 0) < KNEE_BYTES]
    calls, all_calls = _calls(small), _calls(sizes)
    if calls < _FEWEST_SMALL or calls < _MOST_SMALL * all_calls:
        return
    busy = sum(row.busy_ns_per_step or 0 for row in small)
    payload = sum(row.payload_bytes_per_step or 0 for row in small)
    exposed = sum(row.exposed_ns_per_step or 0 for row in small)
    kinds = {(row.rank_class, row.group, row.primitive) for row in small}
    rows = facts.rows(lambda row: (row.rank_class, row.group, row.primitive) in kinds)
    yield finding(
        Code.messages_small,
        f"{calls:.4g} of {all_calls:.4g} {axis} {noun(all_calls, 'call')} a step {noun(calls, 'carries', 'carry')} "
        f"less than {format_bytes(KNEE_BYTES)} "
        f"({format_percent(calls / all_calls)}; {format_bytes(payload / calls)} on average) and take "
        f"{format_time(busy)}{facts.doubt(rows, 'bytes', 'time')}",
        hint="merge them: larger buckets (bucket_cap_mb, reduce_bucket_size), larger FSDP units, "
        "a higher stage3_param_persistence_threshold",
        axis=axis,
        measured=calls / all_calls,
        limit=_MOST_SMALL,
        unit="fraction",
        claimed_ns=facts.claims.take(rows, at_most=exposed),
        coverage=facts.coverage(rows),
    )


def find_idle_accumulation(facts: Facts) -> Iterator[Finding]:
    """With m micro-batches gradients need to travel once; where they travel m times, no_sync did nothing."""
    config = None if facts.inference is None else facts.inference.config
    batches = None if config is None else config.num_microbatches
    if config is None or batches is None or batches < 2:
        return
    for axis in (Axis.dp_replicate, Axis.dp, Axis.dp_shard):
        rows = facts.rows(
            lambda row, axis=axis: facts.axis_of(row) is axis and row.primitive in REDUCTIONS  # type: ignore[misc]
        )
        times = _times_reduced(facts, rows, config)
        sent = facts.mean(rows, lambda row: row.wire_bytes_per_step)
        if times is None or sent < _WORTH_BYTES or times < 0.95 * batches:
            continue
        rest = facts.mean(rows, lambda row: row.exposed_ns_per_step) * (1 - 1 / batches)
        yield finding(
            Code.accumulation_saves_nothing,
            f"gradients travel over {axis} in each of {batches} micro-batches: {format_bytes(sent)} a step, "
            f"{format_bytes(sent / batches)} if they waited for the last{facts.doubt(rows, 'bytes')}",
            hint=_how_to_accumulate(config),
            axis=axis,
            measured=times,
            limit=1.0,
            unit="calls",
            claimed_ns=facts.claims.take(rows, at_most=rest),
            coverage=facts.coverage(rows),
        )
        return


_ACCUMULATE = {
    "ddp": "no_sync() of DDP",
    "fsdp1": "no_sync() of FSDP",
    "fsdp2": "set_requires_gradient_sync(False) and set_requires_all_reduce(False) of FSDP2 (a wrapper made for DDP "
    "does nothing there)",
}
_WHOLE = "sharded gradients cost the memory of whole ones meanwhile"


def _how_to_accumulate(config: InferredConfig) -> str:
    """What helps in the framework that the traffic shows; what helps in each where it shows none."""
    if config.framework == "deepspeed":
        # deepspeed/runtime/engine.py: allreduce_gradients, and the assertion in no_sync
        return (
            "from ZeRO stage 2 on DeepSpeed reduces in every micro-batch, and its no_sync() refuses there: stage 1 "
            "reduces once an update, for the memory of whole gradients; or take fewer, larger micro-batches"
        )
    if config.framework == "megatron":
        return f"Megatron-Core reduces in the last micro-batch alone, where its schedule has a no_sync_func; {_WHOLE}"
    known = "fsdp2" if config.framework == "torchtitan" else config.framework or ""
    told = _ACCUMULATE.get(known) or ", ".join(_ACCUMULATE.values())
    return f"accumulate without reduction: {told}; {_WHOLE}"


def _times_reduced(facts: Facts, rows: Sequence[Traffic], config: InferredConfig) -> float | None:
    """How often each gradient travels in a step; None where nothing tells.

    Parameters that are gathered once an update are as many as the gradients of one micro-batch; so are those of a
    model that is not sharded. Where parameters are gathered in every micro-batch, the calls of each size tell.
    """
    if not rows:
        return None
    number = rows[0].rank_class
    own = [row for row in rows if row.rank_class == number]
    reduced = _elements(own)
    if config.sharding in ("zero1", "zero2"):
        groups = {row.group for row in own}
        gathered = _elements(
            facts.rows(
                lambda row: row.rank_class == number and row.group in groups and row.primitive is Primitive.all_gather
            )
        )
        return reduced / gathered if gathered else None
    if config.sharding == "none":
        return reduced / config.params_per_rank if config.params_per_rank else None
    batches = config.num_microbatches or 1
    kinds = {(row.rank_class, row.group, row.primitive, row.dtype) for row in own}
    calls = [
        row.calls_per_step.mean
        for row in facts.measurement.sizes
        if (row.rank_class, row.group, row.primitive, row.dtype) in kinds and _is_message(row)
    ]
    return float(batches) if calls and all(count % batches == 0 for count in calls) else None


def _elements(rows: Sequence[Traffic]) -> float:
    return sum((row.payload_bytes_per_step or 0) / DTYPE_BYTES[row.dtype] for row in rows if row.dtype in DTYPE_BYTES)
