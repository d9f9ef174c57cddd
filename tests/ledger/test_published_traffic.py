"""Counts that others published of jobs too large to run."""

from __future__ import annotations

from collections import Counter

from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.options import NativeOptions, Units
from tracelens.ledger.predict import predict


def test_a_fully_sharded_70b_gathers_what_its_published_trace_counts() -> None:
    """Llama-3 70B over 8 GPUs: 159 all-gathers of layers a step, the last layer is not gathered again."""
    options = NativeOptions(
        units=Units.blocks, last_block_reshards=False, loss_chunks=0, trainer_scalars=False, clip_gradients=False
    )
    layout = Layout(framework=Framework.pytorch, dp=8, options=options)
    calls: Counter[tuple[str, str, int]] = Counter()
    for row in predict(load_preset("llama3-70b"), layout).rows:
        calls[row.primitive.value, row.dtype, int(row.elements)] += int(row.calls)

    assert calls == {
        ("all_gather", "bf16", 8 * 106_956_800): 159,
        ("all_gather", "bf16", 8 * 262_669_312): 1,
        ("reduce_scatter", "fp32", 855_654_400): 80,
        ("reduce_scatter", "fp32", 2_101_354_496): 1,
    }
