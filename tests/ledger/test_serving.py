"""Serving: what training sends, without gradients and optimizer."""

from __future__ import annotations

from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.predict import predict


def test_decoding_reduces_twice_a_layer_and_token_by_token() -> None:
    # the article: b·h per all-reduce, 80 layers, twice each; and one for the embedding
    layout = Layout(framework=Framework.serving, tp=8, micro_batch=16, seq_len=1)
    rows = predict(load_preset("llama3-70b"), layout).rows
    reductions = [row for row in rows if row.primitive == "all_reduce"]

    assert {row.elements for row in reductions} == {16 * 8192}
    assert sum(row.calls for row in reductions) == 2 * 80 + 1


def test_replicas_and_weights_cost_nothing_on_the_wire_but_memory() -> None:
    ledger = predict(load_preset("llama3-8b"), Layout(framework=Framework.serving, dp=8))

    assert ledger.rows == ()
    assert (ledger.state.grads_bytes, ledger.state.optim_bytes) == (0, 0)
    assert ledger.state.params_bytes == 2 * 8_030_261_248


def test_the_cache_of_keys_and_values_follows_their_heads() -> None:
    # 2 tensors · 2 bytes · 4096 tokens · 8 sequences · one head of 128 on each of 8 ranks
    layout = Layout(framework=Framework.serving, tp=8, micro_batch=8, seq_len=4096)

    assert predict(load_preset("llama3-70b"), layout).activations.per_layer_bytes == 2 * 2 * 4096 * 8 * 128
