"""Layouts that can't be: every broken rule is found, and every factor named with its value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from tracelens.errors import ModelError
from tracelens.ledger.layout import CpKind, Framework, Layout, Schedule
from tracelens.ledger.model import ModelSpec

_NATIVE = (Framework.torchtitan, Framework.pytorch)
_SUPPORTED_AXES: dict[Framework, tuple[str, ...]] = {
    Framework.ddp: ("dp", "ep"),
    Framework.fsdp1: ("dp",),
    Framework.deepspeed: ("dp", "cp", "ep"),
    Framework.serving: ("tp", "pp", "dp", "ep", "etp"),
}
_SUPPORTED_LEVELS: dict[Framework, tuple[int, ...]] = {
    Framework.ddp: (0,),
    Framework.fsdp1: (0, 2, 3),
    Framework.megatron: (0, 1),
    Framework.torchtitan: (0, 2, 3),
    Framework.pytorch: (0, 2, 3),
    Framework.serving: (0,),
}
_CP_KINDS: dict[Framework, tuple[CpKind, ...]] = {
    Framework.textbook: (CpKind.ring_p2p, CpKind.ulysses),
    Framework.megatron: (CpKind.ring_p2p, CpKind.allgather, CpKind.ulysses, CpKind.ulysses_ring),
    Framework.torchtitan: (CpKind.allgather, CpKind.ring_alltoall, CpKind.flex),
    Framework.pytorch: (CpKind.allgather, CpKind.ring_alltoall, CpKind.flex),
    Framework.deepspeed: (CpKind.ulysses,),
}
_SCHEDULES: dict[Framework, tuple[Schedule, ...]] = {
    # Megatron-Core, pipeline_parallel/schedules.py, get_forward_backward_func
    Framework.megatron: (Schedule.one_f_one_b, Schedule.interleaved),
    # torch, distributed/pipelining/schedules.py, get_schedule_class
    Framework.torchtitan: tuple(schedule for schedule in Schedule if schedule is not Schedule.dualpipe),
}
_TWO_CHUNKS = (Schedule.zbv, Schedule.dualpipev)
_MOST_RANKS = 10_000_000
"""More than any job has; what is beyond it is a slip of the keyboard."""
_MOST_TOKENS = 1_000_000_000
_DEGREES = ("tp", "pp", "dp", "cp", "ep", "vp", "micro_batch", "num_microbatches", "gpus_per_node")
_DEGREES_OR_NULL = ("etp", "hsdp_shard")
_DIVIDE = "choose degrees that divide"


class Broken(NamedTuple):
    """A rule that a layout breaks."""

    told: str
    hint: str


def check_layout(model: ModelSpec, layout: Layout) -> None:
    """Refuse a layout that the model or the framework can't have.

    Raises:
        ModelError: naming every rule that is broken, with all its factors.
    """
    broken = [*_degrees(layout)]
    if not broken:
        broken += [*_context(model, layout)]
    if not broken and layout.framework is not Framework.textbook:
        broken += [*_framework(layout), *_heads(model, layout), *_widths(model, layout)]
        broken += [*_sequence(model, layout), *_experts(model, layout), *_pipeline(layout)]
    if not broken:
        broken += [*_sharding(layout)]
    if broken:
        told, hints = ("; ".join(dict.fromkeys(texts)) for texts in zip(*broken, strict=True))
        raise ModelError(f"{model.name} can't be laid out so: {told}", hint=hints)


def _indivisible(what: str, size: int, factors: dict[str, int]) -> Iterator[Broken]:
    product = math.prod(factors.values())
    if product and size % product:
        names = " · ".join(f"{name} {factor}" for name, factor in factors.items())
        yield Broken(
            f"{what} {size} is no multiple of {names}" + (f" = {product}" if len(factors) > 1 else ""), _DIVIDE
        )


def _degrees(layout: Layout) -> Iterator[Broken]:
    given = {name: getattr(layout, name) for name in (*_DEGREES, *_DEGREES_OR_NULL)}
    reshard = layout.reshard_after_forward
    given["reshard_after_forward"] = None if isinstance(reshard, bool) else reshard
    limits = {**dict.fromkeys(given, _MOST_RANKS), "seq_len": _MOST_TOKENS}
    for name, value in {**given, "seq_len": layout.seq_len}.items():
        if value is not None and value < 1:
            yield Broken(f"{name} must be at least 1: {value}", f"leave {name} out, or give a number from 1")
        elif value is not None and value > limits[name]:
            yield Broken(f"{name} must be at most {limits[name]:,}: {value:,}", f"give a smaller {name}")
    if layout.zero is not None and not 0 <= layout.zero <= 3:
        hint = "0 shards nothing, 1 the optimizer, 2 gradients too, 3 parameters too"
        yield Broken(f"zero must be 0, 1, 2 or 3: {layout.zero}", hint)
    sizes = {name: getattr(layout, name) for name in ("tp", "pp", "cp", "dp")}
    if all(1 <= size <= _MOST_RANKS for size in sizes.values()) and layout.world_size > _MOST_RANKS:
        axes = " · ".join(f"{name} {size}" for name, size in sizes.items())
        hint = f"choose degrees whose product is at most {_MOST_RANKS:,}"
        yield Broken(f"{axes} = {layout.world_size:,} GPUs, more than {_MOST_RANKS:,}", hint)


def _framework(layout: Layout) -> Iterator[Broken]:
    framework = layout.framework
    supported = _SUPPORTED_AXES.get(framework)
    for axis in ("tp", "pp", "cp", "ep") if supported is not None else ():
        if getattr(layout, axis) > 1 and axis not in (supported or ()):
            others = [name for name in Framework if axis in _SUPPORTED_AXES.get(name, (axis,))]
            hint = f"leave {axis} out, or choose a framework that has it: {', '.join(others)}"
            yield Broken(f"{framework} has no {axis} (given {getattr(layout, axis)})", hint)
    whole = layout.tp > 1 and not layout.sequence_parallel
    if whole and framework is Framework.torchtitan and layout.native().fused_qkv:
        told = f"torchtitan under tp {layout.tp} without sequence parallel (fused_qkv) is not modelled yet"
        yield Broken(told, "keep sequence parallel, or say --option fused_qkv=false where the layers are not fused")
    level, levels = layout.zero_level, _SUPPORTED_LEVELS.get(framework)
    if levels is not None and level not in levels:
        others = [name for name in Framework if level in _SUPPORTED_LEVELS.get(name, (level,))]
        hint = f"leave zero out, or choose a framework that has zero {level}: {', '.join(others)}"
        yield Broken(f"{framework} has no zero {level} (it has {', '.join(map(str, levels))})", hint)


def _context(model: ModelSpec, layout: Layout) -> Iterator[Broken]:
    kind, kinds = layout.kind_of_cp, _CP_KINDS.get(layout.framework)
    if layout.cp == 1:
        return
    if kinds is not None and kind not in kinds:
        hint = f"leave cp_kind out, or choose one of: {', '.join(kinds)}"
        yield Broken(f"{layout.framework} has no cp_kind {kind} (it has {', '.join(kinds)})", hint)
    elif kind is CpKind.ulysses_ring:
        yield from _hierarchy(model, layout)


def _hierarchy(model: ModelSpec, layout: Layout) -> Iterator[Broken]:
    inner = layout.megatron().ulysses_degree
    if inner is None:
        yield Broken(
            f"cp_kind ulysses_ring needs to know how many of cp {layout.cp} ranks exchange heads",
            "give --option ulysses_degree=N, the first of hierarchical_context_parallel_sizes",
        )
    elif not 1 < inner < layout.cp or layout.cp % inner:
        yield Broken(
            f"ulysses_degree {inner} must divide cp {layout.cp} and be neither 1 (ring_p2p) nor all of it (ulysses)",
            "choose another ulysses_degree, or another cp_kind",
        )
    else:
        for name, heads in (("heads", model.heads), ("kv_heads", model.key_value_heads)):
            # as many kv heads as tp, at least: they are copied
            yield from _indivisible(name, max(heads, layout.tp), {"tp": layout.tp, "ulysses_degree": inner})


def _heads(model: ModelSpec, layout: Layout) -> Iterator[Broken]:
    if model.latent is not None and layout.tp * layout.cp > 1 and layout.framework is not Framework.megatron:
        yield Broken(
            f"latent attention under tp {layout.tp} or cp {layout.cp} is modelled for megatron only: "
            f"how {layout.framework} cuts it is not settled",
            "leave tp and cp out, or choose the framework megatron",
        )
    yield from _indivisible("heads", model.heads, {"tp": layout.tp})
    kv = model.key_value_heads
    replicates = layout.framework in (Framework.megatron, Framework.serving)
    if model.latent is None and kv % layout.tp and not (replicates and layout.tp % kv == 0):
        yield Broken(f"kv_heads {kv} is no multiple of tp {layout.tp}", _DIVIDE)
    if layout.cp > 1 and layout.kind_of_cp is CpKind.ulysses:
        yield from _indivisible("heads", model.heads, {"tp": layout.tp, "cp": layout.cp})
        if layout.framework is Framework.megatron and model.latent is None:
            # TransformerEngine asserts it of keys too (attention/dot_product_attention/context_parallel.py)
            yield from _indivisible("kv_heads", max(kv, layout.tp), {"tp": layout.tp, "cp": layout.cp})


def _widths(model: ModelSpec, layout: Layout) -> Iterator[Broken]:
    if model.ffn is not None and model.moe_layers < model.layers:
        yield from _indivisible("ffn", model.ffn, {"tp": layout.tp})
    if layout.framework in _NATIVE or layout.framework is Framework.serving:
        yield from _indivisible("vocab", model.vocab, {"tp": layout.tp})
    if model.moe is not None:
        yield from _indivisible("expert ffn", model.moe.ffn, {"etp": layout.expert_tp})


def _sequence(model: ModelSpec, layout: Layout) -> Iterator[Broken]:
    tokens = layout.seq_len or model.seq_len
    factors = {"cp": layout.cp}
    if layout.has_sequence_parallel and layout.framework is not Framework.serving:
        factors["tp"] = layout.tp
    if layout.cp > 1 and layout.framework is Framework.megatron:
        # causal balance gives a rank the blocks i and 2·cp-1-i
        factors = {"2": 2, **factors}
    yield from _indivisible("seq_len", tokens, factors)


def _experts(model: ModelSpec, layout: Layout) -> Iterator[Broken]:
    if layout.ep == 1 and layout.etp in (None, 1):
        return
    if model.moe is None:
        if layout.ep > 1:
            told = f"ep {layout.ep} needs a mixture of experts, and {model.name} has none"
            yield Broken(told, "leave ep out, or choose a model with experts, such as mixtral-8x7b")
        return
    yield from _indivisible("experts", model.moe.experts, {"ep": layout.ep})
    ranks = layout.dp * layout.cp * layout.tp
    pair = layout.ep * layout.expert_tp
    if ranks % pair:
        yield Broken(
            f"dp {layout.dp} · cp {layout.cp} · tp {layout.tp} = {ranks} ranks of a stage are no multiple of "
            f"ep {layout.ep} · etp {layout.expert_tp} = {pair}",
            _DIVIDE,
        )


def _pipeline(layout: Layout) -> Iterator[Broken]:
    if layout.vp > 1 and layout.pp == 1:
        yield Broken(f"vp {layout.vp} needs a pipeline, and pp is 1", "leave vp out, or give pp")
    schedule, framework = layout.kind_of_schedule, layout.framework
    if schedule is None:
        return
    if schedule not in _SCHEDULES.get(framework, tuple(Schedule)):
        others = [name for name in (*_NATIVE, Framework.textbook) if schedule in _SCHEDULES.get(name, tuple(Schedule))]
        hint = f"leave schedule out, or choose a framework that has it: {', '.join(others)}"
        yield Broken(f"{framework} has no schedule {schedule} (it has {', '.join(_SCHEDULES[framework])})", hint)
    elif layout.vp > 1 and schedule in (Schedule.one_f_one_b, Schedule.gpipe, Schedule.dualpipe):
        hint = "leave vp out, or choose a schedule with chunks, such as interleaved_1f1b"
        yield Broken(f"schedule {schedule} has one chunk a rank, and vp is {layout.vp}", hint)
    elif layout.vp > 2 and schedule in _TWO_CHUNKS:
        yield Broken(f"schedule {schedule} has two chunks a rank, and vp is {layout.vp}", "leave vp out")
    else:
        yield from _microbatches(layout, schedule)


def _microbatches(layout: Layout, schedule: Schedule) -> Iterator[Broken]:
    """What a schedule asks of the number of micro-batches, as its implementation checks it."""
    m, p = layout.num_microbatches, layout.pp
    if schedule is Schedule.interleaved and layout.framework is Framework.megatron:
        yield from _indivisible("num_microbatches", m, {"pp": p})
    if schedule in (Schedule.interleaved, Schedule.zero_bubble) and layout.framework in _NATIVE:
        # torch goes in rounds of at least pp micro-batches
        yield from _indivisible("num_microbatches", m, {"rounds": max(1, m // p)})
    if schedule in (Schedule.dualpipe, Schedule.dualpipev) and m < 2 * p:
        told = f"schedule {schedule} needs at least 2 · pp {p} = {2 * p} micro-batches, and num_microbatches is {m}"
        yield Broken(told, "give more micro-batches, or another schedule")
    if schedule is Schedule.dualpipe and (p % 2 or m % 2):
        told = f"schedule dualpipe needs an even pp and an even num_microbatches, and they are {p} and {m}"
        yield Broken(told, "make both even, or choose dualpipev")


def _sharding(layout: Layout) -> Iterator[Broken]:
    if layout.hsdp_shard is None:
        return
    yield from _indivisible("dp", layout.dp, {"hsdp_shard": layout.hsdp_shard})
    if layout.zero_level == 0 and layout.framework is not Framework.textbook:
        told = f"hsdp_shard {layout.hsdp_shard} shards nothing with zero 0"
        yield Broken(told, "leave hsdp_shard out, or choose a zero that shards")
