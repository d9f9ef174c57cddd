"""What a GPU holds: the article's table, Megatron's bytes per parameter, Korthikanti's activations."""

from __future__ import annotations

import msgspec
import pytest

from tracelens.ledger.layout import Framework, Layout, Optimizer, Precision
from tracelens.ledger.memory import activation_bytes_per_layer, bytes_per_parameter
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.predict import predict

GPT = ModelSpec(name="22B", layers=48, hidden=6144, heads=64, ffn=4 * 6144, gated=False, vocab=51200)
SBH = 2048 * 4 * 6144


@pytest.mark.parametrize(
    ("zero", "gigabytes"),
    [(0, 1128.9), (1, 295.4), (2, 156.5), (3, 17.6)],
)
def test_the_article_s_table_of_a_70b_on_64_gpus(zero: int, gigabytes: float) -> None:
    """16, 4 + 12/64, 2 + 14/64 and 16/64 bytes of 70.55 billion parameters, in units of 10⁹."""
    ledger = predict(load_preset("llama3-70b"), Layout(framework="textbook", dp=64, zero=zero))  # type: ignore[arg-type]

    assert ledger.state.total_bytes / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_sharding_the_optimizer_alone_takes_three_quarters() -> None:
    model = load_preset("llama3-70b")
    whole, sharded = (
        predict(model, Layout(framework="textbook", dp=64, zero=zero)).state.total_bytes  # type: ignore[arg-type]
        for zero in (0, 1)
    )

    assert round(100 * (1 - sharded / whole)) == 74


def test_megatron_holds_18_bytes_a_parameter_or_6_and_12_over_the_shards() -> None:
    # training/theoretical_memory_usage.py
    model = load_preset("llama3-8b")
    plain = predict(model, Layout(dp=8, zero=0))
    sharded = predict(model, Layout(dp=8, zero=1))

    assert plain.state.total_bytes == 18 * plain.stages[0].parameters
    assert sharded.state.total_bytes == 6 * sharded.stages[0].parameters + 12 * sharded.stages[0].parameters // 8


def test_fsdp_shards_sixteen_bytes_and_keeps_two_where_it_does_not_reshard() -> None:
    model = load_preset("llama3-8b")
    freed = predict(model, Layout(framework="torchtitan", dp=8))  # type: ignore[arg-type]
    kept = predict(model, Layout(framework="torchtitan", dp=8, reshard_after_forward=False))  # type: ignore[arg-type]

    assert freed.state.total_bytes == 16 * freed.parameters // 8
    assert kept.state.total_bytes == 16 * kept.parameters // 8 + 2 * kept.parameters


def test_hsdp_holds_what_its_shard_group_leaves() -> None:
    model = load_preset("llama3-70b")
    ledger = predict(model, Layout(framework="torchtitan", dp=1024, hsdp_shard=64))  # type: ignore[arg-type]

    assert ledger.state.total_bytes == pytest.approx(16 * 70_553_706_496 / 64, rel=1e-9)


def test_experts_are_held_by_their_own_divisors() -> None:
    # expert_dp = dp·cp·tp / (ep·etp) = 64·1·4 / (8·1) = 32; dense states are sharded over dp·cp = 64
    model = load_preset("mixtral-8x7b")
    ledger = predict(model, Layout(tp=4, dp=64, ep=8, etp=1))
    experts = 32 * 8 * 3 * 4096 * 14336 // 8
    dense = ledger.stages[0].parameters - experts

    assert ledger.state.optim_bytes == pytest.approx(12 * (dense / 64 + experts / 32), abs=1)


@pytest.mark.parametrize(
    ("layout", "scores", "per_sbh"),
    [
        # Korthikanti et al. 2022, table 2, with 5·a·s/h = 5·64·2048/6144 = 106.67
        (Layout(micro_batch=4, seq_len=2048), True, 34 + 106.67),
        (Layout(micro_batch=4, seq_len=2048, tp=8, sequence_parallel=False), True, 10 + 24 / 8 + 106.67 / 8),
        (Layout(micro_batch=4, seq_len=2048, tp=8), True, 34 / 8 + 106.67 / 8),
        (Layout(micro_batch=4, seq_len=2048, tp=8, recompute="selective"), True, 34 / 8),  # type: ignore[arg-type]
        (Layout(micro_batch=4, seq_len=2048, tp=8), False, 34 / 8),
        (
            Layout(micro_batch=4, seq_len=2048, tp=8, sequence_parallel=False, recompute="full"),  # type: ignore[arg-type]
            True,
            2,
        ),
    ],
)
def test_activations_of_a_layer_are_korthikanti_s(layout: Layout, *, scores: bool, per_sbh: float) -> None:
    kept = activation_bytes_per_layer(GPT, msgspec.structs.replace(layout, flash_attention=not scores))

    assert kept / SBH == pytest.approx(per_sbh, rel=1e-4)


def test_context_parallelism_cuts_the_tokens() -> None:
    whole = activation_bytes_per_layer(GPT, Layout(seq_len=8192))
    cut = activation_bytes_per_layer(GPT, Layout(seq_len=8192, cp=4))

    assert cut == whole / 4


def test_states_follow_precision_and_optimizer() -> None:
    def total(precision: Precision, optimizer: Optimizer) -> int:
        return bytes_per_parameter(Framework.textbook, precision, optimizer).total

    assert total(Precision.bf16, Optimizer.adam) == 16
    assert total(Precision.fp32, Optimizer.adam) == 16
    assert total(Precision.pure_bf16, Optimizer.adam) == 8
    assert total(Precision.bf16, Optimizer.momentum) == 12
    assert total(Precision.bf16, Optimizer.sgd) == 8
    assert total(Precision.bf16, Optimizer.adam_8bit) == 10
