"""Megatron-Core, context parallel: what TransformerEngine's attention sends.

Source: TransformerEngine `pytorch/attention/dot_product_attention/context_parallel.py`, one class per
`cp_comm_type`: `p2p`, `all_gather`, `a2a`, and `a2a+p2p`, which is the unified sequence parallelism of Fang and Zhao
2024 (arXiv 2405.07719). Megatron-Core cuts cp into its two levels by `hierarchical_context_parallel_sizes`
(`parallel_state.py` `create_hierarchical_groups`), the inner one first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, to_expr
from tracelens.ledger.layout import CpKind, GroupKind, Layout, Recompute
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules.activations import TOKENS
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "TransformerEngine attention/dot_product_attention/context_parallel.py"
FORWARD, BACKWARD = Phase.forward, Phase.backward


class Shapes(NamedTuple):
    """Elements of what attention works on, on one rank; outputs are as wide as values."""

    query: Expr
    key: Expr
    value: Expr
    output: Expr


def _shapes(model: ModelSpec) -> Shapes:
    """Latent attention projects its latents up before they travel, so every head has keys and values of its own."""
    heads = TOKENS / y.t
    if model.latent is None:
        return Shapes(heads * y.h_q, heads * y.h_kv, heads * y.h_kv, heads * y.h_q)
    return Shapes(heads * y.h_q, heads * y.h_q, heads * y.a * y.d_v, heads * y.a * y.d_v)


def list_terms(model: ModelSpec, layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """Context-parallel traffic of one pipeline rank."""
    if layout.cp == 1 or not stage.layers:
        return
    # attention's core runs again in backward, and with it what it sends
    again = layout.recompute in (Recompute.full, Recompute.selective)
    forwards = [("forward", FORWARD)] + ([("recompute", BACKWARD)] if again else [])
    shapes, passes = _shapes(model), [*forwards, ("backward", BACKWARD)]
    if layout.kind_of_cp is CpKind.allgather:
        yield from _all_gather(shapes, layout, passes)
    elif layout.kind_of_cp is CpKind.ulysses:
        yield from _ulysses(shapes, layout, passes)
    elif layout.kind_of_cp is CpKind.ulysses_ring:
        yield from _ulysses_ring(shapes, layout, forwards, passes)
    else:
        yield from _ring(shapes, y.c, layout, forwards)


def _term(name: str, primitive: Primitive, elements: Expr, per_layer: Expr | int, layout: Layout, phase: Phase) -> Term:
    return Term(
        name=f"cp.{name}.{primitive}",
        group=GroupKind.cp,
        primitive=primitive,
        dtype=layout.param_dtype,
        elements=elements,
        calls=to_expr(per_layer) * y.L_s * y.m,
        phase=phase,
        source=SOURCE,
        overlap=Overlap.yes if primitive in (Primitive.send, Primitive.recv) else Overlap.no,
    )


def _ring(shapes: Shapes, ranks: Expr, layout: Layout, forwards: list[tuple[str, Phase]]) -> Iterator[Term]:
    """A block of keys and values to every other rank; backward first those, then with their gradients, last these."""
    block = shapes.key + shapes.value
    for primitive in (Primitive.send, Primitive.recv):
        for name, phase in forwards:
            yield _term(f"ring.{name}", primitive, block, ranks - 1, layout, phase)
        yield _term("ring.backward_single", primitive, block, 2, layout, BACKWARD)
        # no call in a ring of two
        yield _term("ring.backward_double", primitive, 2 * block, ranks - 2, layout, BACKWARD)


def _all_gather(shapes: Shapes, layout: Layout, passes: list[tuple[str, Phase]]) -> Iterator[Term]:
    """Keys and values apart; gathered again in backward, their gradients reduce-scattered."""
    tensors = _by_size({"k": shapes.key, "v": shapes.value})
    for name, phase in passes:
        for size, names in tensors.items():
            term = f"{''.join(names)}.{name}"
            yield _term(term, Primitive.all_gather, y.c * size, len(names), layout, phase)
    for size, names in tensors.items():
        yield _term(f"d{''.join(names)}", Primitive.reduce_scatter, y.c * size, len(names), layout, BACKWARD)


def _ulysses(shapes: Shapes, layout: Layout, passes: list[tuple[str, Phase]]) -> Iterator[Term]:
    """Queries and output, keys and values: from slices of the sequence to slices of the heads and back."""
    tensors = _by_size({"q": shapes.query, "out": shapes.output, "k": shapes.key, "v": shapes.value})
    for name, phase in passes:
        for size, names in tensors.items():
            term = f"ulysses.{'_and_'.join(names)}.{name}"
            yield _term(term, Primitive.all_to_all, size, len(names), layout, phase)


def _ulysses_ring(
    shapes: Shapes, layout: Layout, forwards: list[tuple[str, Phase]], passes: list[tuple[str, Phase]]
) -> Iterator[Term]:
    """All-to-alls inside groups of neighbours, a ring across them.

    After the first all-to-alls the sequence of a rank is as many times longer as its heads are fewer, so a block of the
    ring is as large as without them; the ring is shorter.
    """
    for term in _ulysses(shapes, layout, passes):
        yield replace(term, group=GroupKind.cp_inner)
    for term in _ring(shapes, y.c / y.u, layout, forwards):
        yield replace(term, group=GroupKind.cp_outer)


def _by_size(tensors: dict[str, Expr]) -> dict[Expr, list[str]]:
    """The names of the tensors of each size, which are told together."""
    names: dict[Expr, list[str]] = {}
    for name, size in tensors.items():
        names.setdefault(size, []).append(name)
    return names
