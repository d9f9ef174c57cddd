"""What torchtitan's own code issued under a fake process group, typed from those runs.

torchtitan 0.3.0 (`partial_dtensor`), its llama3 debug model: 6 layers, hidden 256, 16 heads, ffn 768, vocabulary 2048,
sequences of 512, two a step, tp 2 and dp_shard 4 on 8 ranks, loss in 8 chunks, gradients clipped. Forward, loss,
backward and clipping of the second step of rank 0, as (calls, ranks, primitive, dtype, elements). torchtitan itself is
not needed to run this.
"""

from __future__ import annotations

import pytest

from tracelens.ledger.groups import group_ranks
from tracelens.ledger.layout import Framework, Layout, Recompute
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.predict import predict

AG, RS, AR = "all_gather", "reduce_scatter", "all_reduce"
Rows = set[tuple[int, tuple[int, ...], str, str, int]]
TP, FSDP = (0, 1), (0, 2, 4, 6)
MODEL = ModelSpec(name="debugmodel", layers=6, hidden=256, heads=16, ffn=768, vocab=2048, seq_len=512)
SHARDED: Rows = {
    (2, FSDP, AG, "bf16", 262144),
    (3, FSDP, AG, "bf16", 262400),
    (12, FSDP, AG, "bf16", 426496),
    (1, FSDP, AR, "fp32", 45),
    (1, FSDP, RS, "fp32", 256),
    (2, FSDP, RS, "fp32", 262144),
    (6, FSDP, RS, "fp32", 426496),
    (13, TP, AR, "bf16", 256),
    (24, TP, AR, "fp32", 128),
    (1, TP, AR, "fp32", 45),
}


@pytest.mark.parametrize(
    ("recompute", "gathers", "scatters"),
    [
        (Recompute.none, 26, 26),
        (Recompute.full, 38, 38),
        (Recompute.op_selective, 38, 26),
    ],
)
def test_the_ledger_equals_what_torchtitan_issued(recompute: Recompute, gathers: int, scatters: int) -> None:
    layout = Layout(framework=Framework.torchtitan, tp=2, dp=4, micro_batch=2, recompute=recompute)
    sums: dict[tuple[tuple[int, ...], str, str, int], int] = {}
    for row in predict(MODEL, layout).rows:
        # token counts and averaged losses are the trainer's, which was not there
        if row.term.startswith(("step.valid", "step.logged")):
            continue
        key = (tuple(group_ranks(layout, row.group, 0)), row.primitive.value, row.dtype, int(row.elements))
        sums[key] = sums.get(key, 0) + int(row.calls)

    seen = SHARDED | {(gathers, TP, AG, "bf16", 262144), (scatters, TP, RS, "bf16", 262144)}
    assert {(calls, *key) for key, calls in sums.items()} == seen
