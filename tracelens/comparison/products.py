"""What the matrix products of a trace tell of a model: how many matrices of which width a step holds.

A linear layer y = x·W makes three products: x·W, dy·Wᵀ, and the gradient of the weight, which alone contracts over
the tokens. So the products that contract over the tokens count the matrices, once a micro-batch.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combine

from tracelens.summary import RankSummary

_MOST = 0.7
"""Share of the products that must have a side for it to be the tokens."""
_OPERATORS = frozenset({"aten::mm", "aten::addmm", "aten::linear", "aten::matmul"})


@dataclass(frozen=True, slots=True)
class Products:
    """The linear layers of one rank."""

    tokens: int
    """Rows of the activations of one micro-batch."""
    matrices: dict[int, float]
    """Weight matrices of `hidden` by this width in one micro-batch, by width."""


def read_products(summary: RankSummary, hidden: int, micro_batches: int) -> Products | None:
    """Count the weight matrices of a rank; None where the trace has no shapes, or no backward.

    Args:
        summary: the rank.
        hidden: the width that all layers share.
        micro_batches: of a step.
    """
    products = [one for one in _products(summary) if hidden in one[:3]]
    tokens = _tokens(products, hidden)
    if tokens is None:
        return None
    matrices: dict[int, float] = defaultdict(float)
    for m, k, n, count in products:
        width = m if n == hidden else n
        if tokens == hidden or width == tokens:
            continue
        if k == tokens and hidden in (m, n):
            matrices[width] += count
        elif hidden in (m, n) and tokens % k == 0 and not {m, n} & {k, tokens} and k != hidden:
            matrices[width] += count * k / tokens  # the head, in chunks of tokens
    for width in _confused(products, hidden, tokens):
        matrices[width] = sum(count for m, k, n, count in products if _width(m, k, n, hidden, tokens) == width) / 3
    steps = max(1, len(summary.head.steps))
    per_batch = {width: count / (steps * micro_batches) for width, count in matrices.items()}
    return Products(tokens, per_batch) if per_batch else None


def _tokens(products: Sequence[tuple[int, int, int, int]], hidden: int) -> int | None:
    """The side, beside the hidden size, that (almost) all products have; the hidden size itself where none does."""
    total = sum(count for *_, count in products)
    sides: Counter[int] = Counter()
    for m, k, n, count in products:
        for side in {m, k, n} - {hidden}:
            sides[side] += count
    if not sides:
        return None
    contracted = {k for _, k, _, _ in products}
    side, count = max(((side, count) for side, count in sides.items() if side in contracted), key=lambda one: one[1])
    if count >= _MOST * total:
        return side
    twice = sum(count for m, k, n, count in products if (m, k, n).count(hidden) >= 2)
    return hidden if twice >= _MOST * total else side


def _confused(products: Sequence[tuple[int, int, int, int]], hidden: int, tokens: int) -> set[int]:
    """Widths whose products can't be told apart by what they contract over: a third of all, without recompute."""
    widths = {_width(m, k, n, hidden, tokens) for m, k, n, _ in products}
    return widths if tokens == hidden else widths & {tokens}


def _width(m: int, k: int, n: int, hidden: int, tokens: int) -> int:
    """The side that is neither the hidden size nor the tokens."""
    sides = [m, k, n]
    for known in (hidden, tokens):
        if known in sides:
            sides.remove(known)
    return sides[0]


def _products(summary: RankSummary) -> Iterator[tuple[int, int, int, int]]:
    """(m, k, n, count) of every product of two matrices."""
    for operator, text, count in summary.shapes.iter_rows():
        if operator not in _OPERATORS or text is None:
            continue
        try:
            dims = [shape for shape in json.loads(text) if len(shape) == 2]
        except (ValueError, TypeError):
            continue
        if len(dims) >= 2 and dims[-2][1] == dims[-1][0]:
            yield dims[-2][0], dims[-2][1], dims[-1][1], count


@dataclass(frozen=True, slots=True)
class Block:
    """Sizes of a transformer's layers that fit the matrices."""

    layers: int
    kv_width: int
    """Keys (or values) of all heads, before tensor parallelism."""
    ffn: int
    gated: bool
    vocab_width: int | None
    """The width that is left, where a single matrix has it: the vocabulary's, cut or whole."""


def fit_blocks(matrices: dict[int, float], hidden: int, tp: int) -> list[Block]:
    """Every reading of the matrices as layers of attention and feed-forward, and a head.

    Args:
        matrices: how many of each width a micro-batch holds.
        hidden: the width that all share.
        tp: how many ways the layers are cut.
    """
    whole = {width: round(count) for width, count in matrices.items() if round(count) >= 1}
    found = _fit(whole, hidden, tp)
    return found if found or tp == 1 else _fit(_without_outer(whole, tp), hidden, tp)


def _without_outer(whole: dict[int, int], tp: int) -> dict[int, int]:
    """The matrices that are left when a DTensor's operator, which tells of the whole, stands around the local one."""
    left = dict(whole)
    for width in sorted(whole):
        if left.get(width, 0) > 0 and width * tp in left:
            left[width * tp] -= left[width]
    return {width: count for width, count in left.items() if count > 0}


def _fit(whole: dict[int, int], hidden: int, tp: int) -> list[Block]:
    layers = {count // times for count in whole.values() for times in (1, 2, 3, 4) if count % times == 0}
    found = []
    for number in sorted(layers, reverse=True):
        for attention, feed in combine(_attentions(whole, hidden, tp, number), (True, False)):
            kv_width, rest = attention
            for ffn, left in _feed_forwards(rest, number, tp, gated=feed):
                head = [width for width, count in left.items() if count == 1 and width > hidden // tp]
                if len(left) <= 1 and len(head) == len(left):
                    found.append(Block(number, kv_width, ffn, feed, head[0] if head else None))
    return found


def _attentions(whole: dict[int, int], hidden: int, tp: int, layers: int) -> Iterator[tuple[int, dict[int, int]]]:
    """The width of keys, and what is left when the matrices of attention are taken out."""
    own = hidden // tp
    if whole.get(own) == 4 * layers:
        yield hidden, _less(whole, {own: 4 * layers})
    for width, count in whole.items():
        if width < own and count == 2 * layers and whole.get(own, 0) >= 2 * layers:
            yield width * tp, _less(whole, {own: 2 * layers, width: 2 * layers})
        if own < width <= 3 * own and (width - own) % 2 == 0 and count >= layers and whole.get(own, 0) >= layers:
            yield (width - own) // 2 * tp, _less(whole, {own: layers, width: layers})


def _feed_forwards(whole: dict[int, int], layers: int, tp: int, *, gated: bool) -> Iterator[tuple[int, dict[int, int]]]:
    """The width of the feed-forward layer, and what is left when its matrices are taken out."""
    matrices = 3 * layers if gated else 2 * layers
    for width, count in whole.items():
        if count >= matrices:
            yield width * tp, _less(whole, {width: matrices})
        if gated and count >= layers and width % 2 == 0 and whole.get(width // 2, 0) >= layers:
            yield width // 2 * tp, _less(whole, {width: layers, width // 2: layers})


def _less(whole: dict[int, int], taken: dict[int, int]) -> dict[int, int]:
    left = {width: count - taken.get(width, 0) for width, count in whole.items()}
    return {width: count for width, count in left.items() if count > 0}
