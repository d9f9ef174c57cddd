"""The layouts that inference is scored on: those that rules were written on, and those held out."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.inference_layouts import Layout
from benchmarks.inference_models import Sizes

_WIDE = Sizes(hidden=192, heads=12, kv_heads=12, ffn=512, vocab=640, seq=96, layers=6, batch=2)
_DEEP = Sizes(hidden=64, heads=8, kv_heads=8, ffn=160, vocab=384, seq=128, layers=8)
_MOE = Sizes(experts=16)
_PIPE = Sizes(layers=8)


def rules() -> list[Layout]:
    """Layouts on which the rules were written."""
    return [
        Layout("ddp 8", dp_replicate=8, data="ddp"),
        Layout("ddp 64", dp_replicate=64, data="ddp", sizes=_WIDE),
        Layout("fsdp2 8", dp_shard=8),
        Layout("fsdp2 8, 3 micro-batches", dp_shard=8, microbatches=3),
        Layout("fsdp2 16 kept", dp_shard=16, reshard=False),
        Layout("fsdp2 16 to 8", dp_shard=16, reshard=8, sizes=_WIDE),
        Layout("fsdp1 8", dp_shard=8, data="fsdp1", fp32_reduce=False),
        Layout("fsdp1 8 grad op", dp_shard=8, data="fsdp1_grad", fp32_reduce=False),
        Layout("hsdp 4x8", dp_shard=8, dp_replicate=4),
        Layout("hsdp1 2x8", dp_shard=8, dp_replicate=2, data="fsdp1"),
        Layout("zero1 8", dp_shard=8, data="zero1"),
        Layout("tp 8 sp", tp=8, data="none", sizes=_DEEP),
        Layout("tp 4", tp=4, sp=False, data="none"),
        Layout("tp 8 sp fsdp 4", tp=8, dp_shard=4, sizes=_DEEP),
        Layout("tp 4 fsdp 2", tp=4, dp_shard=2, sp=False),
        Layout("tp 2 sp fsdp 4, 2 micro-batches", tp=2, dp_shard=4, microbatches=2),
        Layout("tp 2 sp hsdp 2x4", tp=2, dp_shard=4, dp_replicate=2),
        Layout("cp 4 gather fsdp 2", cp=4, dp_shard=2),
        Layout("cp 4 rotate fsdp 2", cp=4, dp_shard=2, cp_kind="ring_alltoall"),
        Layout("cp 4 messages fsdp 2", cp=4, dp_shard=2, cp_kind="ring_p2p"),
        Layout("cp 4 gathered keys fsdp 2", cp=4, dp_shard=2, cp_kind="gathered"),
        Layout("cp 4 heads fsdp 2", cp=4, dp_shard=2, cp_kind="ulysses"),
        Layout("cp 8 alone", cp=8, cp_kind="gathered", sizes=_WIDE),
        Layout("ep 8 ddp", ep=8, dp_replicate=8, data="ddp", sizes=_MOE),
        Layout("ep 8 ddp 32", ep=8, dp_replicate=32, data="ddp", sizes=_MOE),
        Layout("pp 4 1f1b fsdp 2", pp=4, dp_shard=2, schedule="1F1B", microbatches=8, sizes=_PIPE),
        Layout("pp 4 gpipe", pp=4, schedule="GPipe", microbatches=8, data="none", sizes=_PIPE),
        Layout("pp 4 interleaved", pp=4, schedule="Interleaved1F1B", vp=2, microbatches=8, data="none", sizes=_PIPE),
        Layout("pp 4 breadth", pp=4, schedule="LoopedBFS", vp=2, microbatches=8, data="none", sizes=_PIPE),
        Layout("pp 4 zb", pp=4, schedule="InterleavedZeroBubble", vp=2, microbatches=8, data="none", sizes=_PIPE),
        Layout("pp 4 zbv", pp=4, schedule="ZBVZeroBubble", vp=2, microbatches=8, data="none", sizes=_PIPE),
        Layout("pp 4 dualpipev", pp=4, schedule="DualPipeV", vp=2, microbatches=8, data="none", sizes=_PIPE),
        Layout("pp 2 interleaved fsdp 2", pp=2, dp_shard=2, schedule="Interleaved1F1B", vp=2, microbatches=4),
        Layout("pp 2 1f1b ddp", pp=2, dp_replicate=4, data="ddp", schedule="1F1B", microbatches=4),
        Layout("pp 2 1f1b tp 2 fsdp 2", pp=2, tp=2, dp_shard=2, schedule="1F1B", microbatches=4),
    ]


def held_out() -> list[Layout]:
    """Layouts that no rule was written on; other sizes, other products."""
    found = [
        Layout("ddp 16", dp_replicate=16, data="ddp", sizes=_DEEP),
        Layout("ddp 512", dp_replicate=512, data="ddp"),
        Layout("fsdp2 64", dp_shard=64, sizes=_DEEP),
        Layout("fsdp2 512", dp_shard=512, sizes=_WIDE),
        Layout("fsdp2 32 bf16", dp_shard=32, fp32_reduce=False, sizes=_WIDE),
        Layout("fsdp2 8 kept, 4 micro-batches", dp_shard=8, reshard=False, microbatches=4, sizes=_DEEP),
        Layout("fsdp2 32 to 4", dp_shard=32, reshard=4, sizes=_DEEP),
        Layout("fsdp1 16", dp_shard=16, data="fsdp1", sizes=_DEEP),
        Layout("fsdp1 16, 2 micro-batches", dp_shard=16, data="fsdp1", microbatches=2, sizes=_WIDE),
        Layout("fsdp1 32 grad op", dp_shard=32, data="fsdp1_grad", sizes=_WIDE),
        Layout("hsdp 8x8", dp_shard=8, dp_replicate=8, sizes=_WIDE),
        Layout("hsdp 2x64", dp_shard=64, dp_replicate=2, sizes=_DEEP),
        Layout("hsdp 16x16, 2 micro-batches", dp_shard=16, dp_replicate=16, microbatches=2),
        Layout("hsdp1 4x8", dp_shard=8, dp_replicate=4, data="fsdp1", sizes=_DEEP),
        Layout("zero1 16", dp_shard=16, data="zero1", sizes=_DEEP),
        Layout("tp 2 sp", tp=2, data="none", sizes=_WIDE),
        Layout("tp 8 sp hsdp 2x2", tp=8, dp_shard=2, dp_replicate=2, sizes=_DEEP),
        Layout("tp 8 sp fsdp 64", tp=8, dp_shard=64, sizes=_DEEP),
        Layout("tp 4 sp hsdp 4x8", tp=4, dp_shard=8, dp_replicate=4, sizes=_WIDE),
        Layout("tp 8 fsdp 8", tp=8, dp_shard=8, sp=False, sizes=_DEEP),
        Layout("tp 2 fsdp 16, 3 micro-batches", tp=2, dp_shard=16, sp=False, microbatches=3),
        Layout("tp 4 sp fsdp 8 kept", tp=4, dp_shard=8, reshard=False, sizes=_WIDE),
        Layout("cp 2 gather fsdp 8", cp=2, dp_shard=8, sizes=_WIDE),
        Layout("cp 8 rotate fsdp 8", cp=8, dp_shard=8, cp_kind="ring_alltoall", sizes=_DEEP),
        Layout("cp 2 messages fsdp 16", cp=2, dp_shard=16, cp_kind="ring_p2p", sizes=_DEEP),
        Layout("cp 8 messages alone", cp=8, cp_kind="ring_p2p", sizes=_DEEP),
        Layout("cp 2 gathered keys fsdp 4", cp=2, dp_shard=4, cp_kind="gathered", sizes=_WIDE),
        Layout("cp 8 heads fsdp 4", cp=8, dp_shard=4, cp_kind="ulysses", sizes=_DEEP),
        Layout("cp 2 heads fsdp 4", cp=2, dp_shard=4, cp_kind="ulysses"),
        Layout("ep 4 ddp 16", ep=4, dp_replicate=16, data="ddp", sizes=replace(_MOE, layers=6)),
        Layout("ep 16 ddp 64", ep=16, dp_replicate=64, data="ddp", sizes=_MOE),
        Layout("pp 8 1f1b", pp=8, schedule="1F1B", microbatches=16, data="none", sizes=_DEEP),
        Layout("pp 4 1f1b fsdp 8", pp=4, dp_shard=8, schedule="1F1B", microbatches=4, sizes=_PIPE),
        Layout("pp 2 gpipe fsdp 8", pp=2, dp_shard=8, schedule="GPipe", microbatches=4, sizes=_WIDE),
        Layout(
            "pp 4 interleaved fsdp 4", pp=4, dp_shard=4, schedule="Interleaved1F1B", vp=2, microbatches=4, sizes=_DEEP
        ),
        Layout("pp 2 interleaved v4", pp=2, schedule="Interleaved1F1B", vp=4, microbatches=6, data="none", sizes=_PIPE),
        Layout("pp 2 breadth fsdp 4", pp=2, dp_shard=4, schedule="LoopedBFS", vp=2, microbatches=4, sizes=_PIPE),
        Layout("pp 2 zb fsdp 2", pp=2, dp_shard=2, schedule="InterleavedZeroBubble", vp=2, microbatches=4, sizes=_PIPE),
        Layout("pp 4 zbv fsdp 2", pp=4, dp_shard=2, schedule="ZBVZeroBubble", vp=2, microbatches=10, sizes=_PIPE),
        Layout("pp 2 dualpipev fsdp 4", pp=2, dp_shard=4, schedule="DualPipeV", vp=2, microbatches=8, sizes=_PIPE),
        Layout("pp 4 1f1b tp 2 fsdp 4", pp=4, tp=2, dp_shard=4, schedule="1F1B", microbatches=8, sizes=_PIPE),
        Layout(
            "pp 2 interleaved tp 4",
            pp=2,
            tp=4,
            schedule="Interleaved1F1B",
            vp=2,
            microbatches=4,
            data="none",
            sizes=_PIPE,
        ),
        Layout("pp 4 1f1b hsdp 2x4", pp=4, dp_shard=4, dp_replicate=2, schedule="1F1B", microbatches=8, sizes=_DEEP),
        Layout("tp 2 sp cp 2 messages fsdp 4", tp=2, cp=2, dp_shard=4, cp_kind="ring_p2p", data="fsdp2"),
    ]
    return [replace(layout, held_out=True) for layout in found]


def sampled(count: int, seed: int) -> list[Layout]:
    """Random layouts, never looked at while rules are written: products of axes, habits and sizes at random."""
    chance = random.Random(seed)
    found: list[Layout] = []
    while len(found) < count:
        layout = _draw(chance, len(found))
        if 8 <= layout.world <= 512:
            found.append(layout)
    return found


def _draw(chance: random.Random, number: int) -> Layout:
    schedule = chance.choice(["none", "none", *_SCHEDULES])
    pipelined = schedule != "none"
    chunks = _SCHEDULES.get(schedule, 1)
    pp = chance.choice([2, 4]) if pipelined else 1
    data = chance.choice(["fsdp2", "fsdp2", "ddp", "fsdp1"]) if not pipelined else chance.choice(["fsdp2", "none"])
    tp = chance.choice([1, 1, 2, 4, 8]) if data == "fsdp2" and schedule in ("none", "1F1B", "GPipe") else 1
    cp = chance.choice([1, 1, 2, 4]) if data == "fsdp2" and not pipelined and tp == 1 else 1
    shard = chance.choice([2, 4, 8, 16]) if data.startswith("fsdp") else 1
    replicate = (
        chance.choice([8, 16, 64]) if data == "ddp" else chance.choice([1, 1, 2]) if data == "fsdp2" and cp == 1 else 1
    )
    least = pp * chunks if schedule == "DualPipeV" else pp
    micro = (
        chance.choice([least, 2 * least, 4 * least])
        if pipelined
        else chance.choice([1, 1, 2, 4])
        if data != "ddp"
        else 1
    )
    head = chance.choice([8, 16, 32])
    heads = chance.choice([8, 16])
    sizes = Sizes(
        hidden=head * heads,
        heads=heads,
        kv_heads=chance.choice([8, heads]),
        ffn=chance.choice([2, 3, 4]) * head * heads + 64,
        vocab=64 * chance.choice([7, 11, 16]),
        seq=chance.choice([32, 64, 96]) * max(1, cp),
        batch=chance.choice([1, 2, 3]),
        layers=pp * chunks * chance.choice([1, 2, 3]) if pipelined else chance.choice([2, 3, 5, 6]),
    )
    return Layout(
        f"sampled {number}",
        tp=tp,
        pp=pp,
        cp=cp,
        dp_shard=shard,
        dp_replicate=replicate,
        data=data,
        reshard=chance.random() < 0.7,
        sp=chance.random() < 0.5,
        cp_kind=chance.choice(["allgather", "ring_alltoall", "ring_p2p", "gathered", "ulysses"]),
        schedule=schedule,
        vp=chunks,
        microbatches=micro,
        fp32_reduce=chance.random() < 0.6,
        sizes=sizes,
        held_out=True,
    )


_SCHEDULES = {
    "1F1B": 1,
    "GPipe": 1,
    "Interleaved1F1B": 2,
    "LoopedBFS": 2,
    "InterleavedZeroBubble": 2,
    "ZBVZeroBubble": 2,
    "DualPipeV": 2,
}
"""Schedules with the stages that a rank holds."""
