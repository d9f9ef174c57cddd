"""Gradients packed into buckets, in the order in which backward finishes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tracelens.ledger.expressions import Bindings, Expr, Number, add
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.parameters import Part, Tensor, block_tensors, embedding_tensors, head_tensors
from tracelens.ledger.stages import StagePlan

# The order in which a block's forward uses its tensors; gradients become ready the other way round.
_ORDER_OF_USE = (
    "attention_norm",
    "wq_a",
    "q_norm",
    "wq_b",
    "wq",
    "wkv_a",
    "kv_norm",
    "wkv_b",
    "wk",
    "wv",
    "k_norm",
    "sinks",
    "wo",
    "mlp_norm",
    "router",
    "shared_gate",
    "w1",
    "w3",
    "w2",
)


@dataclass(frozen=True, slots=True)
class Sized:
    """One gradient: its size as formula and as number."""

    formula: Expr
    elements: int


def gradients(
    model: ModelSpec, stage: StagePlan, sizes: Bindings, *, experts: bool, registered: bool = False
) -> list[Sized]:
    """The gradients of one pipeline rank as backward finishes them, last layer first.

    Args:
        model: sizes.
        stage: which layers.
        sizes: numbers for the formulas.
        experts: take the routed experts in too.
        registered: as the modules are defined instead, first layer first.
    """
    ordered: list[Tensor] = []
    if stage.has_embedding:
        ordered += embedding_tensors(model)
    for chunk in stage.chunks:
        for layer in range(chunk.first_layer, chunk.first_layer + chunk.layers):
            tensors = block_tensors(model, moe=model.is_moe_layer(layer))
            ordered += tensors if registered else sorted(tensors, key=_use)
    if stage.has_head:
        ordered += head_tensors(model)
    chosen = [tensor for tensor in ordered if experts or tensor.part is not Part.experts]
    cache: dict[Tensor, Sized] = {}
    for tensor in chosen:
        if tensor not in cache:
            cache[tensor] = Sized(tensor.local_size, int(tensor.local_size.evaluate(sizes)))
    return [cache[tensor] for tensor in (chosen if registered else reversed(chosen))]


def _use(tensor: Tensor) -> tuple[int, int]:
    name = tensor.name.removesuffix("_bias")
    return _ORDER_OF_USE.index(name), int(tensor.name != name)


def fill_until_full(items: Iterable[Sized], caps: Iterator[float]) -> list[list[Sized]]:
    """Buckets closed by the gradient that reaches the cap (DDP).

    Args:
        items: gradients in order.
        caps: the cap of each bucket in turn, in elements.
    """
    buckets: list[list[Sized]] = []
    current: list[Sized] = []
    cap = next(caps)
    for item in items:
        current.append(item)
        if sum(member.elements for member in current) >= cap:
            buckets.append(current)
            current, cap = [], next(caps)
    return [*buckets, current] if current else buckets


def flush_before_overflow(items: Iterable[Sized], cap: int) -> list[list[Sized]]:
    """Buckets sent before the gradient that would overflow them; one larger than the cap travels alone."""
    buckets: list[list[Sized]] = []
    current: list[Sized] = []
    filled = 0
    for item in items:
        if current and filled + item.elements > cap:
            buckets.append(current)
            current, filled = [], 0
        current.append(item)
        filled += item.elements
    return [*buckets, current] if current else buckets


def count_equal(buckets: Iterable[list[Sized]]) -> Iterator[tuple[Expr, Expr]]:
    """(elements, calls) of every distinct bucket, in the order of first appearance."""
    counts: dict[Expr, int] = {}
    for bucket in buckets:
        formula = add(*(item.formula for item in bucket))
        counts[formula] = counts.get(formula, 0) + 1
    for formula, count in counts.items():
        yield formula, Number(count)
