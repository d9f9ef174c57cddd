"""Inference and the ledger state the same relations: what is predicted for a layout is read back as that layout."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from benchmarks.inference_scoring import Mark, Score
from tests.inference.ledger_tape import play
from tracelens.inference.infer import infer
from tracelens.ledger.layout import CpKind, Framework, Layout, Recompute, Schedule
from tracelens.ledger.model import ModelSpec, MoE
from tracelens.ledger.predict import predict

MODEL = ModelSpec(name="small", layers=12, hidden=256, heads=8, kv_heads=4, ffn=704, vocab=1280, seq_len=512)
EXPERTS = msgspec.structs.replace(MODEL, name="experts", ffn=None, moe=MoE(experts=16, top_k=2, ffn=256))
MEGATRON, TITAN, DDP, DEEPSPEED = Framework.megatron, Framework.torchtitan, Framework.ddp, Framework.deepspeed

LAYOUTS = {
    "megatron tp 4 dp 2": Layout(framework=MEGATRON, tp=4, dp=2, num_microbatches=2),
    "megatron tp 2 dp 4 without sp": Layout(framework=MEGATRON, tp=2, dp=4, sequence_parallel=False),
    "megatron tp 4 dp 4, all again": Layout(framework=MEGATRON, tp=4, dp=4, recompute=Recompute.full),
    "megatron dp 8 zero 0": Layout(framework=MEGATRON, dp=8, zero=0, num_microbatches=2),
    "megatron cp 4 ring tp 2 dp 2": Layout(framework=MEGATRON, tp=2, cp=4, dp=2, num_microbatches=2),
    "megatron cp 2 gather dp 4": Layout(framework=MEGATRON, cp=2, dp=4, cp_kind=CpKind.allgather),
    "megatron cp 4 heads dp 2": Layout(framework=MEGATRON, cp=4, dp=2, cp_kind=CpKind.ulysses),
    "megatron pp 4 tp 2 dp 2": Layout(framework=MEGATRON, pp=4, tp=2, dp=2, num_microbatches=8),
    "megatron pp 2 tp 2 alone": Layout(framework=MEGATRON, pp=2, tp=2, num_microbatches=4),
    "megatron pp 2 tp 2 dp 4 without sp": Layout(
        framework=MEGATRON, pp=2, tp=2, dp=4, sequence_parallel=False, num_microbatches=4
    ),
    "megatron ep 4 dp 8": Layout(framework=MEGATRON, dp=8, ep=4),
    "megatron ep 4 etp 1 tp 2 dp 8": Layout(framework=MEGATRON, tp=2, dp=8, ep=4, etp=1),
    "torchtitan dp 8": Layout(framework=TITAN, dp=8),
    "torchtitan dp 8 kept": Layout(framework=TITAN, dp=8, reshard_after_forward=False),
    "torchtitan dp 8, 2 micro-batches": Layout(framework=TITAN, dp=8, num_microbatches=2),
    "torchtitan hsdp 4 of 8": Layout(framework=TITAN, dp=8, hsdp_shard=4),
    "torchtitan tp 4 dp 4": Layout(framework=TITAN, tp=4, dp=4),
    "torchtitan tp 2 hsdp 2 of 4": Layout(framework=TITAN, tp=2, dp=4, hsdp_shard=2),
    "torchtitan cp 4 dp 2": Layout(framework=TITAN, cp=4, dp=2),
    "torchtitan tp 2 cp 2 dp 2": Layout(framework=TITAN, tp=2, cp=2, dp=2),
    "torchtitan pp 2 dp 4": Layout(framework=TITAN, pp=2, dp=4, num_microbatches=4),
    "torchtitan pp 4 gpipe dp 2": Layout(framework=TITAN, pp=4, dp=2, num_microbatches=8, schedule=Schedule.gpipe),
    "torchtitan tp 4 dp 2, 2 micro-batches": Layout(framework=TITAN, tp=4, dp=2, num_microbatches=2),
    "torchtitan cp 4 rotate dp 2": Layout(framework=TITAN, cp=4, dp=2, cp_kind=CpKind.ring_alltoall),
    "torchtitan cp 2 hsdp 2 of 4": Layout(framework=TITAN, cp=2, dp=4, hsdp_shard=2),
    "torchtitan pp 2 tp 2 dp 2": Layout(framework=TITAN, pp=2, tp=2, dp=2, num_microbatches=8),
    "torchtitan ep 4 dp 8": Layout(framework=TITAN, dp=8, ep=4),
    "pytorch dp 64": Layout(framework=Framework.pytorch, dp=64),
    "fsdp1 8": Layout(framework=Framework.fsdp1, dp=8),
    "ddp 8": Layout(framework=DDP, dp=8),
    "ddp 64": Layout(framework=DDP, dp=64),
    "deepspeed zero 1, 4 micro-batches": Layout(framework=DEEPSPEED, dp=8, zero=1, num_microbatches=4),
    "deepspeed zero 2, 2 micro-batches": Layout(framework=DEEPSPEED, dp=8, zero=2, num_microbatches=2),
    "deepspeed zero 3": Layout(framework=DEEPSPEED, dp=8, zero=3),
    "deepspeed zero 3, 2 micro-batches": Layout(framework=DEEPSPEED, dp=16, zero=3, num_microbatches=2),
}
OPEN = {
    # only the last micro-batch communicates, and what lies between two calls is one piece of compute
    "deepspeed zero 1, 4 micro-batches": {"sharding"},
    # every parameter is kept for backward, which then gathers nothing that would show where it begins
    "deepspeed zero 3": {"num_microbatches"},
}
SHARDING = ("none", "zero1", "zero2", "zero3")


def _truth(layout: Layout) -> dict[str, Any]:
    truth: dict[str, Any] = {
        "world_size": layout.world_size, "tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "dp": layout.dp,
        "ep": layout.ep, "dp_shard": layout.dp_shard, "dp_replicate": layout.dp_replicate,
    }  # fmt: skip
    if layout.dp * layout.cp > 1:
        truth |= {"sharding": SHARDING[layout.zero_level], "grad_dtype": layout.gradient_dtype}
    if layout.tp > 1:
        truth |= {"sequence_parallel": layout.has_sequence_parallel, "hidden": MODEL.hidden}
        truth |= {"tokens_per_microbatch": layout.micro_batch * MODEL.seq_len}
    if layout.cp > 1:
        truth["cp_kind"] = layout.kind_of_cp.value
    if layout.pp > 1:
        assert layout.kind_of_schedule is not None
        truth |= {"schedule": layout.kind_of_schedule.value, "vp": layout.vp}
    if layout.pp * layout.tp * layout.cp > 1 or (layout.zero_level > 1):
        truth["num_microbatches"] = layout.num_microbatches
    if layout.framework is TITAN:
        truth["reshard_after_forward"] = layout.reshard_after_forward is not False and layout.pp == 1
    return truth


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_the_ledger_predicts_is_read_back_as_its_layout(name: str) -> None:
    layout = LAYOUTS[name]
    found = infer(play(predict(EXPERTS if layout.ep > 1 else MODEL, layout)), blind=True)
    score = Score()
    score.add(name, _truth(layout), found)
    assert score.total()[Mark.wrong] == 0, score.notes
    missed = {field for field, marks in score.marks.items() if not marks[Mark.right]}
    assert missed == OPEN.get(name, set()), score.notes
    assert found.workload == "training"


def test_gathers_and_scatters_of_a_layer_are_those_by_which_recomputation_is_told() -> None:
    """Forward 2 and 2; backward 2 and 2 of torch, 4 and 2 of Megatron, and 2 and 2 more where forward runs again."""
    seen = {name: infer(play(predict(MODEL, LAYOUTS[name])), blind=True) for name in LAYOUTS if " tp 4 dp" in name}
    assert seen["torchtitan tp 4 dp 4"].config.recompute == "none"
    assert seen["megatron tp 4 dp 4, all again"].config.recompute == "full"
    assert seen["megatron tp 4 dp 2"].undetermined["recompute"] == ("none", "selective", "op_selective")
