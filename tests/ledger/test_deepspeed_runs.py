"""What DeepSpeed's own code issued under a fake process group, typed from those runs.

DeepSpeed 0.19.8 on a CPU: the small Llama of `torch_witness.py`, 8 ranks, two micro-batches, bf16, gradient clipping,
reduce buckets of 20,000 elements; at level 3 parameters under 1,000 elements persist and nothing is prefetched. As
(calls, primitive, dtype, elements) of the second step. DeepSpeed itself is not needed to run this.
"""

from __future__ import annotations

import pytest

from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.options import DeepSpeedOptions
from tracelens.ledger.predict import predict
from tracelens.results import Phase

AG, RS, AR = "all_gather", "reduce_scatter", "all_reduce"
Rows = set[tuple[int, str, str, int]]
SMALL = ModelSpec(name="small", layers=2, hidden=64, heads=8, kv_heads=4, ffn=96, vocab=128, seq_len=32)

LEVEL_0: Rows = {(1, AR, "bf16", 78144)}
LEVEL_1: Rows = {
    (2, AR, "bf16", 16384),
    (1, AR, "bf16", 18560),
    (1, AR, "bf16", 18624),
    (1, AR, "bf16", 8192),
    (1, AR, "uint8", 1),
    (1, AR, "fp32", 1),
    (1, AG, "bf16", 78144),
}
LEVEL_3: Rows = {
    (8, AG, "bf16", 2048),
    (8, AG, "bf16", 4096),
    (12, AG, "bf16", 6144),
    (4, AG, "bf16", 8192),
    (5, AG, "bf16", 64),
    (2, RS, "bf16", 14400),
    (4, RS, "bf16", 18496),
    (2, RS, "bf16", 18560),
    (2, RS, "bf16", 8192),
    (1, AR, "fp64", 1),
}


@pytest.mark.parametrize(("level", "seen"), [(0, LEVEL_0), (1, LEVEL_1), (3, LEVEL_3)])
def test_the_ledger_equals_what_deepspeed_issued(level: int, seen: Rows) -> None:
    options = DeepSpeedOptions(reduce_bucket_elements=20_000, persistence_threshold=1_000)
    layout = Layout(framework=Framework.deepspeed, dp=8, zero=level, micro_batch=2, num_microbatches=2, options=options)
    sums: dict[tuple[str, str, int], int] = {}
    for row in predict(SMALL, layout).rows:
        key = (row.primitive.value, row.dtype, int(row.elements))
        sums[key] = sums.get(key, 0) + int(row.calls)

    assert {(calls, *key) for key, calls in sums.items()} == seen


@pytest.mark.parametrize(("reuse", "again"), [(10**9, 0), (0, 32)])
def test_parameters_are_fetched_in_forward_and_in_backward_only_where_they_were_released(
    reuse: int, again: int
) -> None:
    """32 of the gathers of `LEVEL_3` are of parameters, 16 each micro-batch."""
    options = DeepSpeedOptions(reduce_bucket_elements=20_000, persistence_threshold=1_000, max_reuse_distance=reuse)
    layout = Layout(framework=Framework.deepspeed, dp=8, zero=3, micro_batch=2, num_microbatches=2, options=options)
    rows = [row for row in predict(SMALL, layout).rows if row.term.startswith("dp.parameter")]
    calls = {phase: sum(int(row.calls) for row in rows if row.phase is phase) for phase in Phase}
    assert (calls[Phase.forward], calls[Phase.backward]) == (32, again)
