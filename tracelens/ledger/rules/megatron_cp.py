"""Megatron-Core, context parallel: what TransformerEngine's attention sends.

Source: TransformerEngine `pytorch/attention/dot_product_attention/context_parallel.py`, one class per
`cp_comm_type`: `p2p`, `all_gather`, `a2a`.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, to_expr
from tracelens.ledger.layout import CpKind, GroupKind, Layout, Recompute
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules.activations import TOKENS
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "TransformerEngine attention/dot_product_attention/context_parallel.py"
KEY_OR_VALUE = TOKENS * y.h_kv / y.t
QUERY = TOKENS * y.h_q / y.t
FORWARD, BACKWARD = Phase.forward, Phase.backward


def list_terms(layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """Context-parallel traffic of one pipeline rank."""
    if layout.cp == 1 or not stage.layers:
        return
    # attention's core runs again in backward, and with it what it sends
    again = layout.recompute in (Recompute.full, Recompute.selective)
    forwards = [("forward", FORWARD)] + ([("recompute", BACKWARD)] if again else [])
    if layout.kind_of_cp is CpKind.allgather:
        yield from _all_gather(layout, forwards)
    elif layout.kind_of_cp is CpKind.ulysses:
        yield from _ulysses(layout, [*forwards, ("backward", BACKWARD)])
    else:
        yield from _ring(layout, forwards)


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


def _ring(layout: Layout, forwards: list[tuple[str, Phase]]) -> Iterator[Term]:
    """c-1 blocks of keys and values; backward first those, then with their gradients, last the gradients alone."""
    block = 2 * KEY_OR_VALUE
    for primitive in (Primitive.send, Primitive.recv):
        for name, phase in forwards:
            yield _term(f"ring.{name}", primitive, block, y.c - 1, layout, phase)
        yield _term("ring.backward_single", primitive, block, 2, layout, BACKWARD)
        if layout.cp > 2:
            yield _term("ring.backward_double", primitive, 2 * block, y.c - 2, layout, BACKWARD)


def _all_gather(layout: Layout, forwards: list[tuple[str, Phase]]) -> Iterator[Term]:
    """Keys and values apart; gathered again in backward, their gradients reduce-scattered."""
    for name, phase in [*forwards, ("backward", BACKWARD)]:
        yield _term(f"kv.{name}", Primitive.all_gather, y.c * KEY_OR_VALUE, 2, layout, phase)
    yield _term("dkv", Primitive.reduce_scatter, y.c * KEY_OR_VALUE, 2, layout, BACKWARD)


def _ulysses(layout: Layout, passes: list[tuple[str, Phase]]) -> Iterator[Term]:
    """Queries and output, keys and values: from slices of the sequence to slices of the heads and back."""
    for name, phase in passes:
        yield _term(f"ulysses.q_and_out.{name}", Primitive.all_to_all, QUERY, 2, layout, phase)
        yield _term(f"ulysses.k_and_v.{name}", Primitive.all_to_all, KEY_OR_VALUE, 2, layout, phase)
