"""What else a job may be than it was said to be: each alternative is another model or layout, and its words.

They are tried one by one: the ledger is predicted again, and an alternative explains a difference when the
difference is gone. The order is that of preference where two explain the same: small changes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from tracelens.ledger.layout import CpKind, Framework, Layout, Recompute, Schedule
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.options import PLAIN, Choices, DDPOptions, MegatronOptions, Options


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another model or layout, in words that end the sentence "the traffic is as if ..."."""

    words: str
    model: ModelSpec
    layout: Layout


_CHOICE_WORDS = {
    ("accumulate_without_sync", False): "no_sync did nothing: gradients are reduced in every micro-batch",
    ("accumulate_without_sync", True): "no_sync is in use: gradients are reduced in the last micro-batch only",
    ("clip_gradients", True): "gradients are clipped: their norm is summed over the ranks",
    ("clip_gradients", False): "gradients are not clipped: no norm is summed",
    ("loss_average", True): "the loss is averaged over the ranks",
    ("loss_average", False): "the loss is not averaged over the ranks",
    ("root_reshards", True): "the root unit too is freed after forward and gathered again",
    ("root_reshards", False): "the root unit is kept between forward and backward",
    ("last_block_reshards", False): "the last block is kept between forward and backward",
    ("mixed_precision", False): "parameters are gathered in fp32: no mixed precision",
    ("overlap_grad_reduce", True): "overlap_grad_reduce is on: gradients are reduced in buckets",
    ("overlap_grad_reduce", False): "overlap_grad_reduce is off: gradients are reduced at once after the last backward",
    ("multi_rank_bucket_allreduce", False): "ZeRO reduces each bucket to its owner instead of all-reducing it",
    ("loss_chunks", 8): "the loss is computed over the logits in chunks",
    ("loss_chunks", 0): "the loss is computed over all logits at once, not in chunks",
    ("trainer_scalars", False): "the trainer's token counts and loss averages are not reduced",
    ("trainer_scalars", True): "the trainer's token counts and loss averages are reduced too",
    ("loss_parallel", True): "logits stay cut over the vocabulary",
    ("loss_parallel", False): "logits are gathered before the loss",
    ("status_scalars", False): "the success flag and the largest norm are not reduced",
    ("loss_average_per_microbatch", True): "the loss is averaged in every micro-batch",
    ("broadcast_on_all_stages", True): "every stage broadcasts every field of the batch",
    ("repeat_kv", False): "keys and values travel as they are, not repeated to the width of the queries",
    ("repeat_kv", True): "keys and values are repeated to the width of the queries before they travel",
    ("create_attention_mask", True): "the data loader broadcasts an attention mask too",
    ("create_attention_mask", False): "the data loader broadcasts no attention mask",
}
_RECOMPUTE_WORDS = {
    Recompute.none: "nothing is computed again in backward",
    Recompute.selective: "the core of attention is computed again in backward (selective recompute)",
    Recompute.op_selective: "operators are computed again in backward by torchtitan's per-operator policy",
    Recompute.full: "every layer is computed again in backward (full recompute), its collectives too",
}
_MILLIONS = (1, 2, 4, 5, 10, 20, 25, 40, 50, 100, 200, 500)
_NUMBERS: dict[str, tuple[float, ...]] = {
    "bucket_mib": (1, 10, 25, 50, 100, 200),
    "vocab_multiple": (1, 64, 128, 256, 512),
    "loss_chunks": (8, 4, 16, 1, 0),
    "bucket_elements": tuple(number * 1_000_000 for number in _MILLIONS),
    "reduce_bucket_elements": tuple(number * 1_000_000 for number in _MILLIONS),
}
"""Values of options that are often set."""
_VOCAB_MULTIPLES = (8, 16, 32, 64, 128, 256, 512, 1024)
_CAPACITY_FACTORS = (1.0, 1.25, 1.5, 2.0)
_FACTORS = (2, 3, 4, 6, 8, 16)


def list_alternatives(model: ModelSpec, layout: Layout) -> Iterator[Alternative]:
    """Everything known that may be otherwise, the smallest changes first; some may be impossible."""
    for words, changes in _layout_changes(layout):
        yield Alternative(words, model, msgspec.structs.replace(layout, **changes))
    for words, options in (*_other_choices(layout), *_bucketed(layout)):
        yield Alternative(words, model, msgspec.structs.replace(layout, options=options))
    for words, changes in _model_changes(model, layout):
        yield Alternative(words, msgspec.structs.replace(model, **changes), layout)
    yield from _other_frameworks(model, layout)


