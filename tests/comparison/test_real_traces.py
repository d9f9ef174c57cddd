"""Real traces of others against the ledger, as far as a ledger knows their models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comparison.cases import read_case
from tracelens.cli.diff import compare_with_ledger
from tracelens.compared import Verdict
from tracelens.comparison.compare import Expectation, compare
from tracelens.comparison.solve import settle_layout
from tracelens.errors import UsageError
from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model import ModelSpec, Norm

# Megatron-LM's examples/run_simple_mcore_train_loop.py: two layers of hidden size 12, 64 tokens, a batch of 8
SIMPLE_LOOP = ModelSpec(
    name="run_simple_mcore_train_loop",
    layers=2,
    hidden=12,
    heads=4,
    ffn=48,
    gated=False,
    vocab=100,
    seq_len=64,
    positions=64,
    norm=Norm.layernorm,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
)


def test_every_byte_of_megatrons_simple_training_loop_is_explained(shared_traces: Path) -> None:
    side = read_case(shared_traces / "megatron_tp2")
    layout = Layout(
        framework=Framework.megatron, tp=2, zero=0, micro_batch=8, sequence_parallel=False, param_dtype="fp32"
    )
    given = frozenset(Layout.__struct_fields__) - {"options"}
    expected = settle_layout(side.measurement, Expectation(model=SIMPLE_LOOP, layout=layout), given=given)
    comparison = compare(side.measurement, expected)

    assert comparison.explained_bytes_fraction == 1.0
    matches = [row for row in comparison.rows if row.verdict is Verdict.match and row.measured_bytes]
    # (s·b·h) fp32 of 24,576 B: 2 a layer and the embedding forward, 2 a layer and the head backward; the loss: s·b fp32
    assert sorted((row.measured_calls, row.measured_bytes) for row in matches) == [(3, 6144), (5, 122880), (5, 122880)]
    # what the script leaves out: it makes its batches on every rank, and its gradients have nobody to meet
    absent = {(row.primitive.value, row.verdict) for row in comparison.rows if row.verdict is not Verdict.match}
    assert absent <= {("broadcast", Verdict.absent), ("all_reduce", Verdict.absent)}


@pytest.mark.parametrize("name", ["nanogpt_sharded_dp8", "resnet_ddp2_a100", "resnet_ddp8_mi300x"])
def test_models_that_no_ledger_knows_are_asked_for_and_not_made_up(shared_traces: Path, name: str) -> None:
    """A ResNet is no transformer, and a sharded optimizer written by hand is no framework's."""
    with pytest.raises(UsageError, match="nothing tells the sizes of the model"):
        compare_with_ledger(read_case(shared_traces / name), None, {}, 0.01)
