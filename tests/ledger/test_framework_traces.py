"""The ledger of a model and a layout equals what the framework's own code sent: calls, bytes and dtypes.

The witness is `truth.json` of the runs in `../shared/traces/framework`: per rank, group and primitive, the exact
totals of a step.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracelens.collectives import Primitive
from tracelens.ledger.groups import group_ranks
from tracelens.ledger.layout import Framework, Layout, Schedule
from tracelens.ledger.model import ModelSpec, MoE, Norm
from tracelens.ledger.options import PLAIN, DDPOptions, DeepSpeedOptions, MegatronOptions
from tracelens.ledger.predict import predict
from tracelens.ledger.results import LedgerRow

DTYPES = {"bfloat16": "bf16", "float32": "fp32", "int64": "int64", "uint8": "uint8"}
CLIPPED = msgspec.structs.replace(PLAIN, clip_gradients=True)
MEGATRON_SCRIPT = MegatronOptions(
    create_attention_mask=False,
    broadcast_on_all_stages=True,
    status_scalars=False,
    loss_average_per_microbatch=True,
)

# what each case's script chose
LAYOUTS: dict[str, Layout] = {
    "ddp8": Layout(framework=Framework.ddp, dp=8, options=DDPOptions(first_bucket_mib=None, loss_average=True)),
    "ep8_dropless": Layout(framework=Framework.ddp, dp=8, ep=8, options=DDPOptions(first_bucket_mib=None)),
    "fsdp1_full8": Layout(framework=Framework.fsdp1, dp=8),
    "fsdp2_8": Layout(framework=Framework.pytorch, dp=8, micro_batch=2, options=CLIPPED),
    "hsdp_4x16": Layout(framework=Framework.pytorch, dp=64, hsdp_shard=16, options=CLIPPED),
    "tp8": Layout(framework=Framework.pytorch, tp=8, zero=0, sequence_parallel=False),
    "tp8sp_fsdp64": Layout(framework=Framework.pytorch, tp=8, dp=8, options=CLIPPED),
    "cp4_allgather_dp2": Layout(framework=Framework.pytorch, cp=4, dp=2),
    "pp4_1f1b_dp2": Layout(framework=Framework.pytorch, pp=4, dp=2, num_microbatches=8),
    "pp4_interleaved_tp2": Layout(
        framework=Framework.pytorch,
        pp=4,
        tp=2,
        vp=2,
        num_microbatches=8,
        zero=0,
        sequence_parallel=False,
        schedule=Schedule.interleaved,
    ),
    "mg_tp4sp_dp2": Layout(
        framework=Framework.megatron,
        tp=4,
        dp=2,
        num_microbatches=2,
        options=msgspec.structs.replace(
            MEGATRON_SCRIPT, overlap_grad_reduce=True, overlap_param_gather=True, bucket_elements=4_000_000
        ),
    ),
    "mg_pp4_1f1b_tp2": Layout(framework=Framework.megatron, tp=2, pp=4, num_microbatches=8, options=MEGATRON_SCRIPT),
    "ds_zero2_8": Layout(
        framework=Framework.deepspeed,
        dp=8,
        zero=2,
        num_microbatches=2,
        options=DeepSpeedOptions(reduce_bucket_elements=5_000_000),
    ),
    "tt_llama_fsdp8": Layout(framework=Framework.torchtitan, dp=8, micro_batch=2),
}


def model_of(truth: dict[str, Any]) -> ModelSpec:
    """The model that the case's truth describes."""
    megatron = truth["framework"] == "megatron-core"
    moe = None
    if truth["experts"]:
        moe = MoE(experts=truth["experts"], top_k=truth["topk"], ffn=truth["moe_ffn"])
    return ModelSpec(
        name=truth["case"],
        layers=truth["layers"],
        hidden=truth["hidden"],
        heads=truth["heads"],
        kv_heads=truth["kv_heads"],
        ffn=truth["ffn"],
        vocab=truth["vocab"],
        seq_len=truth["seq"],
        # the experts of the case are two matrices, as are Megatron's feed-forward layers without a gate
        gated=not (megatron or moe),
        norm=Norm.layernorm if megatron else Norm.rmsnorm,
        qkv_bias=megatron,
        output_bias=megatron,
        mlp_bias=megatron,
        tied_embeddings=bool(truth["extra"].get("tied_embeddings")),
        moe=moe,
    )


def witnessed(rank: dict[str, Any], steps: int) -> dict[tuple[Any, ...], Any]:
    """What a rank did, by ranks of the group and primitive."""
    totals: dict[tuple[Any, ...], Any] = {}
    for group in rank["groups"].values():
        for primitive, total in group["totals"].items():
            key = (tuple(group["ranks"]), primitive)
            counts = Counter({DTYPES[name]: count / steps for name, count in total["by_dtype"].items()})
            calls, payload, wire, dtypes = totals.get(key, (0, 0, 0, Counter()))
            exact = total["sent_bytes_exact_splits"]
            totals[key] = (
                calls + total["calls"],
                payload + total["payload_bytes"],
                wire + exact,
                dtypes + counts,
            )
    return totals


def predicted(rows: list[LedgerRow], layout: Layout, rank: int) -> dict[tuple[Any, ...], Any]:
    """The ledger's rows, summed the same way."""
    totals: dict[tuple[Any, ...], Any] = defaultdict(lambda: (0, 0, 0, Counter()))
    for row in rows:
        key = (tuple(group_ranks(layout, row.group, rank)), row.primitive.value)
        calls, payload, wire, dtypes = totals[key]
        totals[key] = (
            calls + row.calls,
            payload + row.payload_bytes,
            wire + row.wire_bytes,
            dtypes + Counter({row.dtype: row.calls}),
        )
    return dict(totals)


@pytest.mark.parametrize("case", LAYOUTS)
def test_the_ledger_equals_what_the_framework_sent(shared_traces: Path, case: str) -> None:
    truth = json.loads((shared_traces / "framework" / case / "truth.json").read_text())
    layout = LAYOUTS[case]
    ledger = predict(model_of(truth), layout)

    for name, rank in truth["ranks"].items():
        stage = int(name) * layout.pp // layout.world_size
        ours = predicted(list(ledger.rows_of_stage(stage)), layout, int(name))
        theirs = witnessed(rank, truth["steps_in_trace"])
        for key, total in theirs.items():
            if key[1] == Primitive.all_to_all and layout.ep > 1:
                # tokens chose their experts by chance, so what stayed on the rank is known only on average
                assert ours[key][2] == pytest.approx(total[2], rel=0.03)
                ours[key], theirs[key] = (*ours[key][:2], ours[key][3]), (*total[:2], total[3])
        assert ours == theirs, f"rank {name}"


@pytest.mark.parametrize("case", LAYOUTS)
def test_parameters_of_a_rank_are_those_that_the_framework_held(shared_traces: Path, case: str) -> None:
    truth = json.loads((shared_traces / "framework" / case / "truth.json").read_text())
    layout = LAYOUTS[case]
    if layout.framework is Framework.pytorch:
        # counted there before tensor parallelism cut the modules
        layout = msgspec.structs.replace(layout, tp=1, dp=layout.dp * layout.tp)
    ledger = predict(model_of(truth), layout)

    for name, parameters in truth["params_held_before_sharding_by_rank"].items():
        stage = int(name) * layout.pp // layout.world_size
        assert ledger.stages[stage].parameters == parameters
