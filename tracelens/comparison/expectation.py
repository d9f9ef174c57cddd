"""What a trace is held against where options leave it open: its own metadata, else what was inferred."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tracelens.errors import InputError, TraceLensError
from tracelens.inferred import InferredConfig
from tracelens.ledger.huggingface import model_from_config
from tracelens.ledger.model import ModelSpec
from tracelens.results import Measurement
from tracelens.summary import RankSummary

Origin = Literal["given", "metadata", "inferred"]

CAPTURE_SCHEMA = 1
_LEVELS = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
_BATCH = ("microbatches", "micro_batch", "seq_len", "framework")
"""What is taken from the trace even where the axes are given."""
_SAME_NAME = (
    "tp", "pp", "cp", "ep", "etp", "dp", "vp", "micro_batch", "seq_len", "cp_kind", "grad_dtype", "recompute",
    "framework", "zero", "param_dtype", "schedule", "microbatches", "hsdp_shard",
)  # fmt: skip


class Captured(msgspec.Struct, frozen=True):
    """What our own capture wrote into a trace (docs/capture.md)."""

    schema: int | None = None
    model: dict[str, Any] | None = None
    layout: dict[str, Any] | None = None


def read_captured(summaries: Sequence[RankSummary]) -> Captured:
    """The metadata of the first trace that has some; empty where none has.

    Raises:
        InputError: the metadata is of another schema.
    """
    for summary in summaries:
        if bytes(summary.head.capture) == b"null":
            continue
        try:
            captured = msgspec.json.decode(summary.head.capture, type=Captured)
        except msgspec.DecodeError as error:
            raise InputError(f"`{summary.head.path}` has metadata of tracelens that can't be read: {error}") from error
        if captured.schema != CAPTURE_SCHEMA:
            raise InputError(
                f"`{summary.head.path}` has metadata of schema {captured.schema}, this version reads {CAPTURE_SCHEMA}",
                hint="give --model and the layout",
            )
        return captured
    return Captured()


def captured_model(captured: Captured) -> ModelSpec | None:
    """The model that the trace tells of; None where it tells of none, or of too little."""
    if captured.model is None:
        return None
    fields = {"name": "the trace's metadata", **captured.model}
    try:
        return msgspec.convert({key: value for key, value in fields.items() if value is not None}, ModelSpec)
    except (msgspec.ValidationError, TraceLensError):
        pass
    try:
        return model_from_config(captured.model, name="the trace's metadata")
    except TraceLensError:
        return None


def captured_fields(layout: Mapping[str, Any], world_size: int | None) -> dict[str, Any]:
    """The layout of the metadata as options of a layout."""
    fields = {name: layout[name] for name in _SAME_NAME if layout.get(name) is not None}
    shard, replicate = layout.get("dp_shard"), layout.get("dp_replicate")
    if "dp" not in fields and (shard or replicate):
        fields["dp"] = (shard or 1) * (replicate or 1)
    if shard and replicate and shard > 1 and replicate > 1:
        fields["hsdp_shard"] = shard
    if "zero" not in fields and (shard or replicate):
        fields["zero"] = 3 if (shard or 1) > 1 else 0
    return _with_dp(fields, world_size)


def inferred_fields(config: InferredConfig, world_size: int | None) -> dict[str, Any]:
    """The inferred configuration as options of a layout; what the evidence can't settle is left out."""
    names = ("tp", "pp", "dp", "cp", "ep", "etp", "cp_kind", "vp", "micro_batch", "seq_len", "grad_dtype",
             "recompute", "framework")  # fmt: skip
    fields = {name: value for name in names if (value := getattr(config, name)) is not None}
    if config.num_microbatches is not None:
        fields["microbatches"] = config.num_microbatches
    if config.schedule not in (None, "none"):
        fields["schedule"] = config.schedule
    if config.sharding is not None:
        fields["zero"] = _LEVELS[config.sharding]
    if config.sharding not in (None, "none") and (config.dp_replicate or 1) > 1 and (config.dp_shard or 1) > 1:
        fields["hsdp_shard"] = config.dp_shard
    if config.reshard_after_forward is False and config.sharding == "zero3":
        fields["no_reshard"] = True
    if config.sequence_parallel is False and (config.tp or 1) > 1:
        fields["no_sequence_parallel"] = True
    return _with_dp(fields, world_size)


def _with_dp(fields: dict[str, Any], world_size: int | None) -> dict[str, Any]:
    """Fill in dp: what is left of the world when the other axes are taken out."""
    if "dp" in fields or world_size is None:
        return fields
    others = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
    return {**fields, "dp": world_size // others} if world_size % others == 0 else fields


def complete_fields(
    given: Mapping[str, Any], captured: Captured, config: InferredConfig | None, world_size: int | None
) -> tuple[dict[str, Any], Origin, tuple[str, ...]]:
    """The options of the layout, where they come from, and what was assumed.

    What the user gives always counts. Options that say nothing of the axes are completed from the trace.

    Args:
        given: options as the user gave them.
        captured: the trace's own metadata.
        config: the inferred configuration, where there is one.
        world_size: ranks of the job.
    """
    told = captured_fields(captured.layout, world_size) if captured.layout else None
    seen = {} if config is None else inferred_fields(config, world_size)
    if any(name in given for name in ("tp", "pp", "dp", "cp", "ep")):
        fields = _with_dp(dict(given), world_size)
        added: dict[str, Any] = {name: seen[name] for name in _BATCH if name in seen and name not in fields}
        return {**added, **fields}, "given", _told("inferred from the trace", added)
    if told:
        added = {name: value for name, value in seen.items() if name not in told and name not in given}
        return {**added, **told, **given}, "metadata", _told("inferred from the trace", added)
    return {**_with_dp({}, world_size), **seen, **given}, "inferred", ()


def is_single_precision(measurement: Measurement) -> bool:
    """Whether tensors travel in fp32 and none in half precision."""
    sent = {row.dtype for row in measurement.traffic if (row.wire_bytes_per_step or 0) > 0}
    return "fp32" in sent and not sent & {"bf16", "fp16"}


def _told(how: str, fields: Mapping[str, Any]) -> tuple[str, ...]:
    if not fields:
        return ()
    return (f"{how}: {', '.join(f'{name} {value}' for name, value in fields.items())}",)