def _layout_changes(layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from _dtypes(layout)
    yield from _resharding(layout)
    yield from (
        (words, {"recompute": kind}) for kind, words in _RECOMPUTE_WORDS.items() if kind is not layout.recompute
    )
    yield from _tensor_and_context(layout)
    for level in (0, 1, 2, 3):
        if level != layout.zero_level:
            told = "nothing is sharded" if level == 0 else f"the sharding is ZeRO-{level}"
            yield f"{told}, not ZeRO-{layout.zero_level}", {"zero": level}
    yield from _pipelines(layout)
    yield from _batches(layout)
    for factor in _CAPACITY_FACTORS:
        if layout.ep > 1 and factor != layout.capacity_factor:
            yield f"experts are padded to a capacity factor of {factor}", {"capacity_factor": factor}
    if layout.capacity_factor is not None:
        yield "experts are not padded: tokens are never dropped", {"capacity_factor": None}


def _dtypes(layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    for dtype in ("fp32", "bf16", "fp16"):
        if dtype != layout.gradient_dtype:
            yield f"gradients are reduced in {dtype}, not {layout.gradient_dtype}", {"grad_dtype": dtype}
    for dtype in ("fp32", "bf16", "fp16"):
        if dtype != layout.param_dtype:
            yield f"activations and parameters travel in {dtype}, not {layout.param_dtype}", {"param_dtype": dtype}
            both = {"param_dtype": dtype, "grad_dtype": dtype}
            yield f"parameters, activations and gradients all travel in {dtype}", both


def _resharding(layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    if layout.zero_level < 2:
        return
    if layout.reshard_after_forward is not False:
        words = "parameters are kept between forward and backward: no resharding, no gathers in backward"
        yield words, {"reshard_after_forward": False}
    if layout.reshard_after_forward is not True:
        words = "parameters are freed after forward and gathered again in backward"
        yield words, {"reshard_after_forward": True}
    for size in (2, 4, 8):
        if size < layout.shard_ranks and size != layout.reshard_after_forward:
            yield f"parameters are resharded to groups of {size} after forward", {"reshard_after_forward": size}
    for size in range(2, layout.dp + 1):
        if layout.dp % size == 0 and size != layout.dp_shard:
            rest = f" and is replicated {layout.dp // size} times" if size < layout.dp else ", all of dp"
            yield f"sharding spans {size} ranks{rest}", {"hsdp_shard": size}


def _tensor_and_context(layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    if layout.tp > 1:
        now = layout.sequence_parallel
        words = "tensor parallelism runs without sequence parallelism" if now else "sequence parallelism is on"
        yield words, {"sequence_parallel": not now}
    own = msgspec.structs.replace(layout, cp_kind=None).kind_of_cp
    for kind in dict.fromkeys((own, *CpKind)):
        if layout.cp > 1 and kind is not layout.kind_of_cp:
            yield f"context parallelism is {kind}, not {layout.kind_of_cp}", {"cp_kind": kind}
    if layout.framework is Framework.megatron:
        yield from _hierarchies(layout)


def _hierarchies(layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    """All-to-alls inside, a ring outside, with every inner size that there can be."""
    for size in range(2, layout.cp // 2 + 1):
        if layout.cp % size == 0 and size != layout.cp_inner:
            options = msgspec.structs.replace(layout.megatron(), ulysses_degree=size)
            words = f"context parallelism is ulysses inside groups of {size} and a ring across them"
            yield words, {"cp_kind": CpKind.ulysses_ring, "options": options}


def _pipelines(layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    if layout.pp == 1:
        return
    for schedule in Schedule:
        if schedule is not layout.kind_of_schedule:
            yield f"the schedule is {schedule}, not {layout.kind_of_schedule}", {"schedule": schedule}
    for chunks in (1, 2, 3, 4):
        if chunks != layout.vp:
            schedule = Schedule.interleaved if chunks > 1 else Schedule.one_f_one_b
            yield f"every rank holds {chunks} model chunks, not {layout.vp}", {"vp": chunks, "schedule": schedule}


def _batches(layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    for field, what in (("num_microbatches", "micro-batches in a step"), ("micro_batch", "sequences in a micro-batch")):
        now = getattr(layout, field)
        others = (
            {now * factor for factor in _FACTORS} | {now // f for f in _FACTORS if now % f == 0} | {1, now - 1, now + 1}
        )
        for value in sorted(others - {now, 0}):
            yield f"{value} {what}, not {now}", {field: value}


def _other_choices(layout: Layout) -> Iterator[tuple[str, Options]]:
    """The framework's own options, one of them flipped."""
    own = layout.own_options()
    if own is None:
        return
    for name in own.__struct_fields__:
        now = getattr(own, name)
        for value in _other_values(own, name, now):
            words = _CHOICE_WORDS.get((name, value)) or f"{layout.framework}'s option {name} is {_told(value)}"
            yield words, msgspec.structs.replace(own, **{name: value})


def _bucketed(layout: Layout) -> Iterator[tuple[str, Options]]:
    """Megatron's options that go together: buckets matter only where gradients are reduced during backward."""
    own = layout.own_options()
    if not isinstance(own, MegatronOptions):
        return
    for gathers in (own.overlap_param_gather, not own.overlap_param_gather):
        for elements in (own.bucket_elements, *_NUMBERS["bucket_elements"]):
            size = "the default size" if elements is None else f"{elements:g} elements"
            told = " and parameters gathered during forward" if gathers else ""
            yield (
                f"gradients are reduced during backward in buckets of {size}{told}",
                msgspec.structs.replace(
                    own,
                    overlap_grad_reduce=True,
                    overlap_param_gather=gathers,
                    bucket_elements=None if elements is None else int(elements),
                ),
            )


def _other_values(own: Choices, name: str, now: object) -> list[Any]:
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, StrEnum):
        return [value for value in type(now) if value is not now]
    if isinstance(own, DDPOptions) and name == "first_bucket_mib":
        return [1.0 if now is None else None]
    return [value for value in _NUMBERS.get(name, ()) if value != now]


def _told(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _model_changes(model: ModelSpec, layout: Layout) -> Iterator[tuple[str, dict[str, Any]]]:
    tied = "tied: one matrix, one gradient" if not model.tied_embeddings else "not tied: two matrices"
    yield f"embedding and head are {tied}", {"tied_embeddings": not model.tied_embeddings}
    padded: dict[int, str] = {}
    for multiple in _VOCAB_MULTIPLES:
        for unit, told in ((multiple, str(multiple)), (multiple * layout.tp, f"{multiple} · tp {layout.tp}")):
            rounded = -(-model.vocab // unit) * unit
            if rounded != model.vocab:
                padded.setdefault(
                    rounded, f"the vocabulary is padded from {model.vocab} to {rounded}, a multiple of {told}"
                )
    yield from ((words, {"vocab": vocab}) for vocab, words in padded.items())
    for layers in range(max(1, model.layers - 2), model.layers + 3):
        if layers != model.layers:
            yield f"{layers} layers, not {model.layers}", {"layers": layers}
    if model.kv_heads is not None and model.kv_heads != model.heads:
        yield "keys and values have as many heads as queries", {"kv_heads": model.heads}
    yield f"the feed-forward layer has {'two' if model.gated else 'three'} matrices", {"gated": not model.gated}


def _other_frameworks(model: ModelSpec, layout: Layout) -> Iterator[Alternative]:
    """The habits of another framework, with its own defaults."""
    yield from _uneven_stages(model, layout)
    for framework in Framework:
        if framework in (layout.framework, Framework.textbook, Framework.serving):
            continue
        words = f"the habits are those of {framework}, not {layout.framework}"
        yield Alternative(words, model, msgspec.structs.replace(layout, framework=framework, options=None))
        if framework is Framework.torchtitan:
            plain = msgspec.structs.replace(layout, framework=framework, options=PLAIN)
            yield Alternative(f"{words} (without its trainer)", model, plain)
        if framework is Framework.ddp:
            given = msgspec.structs.replace(layout, framework=framework, options=DDPOptions(first_bucket_mib=None))
            yield Alternative(f"{words} (with `bucket_cap_mb` given)", model, given)


def _uneven_stages(model: ModelSpec, layout: Layout) -> Iterator[Alternative]:
    stages = layout.pp * layout.vp
    if stages == 1:
        return
    even, rest = divmod(model.layers, stages)
    splits = [
        (
            "the first stages hold a layer more" if rest else f"each holds {even} layers",
            _extra_first(even, rest, stages),
        ),
        ("the last hold a layer more", _extra_first(even, rest, stages)[::-1]),
        ("first and last hold a layer less than their share", _ends_less(model.layers, stages)),
    ]
    seen = {layout.layers_per_stage}
    for words, counts in splits:
        if min(counts) > 0 and counts not in seen:
            seen.add(counts)
            changed = msgspec.structs.replace(layout, layers_per_stage=counts)
            yield Alternative(f"stages are cut otherwise: {words} ({','.join(map(str, counts))})", model, changed)


def _extra_first(even: int, rest: int, stages: int) -> tuple[int, ...]:
    return tuple(even + (index < rest) for index in range(stages))


def _ends_less(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage when the embedding and the head count as one each."""
    even, rest = divmod(layers + 2, stages)
    split = list(_extra_first(even, rest, stages))
    split[0] -= 1
    split[-1] -= 1
    return tuple(split)
