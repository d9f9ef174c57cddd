"""Reading a model off matrix products, on a layer whose products are counted by hand."""

from __future__ import annotations

import polars as pl
import pytest

from tests.measurement.build import summary
from tracelens.comparison.products import Block, fit_blocks, read_products
from tracelens.summary import SHAPES, RankSummary

HIDDEN, KV, FFN, VOCAB, TOKENS, LAYERS = 4096, 1024, 14336, 32000, 2048, 3


def with_products(widths: dict[int, int], *, tokens: int = TOKENS, hidden: int = HIDDEN) -> RankSummary:
    """A rank whose linear layers, `widths` of each width, each make their three products of one micro-batch."""
    rows = []
    for width, count in widths.items():
        rows += [
            ("aten::mm", f"[[{tokens},{hidden}],[{hidden},{width}]]", count),
            ("aten::mm", f"[[{tokens},{width}],[{width},{hidden}]]", count),
            ("aten::mm", f"[[{width},{tokens}],[{tokens},{hidden}]]", count),
        ]
    bare = summary(0)
    frames = {name: getattr(bare, name) for name in ("calls", "kernels", "links", "segments", "compute", "budget")}
    shapes = pl.DataFrame(rows, schema=SHAPES, orient="row")
    return RankSummary(head=bare.head, **frames, shapes=shapes, matmuls=bare.matmuls)


def llama(tp: int = 1) -> dict[int, int]:
    """Queries and output, keys and values, three matrices of the feed-forward layer, and the head."""
    return {
        HIDDEN // tp: 2 * LAYERS,
        KV // tp: 2 * LAYERS,
        FFN // tp: 3 * LAYERS,
        VOCAB // tp: 1,
    }


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_llama_is_read_back_from_its_products(tp: int) -> None:
    products = read_products(with_products(llama(tp)), HIDDEN, 1)
    assert products is not None
    assert products.tokens == TOKENS
    assert Block(LAYERS, KV, FFN, gated=True, vocab_width=VOCAB // tp) in fit_blocks(products.matrices, HIDDEN, tp)


def test_fused_queries_keys_and_values_of_megatron_are_told_apart() -> None:
    widths = {3 * HIDDEN // 2: LAYERS, HIDDEN // 2: LAYERS, 4 * HIDDEN // 2: 2 * LAYERS, VOCAB // 2: 1}
    products = read_products(with_products(widths), HIDDEN, 1)
    assert products is not None
    expected = Block(LAYERS, HIDDEN, 4 * HIDDEN, gated=False, vocab_width=VOCAB // 2)
    assert expected in fit_blocks(products.matrices, HIDDEN, 2)


def test_as_many_tokens_as_the_hidden_size_confuse_nothing() -> None:
    products = read_products(with_products(llama(), tokens=HIDDEN), HIDDEN, 1)
    assert products is not None
    assert Block(LAYERS, KV, FFN, gated=True, vocab_width=VOCAB) in fit_blocks(products.matrices, HIDDEN, 1)


def test_micro_batches_are_divided_out() -> None:
    four = {width: 4 * count for width, count in llama().items()}
    products = read_products(with_products(four), HIDDEN, 4)
    assert products is not None
    assert {width: round(count) for width, count in products.matrices.items()} == llama()


def test_without_shapes_nothing_is_read() -> None:
    assert read_products(summary(0), HIDDEN, 1) is None


def test_operators_of_a_dtensor_around_the_local_ones_are_not_counted_twice() -> None:
    tp = 4
    both: dict[int, int] = {}
    for widths in (llama(), llama(tp)):
        for width, count in widths.items():
            both[width] = both.get(width, 0) + count
    products = read_products(with_products(both), HIDDEN, 1)
    assert products is not None
    assert Block(LAYERS, KV, FFN, gated=True, vocab_width=VOCAB // tp) in fit_blocks(products.matrices, HIDDEN, tp)
