"""What Megatron-Core's own code issued under a fake process group, typed from those runs.

Megatron-LM commit d98e8a6 (2026-08-22), local layer spec on a CPU: 8 layers, hidden 64, 8 heads, ffn 128, vocabulary
256, sequences of 32, LayerNorm, no biases in linear layers, untied embeddings, bf16. The second training step of rank 0
of 8, as (calls, ranks, primitive, dtype, elements). Megatron itself is not needed to run this.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tracelens.ledger.groups import group_ranks
from tracelens.ledger.layout import Framework, Layout, Recompute
from tracelens.ledger.model import LatentAttention, ModelSpec, MoE, Norm
from tracelens.ledger.options import Dispatcher, MegatronOptions
from tracelens.ledger.predict import predict

AG, RS, AR, A2A = "all_gather", "reduce_scatter", "all_reduce", "all_to_all"
Rows = set[tuple[int, tuple[int, ...], str, str, int]]
EXPERTS = MoE(experts=8, top_k=2, ffn=64)
WORLD, PAIR, EVEN = tuple(range(8)), (0, 1), (0, 2, 4, 6)
LOSS = (6, PAIR, AR, "fp32", 32)
NORM = (1, WORLD, AR, "fp32", 1)

DENSE: Rows = {
    (1, EVEN, AG, "bf16", 149632),
    (1, EVEN, RS, "fp32", 149632),
    (102, PAIR, AG, "bf16", 2048),
    (68, PAIR, RS, "bf16", 2048),
    (1, PAIR, AR, "fp32", 2176),
    LOSS,
    NORM,
}
INTERLEAVED: Rows = {
    (1, (0, 2), AG, "bf16", 33280),
    (1, (0, 2), AG, "bf16", 41472),
    (1, (0, 2), RS, "fp32", 33280),
    (1, (0, 2), RS, "fp32", 41472),
    (12, (0, 4), "recv", "bf16", 1024),
    (12, (0, 4), "send", "bf16", 1024),
    (100, PAIR, AG, "bf16", 2048),
    (68, PAIR, RS, "bf16", 2048),
    (1, PAIR, AR, "fp32", 1024),
    NORM,
}
ATTENTION_ONLY: Rows = {
    (2, EVEN, AG, "bf16", 88192),
    (1, EVEN, RS, "fp32", 88192),
    (54, PAIR, AG, "bf16", 2048),
    (36, PAIR, RS, "bf16", 2048),
    (1, PAIR, AR, "fp32", 6272),
    LOSS,
    NORM,
}
MOE: Rows = ATTENTION_ONLY | {
    (2, (0, 4), AG, "bf16", 131072),
    (1, (0, 4), RS, "fp32", 131072),
    # half of them with what was received, which in a fake group is nothing
    (64, (0, 1, 2, 3), A2A, "bf16", 2048),
    (32, (0, 1, 2, 3), A2A, "fp32", 32),
    (16, (0, 1, 2, 3), AG, "int64", 32),
}
GATHERED: Rows = ATTENTION_ONLY | {
    (2, (0, 4), AG, "bf16", 131072),
    (1, (0, 4), RS, "fp32", 131072),
    (16, (0, 1, 2, 3), AG, "bool", 512),
    (16, (0, 1, 2, 3), AG, "fp32", 512),
    (16, (0, 1, 2, 3), RS, "fp32", 512),
    (16, (0, 1, 2, 3), AG, "bf16", 4096),
    (16, (0, 1, 2, 3), RS, "bf16", 4096),
    (16, (0, 1, 2, 3), AG, "fp32", 4096),
    (16, (0, 1, 2, 3), RS, "fp32", 4096),
}
CUT_EXPERTS: Rows = ATTENTION_ONLY | {
    (2, (0,), AG, "bf16", 65536),
    (1, (0,), RS, "fp32", 65536),
    (64, EVEN, A2A, "bf16", 2048),
    (32, EVEN, A2A, "fp32", 32),
    (16, WORLD, AG, "int64", 64),
    # tokens and probabilities of both ranks before the experts, sums after, and backward the other way round
    (32, PAIR, AG, "bf16", 4096),
    (32, PAIR, RS, "bf16", 4096),
    (16, PAIR, AG, "fp32", 64),
    (16, PAIR, RS, "fp32", 64),
}
INSTANCES: Rows = {
    (1, (0, 4), AR, "fp32", 74272),
    (1, (0, 1, 2, 3), AG, "bf16", 297088),
    (1, (0, 1, 2, 3), RS, "fp32", 297088),
    (1, (0, 1, 2, 3), AR, "fp32", 1),
    (6, (0,), AR, "fp32", 32),
}
UNSHARDED: Rows = {
    (1, EVEN, AR, "fp32", 149632),
    (1, PAIR, AR, "fp32", 1),
    (68, PAIR, AR, "bf16", 2048),
    LOSS,
}
SHARED: Rows = {
    (2, EVEN, AG, "bf16", 137344),
    (1, EVEN, RS, "fp32", 137344),
    (2, (0, 4), AG, "bf16", 131072),
    (1, (0, 4), RS, "fp32", 131072),
    (102, PAIR, AG, "bf16", 2048),
    (68, PAIR, RS, "bf16", 2048),
    (1, PAIR, AR, "fp32", 6272),
    LOSS,
    NORM,
}
# the last of four stages: grouped queries, a gate, RMSNorm, fused loss
LAST_STAGE: Rows = {
    (1, (7,), AG, "bf16", 43392),
    (1, (7,), RS, "fp32", 43392),
    (4, (1, 3, 5, 7), "recv", "bf16", 1024),
    (4, (1, 3, 5, 7), "send", "bf16", 1024),
    (56, (6, 7), AG, "bf16", 2048),
    (36, (6, 7), RS, "bf16", 2048),
    (4, (6, 7), AR, "fp32", 32),
    (4, (6, 7), AR, "fp32", 64),
    (1, (6, 7), AR, "fp32", 320),
    NORM,
}
SMALL = ModelSpec(
    name="small",
    layers=8,
    hidden=64,
    heads=8,
    ffn=128,
    vocab=256,
    seq_len=32,
    gated=False,
    norm=Norm.layernorm,
)
SCRIPT = MegatronOptions(create_attention_mask=False, status_scalars=False, vocab_multiple=1)


# Latent attention, same commit: Megatron's own module, embedding, head and data parallelism. Its down projections are
# Megatron's plain `Linear` instead of TransformerEngine's, which needs a GPU, and the core of attention three lines of
# torch. 2 micro-batches on 4 ranks, 3 layers, RMSNorm, a gate, queries compressed to 24 (None: not), keys to 16.
LATENT = ModelSpec(
    name="latent",
    layers=3,
    hidden=64,
    heads=8,
    ffn=128,
    vocab=256,
    seq_len=32,
    latent=LatentAttention(q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=6),
)
LATENT_SP: Rows = {
    (30, PAIR, AG, "bf16", 2048),
    (22, PAIR, RS, "bf16", 2048),
    (12, PAIR, AG, "bf16", 768),
    (6, PAIR, RS, "bf16", 768),
    (12, PAIR, AG, "bf16", 512),
    (6, PAIR, RS, "bf16", 512),
    (6, PAIR, AG, "bf16", 128),
    (6, PAIR, RS, "bf16", 128),
    (1, PAIR, AR, "fp32", 9016),
    (1, (0, 2), RS, "fp32", 73344),
    LOSS,
}
LATENT_SP_AGAIN: Rows = {
    (36, PAIR, AG, "bf16", 2048),
    (34, PAIR, RS, "bf16", 2048),
    (18, PAIR, AG, "bf16", 768),
    (6, PAIR, RS, "bf16", 768),
    (18, PAIR, AG, "bf16", 512),
    (6, PAIR, RS, "bf16", 512),
    (12, PAIR, AG, "bf16", 128),
    (6, PAIR, RS, "bf16", 128),
    (1, PAIR, AR, "fp32", 9016),
    (1, (0, 2), RS, "fp32", 73344),
    LOSS,
}
# the run reduced 72 gradients of query norms more, by a name that they don't have when TransformerEngine fuses them
LATENT_WHOLE: Rows = {
    (22, PAIR, AR, "bf16", 2048),
    (6, PAIR, AR, "bf16", 768),
    (6, PAIR, AR, "bf16", 512),
    (1, (0, 2), RS, "fp32", 73344),
    LOSS,
}
LATENT_WHOLE_AGAIN: Rows = LATENT_WHOLE - {(22, PAIR, AR, "bf16", 2048)} | {(34, PAIR, AR, "bf16", 2048)}
KEYS_ONLY_SP: Rows = {
    (42, PAIR, AG, "bf16", 2048),
    (28, PAIR, RS, "bf16", 2048),
    (12, PAIR, AG, "bf16", 512),
    (6, PAIR, RS, "bf16", 512),
    (6, PAIR, AG, "bf16", 128),
    (6, PAIR, RS, "bf16", 128),
    (1, PAIR, AR, "fp32", 4336),
    (1, (0, 2), RS, "fp32", 74240),
    LOSS,
}
KEYS_ONLY_WHOLE: Rows = {
    (28, PAIR, AR, "bf16", 2048),
    (6, PAIR, AR, "bf16", 512),
    (1, (0, 2), RS, "fp32", 74240),
    LOSS,
}
FOUR = (0, 1, 2, 3)
LATENT_ON_FOUR: Rows = {
    (30, FOUR, AG, "bf16", 2048),
    (22, FOUR, RS, "bf16", 2048),
    (12, FOUR, AG, "bf16", 768),
    (6, FOUR, RS, "bf16", 768),
    (12, FOUR, AG, "bf16", 512),
    (6, FOUR, RS, "bf16", 512),
    (6, FOUR, AG, "bf16", 128),
    (6, FOUR, RS, "bf16", 128),
    (1, FOUR, AR, "fp32", 9016),
    (1, (0,), RS, "fp32", 41344),
    (6, FOUR, AR, "fp32", 32),
}


@pytest.mark.parametrize(
    ("seen", "q_rank", "fields"),
    [
        (LATENT_SP, 24, {"tp": 2, "dp": 2}),
        (LATENT_SP_AGAIN, 24, {"tp": 2, "dp": 2, "recompute": Recompute.full}),
        (LATENT_WHOLE, 24, {"tp": 2, "dp": 2, "sequence_parallel": False}),
        (LATENT_WHOLE_AGAIN, 24, {"tp": 2, "dp": 2, "sequence_parallel": False, "recompute": Recompute.full}),
        (KEYS_ONLY_SP, None, {"tp": 2, "dp": 2}),
        (KEYS_ONLY_WHOLE, None, {"tp": 2, "dp": 2, "sequence_parallel": False}),
        (LATENT_ON_FOUR, 24, {"tp": 4}),
    ],
)
def test_latent_attention_sends_latents_and_sums_the_gradients_of_what_every_rank_holds_whole(
    seen: Rows, q_rank: int | None, fields: dict[str, Any]
) -> None:
    assert LATENT.latent is not None
    model = msgspec.structs.replace(LATENT, latent=msgspec.structs.replace(LATENT.latent, q_rank=q_rank))
    options = msgspec.structs.replace(SCRIPT, clip_gradients=False)
    layout = Layout(framework=Framework.megatron, num_microbatches=2, options=options, **fields)

    # no optimizer gathered parameters in these runs
    assert {row for row in issued(model, layout) if row[1:3] not in (((0, 2), AG), ((0,), AG))} == seen


def issued(model: ModelSpec, layout: Layout, rank: int = 0) -> Rows:
    """The ledger's rows of one rank in the form of the runs."""
    sums: dict[tuple[tuple[int, ...], str, str, int], int] = {}
    for row in predict(model, layout).rows_of_stage(rank * layout.pp // layout.world_size):
        # the script made its batch on every rank and kept its loss to itself
        if "batch" in row.term or row.term == "step.loss.all_reduce":
            continue
        key = (tuple(group_ranks(layout, row.group, rank)), row.primitive.value, row.dtype, int(row.elements))
        sums[key] = sums.get(key, 0) + int(row.calls)
    return {(calls, *key) for key, calls in sums.items()}


@pytest.mark.parametrize(
    ("seen", "moe", "dispatcher", "fields"),
    [
        (DENSE, None, "alltoall", {"tp": 2, "dp": 4}),
        (INTERLEAVED, None, "alltoall", {"tp": 2, "dp": 2, "pp": 2, "vp": 2, "num_microbatches": 4}),
        (MOE, EXPERTS, "alltoall", {"tp": 2, "dp": 4, "ep": 4, "etp": 1}),
        (GATHERED, EXPERTS, "allgather", {"tp": 2, "dp": 4, "ep": 4, "etp": 1}),
        (CUT_EXPERTS, EXPERTS, "alltoall", {"tp": 2, "dp": 4, "ep": 4}),
        (INSTANCES, None, "alltoall", {"dp": 8, "hsdp_shard": 4}),
        (UNSHARDED, None, "alltoall", {"tp": 2, "dp": 4, "zero": 0, "sequence_parallel": False}),
    ],
)
def test_the_ledger_equals_what_megatron_issued(
    seen: Rows, moe: MoE | None, dispatcher: str, fields: dict[str, Any]
) -> None:
    options = msgspec.structs.replace(SCRIPT, dispatcher=Dispatcher(dispatcher))
    layout = Layout(framework=Framework.megatron, options=options, **({"num_microbatches": 2} | fields))

    assert issued(msgspec.structs.replace(SMALL, moe=moe), layout) == seen


def test_full_recompute_issues_the_forward_once_more() -> None:
    dense = Layout(tp=2, dp=4, num_microbatches=2, recompute=Recompute.full, options=SCRIPT)
    mixed = msgspec.structs.replace(dense, ep=4, etp=1)
    pair, ranks = (AG, RS), (0, 1, 2, 3)

    calls = {row[2]: row[0] for row in issued(SMALL, dense) if row[1] == PAIR and row[2] in pair}
    routed = {row for row in issued(msgspec.structs.replace(SMALL, moe=EXPERTS), mixed) if row[1] == ranks}

    assert calls == {AG: 134, RS: 100}
    assert routed == {
        (96, ranks, A2A, "bf16", 2048),
        (48, ranks, A2A, "fp32", 32),
        (32, ranks, AG, "int64", 32),
    }


def test_shared_experts_are_one_more_pair_of_tensor_parallel_layers() -> None:
    model = msgspec.structs.replace(SMALL, moe=msgspec.structs.replace(EXPERTS, shared_ffn=96))
    layout = Layout(tp=2, dp=4, ep=4, etp=1, num_microbatches=2, options=SCRIPT)

    assert {row for row in issued(model, layout) if row[1] != (0, 1, 2, 3)} == SHARED


def test_the_last_stage_of_a_modern_block_is_equal_too() -> None:
    model = msgspec.structs.replace(SMALL, kv_heads=2, gated=True, norm=Norm.rmsnorm)
    options = msgspec.structs.replace(SCRIPT, fused_cross_entropy=True)
    layout = Layout(tp=2, pp=4, num_microbatches=4, options=options)

    assert issued(model, layout, rank=7) == LAST_STAGE
