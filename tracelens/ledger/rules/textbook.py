"""The article's own arithmetic: what a textbook says is sent, whatever a framework does.

Source: the `place()` function of *Large-scale training engineering, part 2* (`ledger/parallel.py`). It cuts
layers evenly even where that gives no whole number, names links after axes, and reduces gradients in bf16;
`docs/article.md` says where practice differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, Number, floor, to_expr
from tracelens.ledger.layout import CpKind, GroupKind, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.results import Link, Overlap
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "article, place()"
TOKENS = floor(y.s * y.b / y.c)
ACTIVATION = TOKENS * y.h
"""Elements of one layer-boundary activation."""
LAYERS = y.L / y.p
LOCAL = y.N / (y.t * y.p)
"""Parameters of one rank's share of the model."""

LINKS: dict[GroupKind, Link] = {GroupKind.tp: Link.nvlink}
"""The article names links after axes: tp stays inside a node, everything else does not."""


def list_terms(model: ModelSpec, layout: Layout) -> Iterator[Term]:
    """The terms of the article, alike on every rank."""
    if layout.tp > 1:
        yield from _tensor_parallel(layout)
    if layout.cp > 1:
        yield _context_parallel(layout)
    if layout.pp > 1:
        payload = ACTIVATION / y.t if layout.sequence_parallel else ACTIVATION
        calls = 2 * y.m * y.v
        yield _term("pp.activations", GroupKind.pp, Primitive.send, payload, calls, Overlap.yes)
    if layout.dp * layout.cp > 1:
        yield from _data_parallel(layout)
    if layout.ep > 1 and model.moe is not None:
        capacity = Number(layout.capacity_factor or 1.0)
        routed = ACTIVATION * y.k * capacity
        calls = 4 * LAYERS * y.m
        term = _term("ep.tokens", GroupKind.ep, Primitive.all_to_all, routed, calls, Overlap.partial)
        yield replace(term, elements_vary=layout.capacity_factor is None)


def _term(
    name: str, group: GroupKind, primitive: Primitive, elements: Expr, calls: Expr | int, overlap: Overlap
) -> Term:
    return Term(
        name=name,
        group=group,
        primitive=primitive,
        dtype="bf16",
        elements=elements,
        calls=to_expr(calls),
        phase=Phase.mixed,
        source=SOURCE,
        overlap=overlap,
        link=LINKS.get(group, Link.ib),
    )


def _tensor_parallel(layout: Layout) -> Iterator[Term]:
    calls = 4 * LAYERS * y.m
    if not layout.sequence_parallel:
        yield _term("tp.layers", GroupKind.tp, Primitive.all_reduce, ACTIVATION, calls, Overlap.no)
        return
    for primitive in (Primitive.all_gather, Primitive.reduce_scatter):
        yield _term(f"tp.layers.{primitive}", GroupKind.tp, primitive, ACTIVATION, calls, Overlap.partial)


def _context_parallel(layout: Layout) -> Term:
    if layout.kind_of_cp is CpKind.ulysses:
        calls = 8 * LAYERS * y.m
        return _term("cp.ulysses", GroupKind.cp, Primitive.all_to_all, ACTIVATION / y.t, calls, Overlap.no)
    block = 2 * TOKENS * y.h_kv / y.t
    return _term("cp.ring", GroupKind.cp, Primitive.send, block, 3 * (y.c - 1) * LAYERS * y.m, Overlap.yes)


def _data_parallel(layout: Layout) -> Iterator[Term]:
    if layout.zero_level == 0:
        yield _term("dp.gradients", GroupKind.dp_cp, Primitive.all_reduce, LOCAL, 1, Overlap.yes)
        return
    shard = GroupKind.dp_shard_cp
    gathers = 2 if layout.zero_level >= 3 and layout.reshard_after_forward is not False else 1
    yield _term("dp.gradients", shard, Primitive.reduce_scatter, LOCAL, 1, Overlap.yes)
    yield _term("dp.parameters", shard, Primitive.all_gather, LOCAL, gathers, Overlap.yes)
    if layout.dp_replicate > 1:
        replicate = GroupKind.dp_replicate
        yield _term("dp.replicas", replicate, Primitive.all_reduce, LOCAL / y.n, 1, Overlap.yes)
