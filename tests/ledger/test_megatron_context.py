"""Context parallelism of Megatron-Core, counted by hand: a ring, all-to-alls inside groups of neighbours, or both.

No run holds these: TransformerEngine's attention needs a GPU. The counts follow its source and arXiv 2405.07719.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tracelens.errors import ModelError
from tracelens.ledger.groups import group_ranks
from tracelens.ledger.layout import CpKind, Framework, Layout, Recompute
from tracelens.ledger.model import LatentAttention, ModelSpec
from tracelens.ledger.options import MegatronOptions
from tracelens.ledger.predict import predict

MODEL = ModelSpec(name="small", layers=8, hidden=64, heads=8, kv_heads=4, ffn=128, vocab=256, seq_len=32)
LATENT = msgspec.structs.replace(
    MODEL,
    kv_heads=None,
    latent=LatentAttention(q_rank=24, kv_rank=16, nope_dim=8, rope_dim=4, value_dim=6),
)
HIERARCHY = MegatronOptions(ulysses_degree=2)
INNER, OUTER, ALL = (0, 1), (0, 2, 4, 6), tuple(range(8))
Rows = set[tuple[int, tuple[int, ...], str, int]]


def sent(model: ModelSpec, layout: Layout, rank: int = 0) -> Rows:
    """(calls, ranks, primitive, elements) of the context-parallel rows, receives left out."""
    sums: dict[tuple[tuple[int, ...], str, int], int] = {}
    for row in predict(model, layout).rows:
        if row.term.startswith("cp.") and row.primitive.value != "recv":
            key = (tuple(group_ranks(layout, row.group, rank)), row.primitive.value, int(row.elements))
            sums[key] = sums.get(key, 0) + int(row.calls)
    return {(calls, *key) for key, calls in sums.items()}


def test_a_hierarchy_exchanges_heads_inside_and_passes_keys_and_values_around_outside() -> None:
    """8 ranks, 2 inside and 4 in the ring; 32/8 = 4 tokens of 64 query and 32 key channels on a rank, 8 layers.

    Queries, output and their gradients: 4 · 64 elements, 4 calls a layer; keys and values 4 · 32, likewise. A block is
    keys and values, 256: 3 forward, 2 backward, and 2 of twice the size.
    """
    layout = Layout(cp=8, cp_kind=CpKind.ulysses_ring, options=HIERARCHY)
    assert sent(MODEL, layout) == {
        (32, INNER, "all_to_all", 256),
        (32, INNER, "all_to_all", 128),
        (24 + 16, OUTER, "send", 256),
        (16, OUTER, "send", 512),
    }


def test_groups_of_a_hierarchy_lie_around_tensor_parallel_ranks() -> None:
    layout = Layout(tp=2, cp=8, cp_kind=CpKind.ulysses_ring, options=HIERARCHY)
    ranks = {(row[2], row[1]) for row in sent(MODEL, layout, rank=5)}
    # rank 5 is tensor-parallel rank 1 of context-parallel rank 2: its neighbour is 3, its ring 0, 2, 4, 6
    assert ranks == {("all_to_all", (5, 7)), ("send", (1, 5, 9, 13))}


@pytest.mark.parametrize("again", [Recompute.selective, Recompute.full])
def test_attention_that_is_computed_again_sends_again(again: Recompute) -> None:
    layout = Layout(cp=8, cp_kind=CpKind.ulysses_ring, options=HIERARCHY, recompute=again)
    assert sent(MODEL, layout) == {
        (48, INNER, "all_to_all", 256),
        (48, INNER, "all_to_all", 128),
        (48 + 16, OUTER, "send", 256),
        (16, OUTER, "send", 512),
    }


def test_a_hierarchy_sends_less_between_nodes_than_a_ring_and_no_more_inside_than_it_must() -> None:
    """Bytes of the ring go with the ranks that it joins: 3 · 3 blocks instead of 3 · 7."""
    ring = predict(MODEL, Layout(cp=8, cp_kind=CpKind.ring_p2p)).rows
    both = predict(MODEL, Layout(cp=8, cp_kind=CpKind.ulysses_ring, options=HIERARCHY)).rows
    blocks = [sum(row.wire_bytes for row in rows if row.term.startswith("cp.ring")) for rows in (ring, both)]
    assert blocks[1] / blocks[0] == 9 / 21
    # (u-1)/u of 4 · (tokens of a rank) · (64 + 32) elements of 2 bytes, 8 layers
    assert sum(row.wire_bytes for row in both if row.primitive == "all_to_all") == 8 * 4 * 4 * (64 + 32) * 2 / 2


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # 32/4 = 8 tokens, 8 heads: 12 channels of queries and keys, 6 of values and output
        ("ring_p2p", {(8 * 3 + 8 * 2, (0, 1, 2, 3), "send", 1152), (8 * 2, (0, 1, 2, 3), "send", 2304)}),
        (
            "ulysses",
            {(8 * 4, (0, 1, 2, 3), "all_to_all", 768), (8 * 4, (0, 1, 2, 3), "all_to_all", 384)},
        ),
        (
            "allgather",
            {
                (8 * 2, (0, 1, 2, 3), "all_gather", 4 * 768),
                (8 * 2, (0, 1, 2, 3), "all_gather", 4 * 384),
                (8, (0, 1, 2, 3), "reduce_scatter", 4 * 768),
                (8, (0, 1, 2, 3), "reduce_scatter", 4 * 384),
            },
        ),
    ],
)
def test_latent_attention_sends_keys_and_values_of_every_head_not_latents(kind: str, expected: Rows) -> None:
    assert sent(LATENT, Layout(cp=4, cp_kind=CpKind(kind))) == expected


def test_deepseek_under_tensor_and_context_parallelism_is_no_longer_refused() -> None:
    """Every rank holds the down projections: 7168 · (1536 + 512 + 64) of a layer, and its share of the others."""
    from tracelens.ledger.model_source import load_preset

    deepseek = load_preset("deepseek-v3")
    alone, cut = (predict(deepseek, Layout(tp=tp, cp=2, ep=8, dp=8)).parameters for tp in (1, 8))
    assert alone == cut
    whole = {tp: predict(deepseek, Layout(tp=tp, ep=64, etp=1, dp=64)).stages[0].parameters for tp in (1, 8)}
    norms = 61 * (2 * 7168 + 1536 + 512) + 7168
    replicated = 61 * 7168 * (1536 + 512 + 64) + 58 * 7168 * 256 + norms
    experts = 58 * 3 * 7168 * 2048 * 256 // 64
    # the vocabulary is padded to 128 · tp: 129,280 is 126.25 times 1024
    padding = 2 * 7168 * (127 * 1024 - 129280) // 8
    assert whole[8] - replicated - experts - padding == (whole[1] - replicated - experts) / 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cp": 8, "cp_kind": "ulysses_ring"}, "needs to know how many of cp 8 ranks exchange heads"),
        ({"cp": 8, "cp_kind": "ulysses_ring", "options": MegatronOptions(ulysses_degree=1)}, "neither 1"),
        ({"cp": 8, "cp_kind": "ulysses_ring", "options": MegatronOptions(ulysses_degree=8)}, "nor all of it"),
        ({"cp": 8, "cp_kind": "ulysses_ring", "options": MegatronOptions(ulysses_degree=3)}, "must divide cp 8"),
        (
            {"tp": 2, "cp": 8, "cp_kind": "ulysses_ring", "options": MegatronOptions(ulysses_degree=4)},
            "kv_heads 4 is no multiple of tp 2 · ulysses_degree 4 = 8",
        ),
        ({"cp": 4, "cp_kind": "flex"}, "megatron has no cp_kind flex"),
        ({"cp": 4, "cp_kind": "ring_alltoall"}, "megatron has no cp_kind ring_alltoall"),
        ({"cp": 4, "cp_kind": "ring_p2p", "framework": "torchtitan"}, "torchtitan has no cp_kind ring_p2p"),
        ({"cp": 4, "cp_kind": "ulysses", "framework": "pytorch"}, "pytorch has no cp_kind ulysses"),
        ({"cp": 4, "cp_kind": "ring_p2p", "framework": "deepspeed"}, "deepspeed has no cp_kind ring_p2p"),
        ({"cp": 4, "cp_kind": "ulysses_ring", "framework": "textbook"}, "textbook has no cp_kind ulysses_ring"),
    ],
)
def test_what_a_framework_does_not_have_is_refused_and_not_taken_for_something_else(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message.replace(".", r"\.")):
        predict(MODEL, Layout(**fields))


@pytest.mark.parametrize("framework", [Framework.torchtitan, Framework.pytorch, Framework.deepspeed])
def test_latent_attention_stays_refused_where_no_source_settles_it(framework: Framework) -> None:
    layout = (
        Layout(framework=framework, cp=2) if framework is Framework.deepspeed else Layout(framework=framework, tp=2)
    )
    with pytest.raises(ModelError, match="modelled for megatron only"):
        predict(LATENT, layout)
