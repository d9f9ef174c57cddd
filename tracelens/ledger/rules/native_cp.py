"""Context parallelism of PyTorch: ring attention by all-gather or all-to-all, and FlexAttention.

Source: torch `distributed/tensor/experimental/_context_parallel/_attention.py`
(`_templated_ring_attention`, `_templated_ring_attention_backward`): keys and values travel in one buffer; their
gradients travel around the whole ring, c steps in fp32, each an all-to-all whose every element goes to one peer.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr
from tracelens.ledger.layout import CpKind, GroupKind, Layout, Recompute
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules.activations import TOKENS
from tracelens.ledger.stages import StagePlan
from tracelens.ledger.terms import Spread, Term
from tracelens.results import Phase

SOURCE = "torch distributed/tensor/experimental/_context_parallel/_attention.py"


def list_terms(layout: Layout, stage: StagePlan) -> Iterator[Term]:
    """Context-parallel traffic of one pipeline rank."""
    if layout.cp == 1 or not stage.layers:
        return
    width = y.h_q if layout.native().repeat_kv else y.h_kv
    block = TOKENS * 2 * width / y.t
    again = 1 if layout.recompute is Recompute.full else 0
    if layout.kind_of_cp is CpKind.flex:
        yield from _flex(layout, block / 2, again)
        return
    if layout.kind_of_cp is CpKind.ring_alltoall:
        rotations = y.c - 1
        yield _rotation("cp.kv.forward", block, layout.param_dtype, rotations, Phase.forward)
        yield _rotation("cp.kv.backward", block, layout.param_dtype, (1 + again) * rotations, Phase.backward)
    else:
        yield _gather("cp.kv.forward", y.c * block, layout, 1, Phase.forward)
        yield _gather("cp.kv.backward", y.c * block, layout, 1 + again, Phase.backward)
    yield _rotation("cp.dkv", block, "fp32", y.c, Phase.backward)


def _gather(name: str, elements: Expr, layout: Layout, per_layer: int, phase: Phase) -> Term:
    return Term(
        name=f"{name}.all_gather",
        group=GroupKind.cp,
        primitive=Primitive.all_gather,
        dtype=layout.param_dtype,
        elements=elements,
        calls=per_layer * y.L_s * y.m,
        phase=phase,
        source=SOURCE,
    )


def _rotation(name: str, elements: Expr, dtype: str, per_layer: Expr, phase: Phase) -> Term:
    return Term(
        name=f"{name}.all_to_all",
        group=GroupKind.cp,
        primitive=Primitive.all_to_all,
        dtype=dtype,
        elements=elements,
        calls=per_layer * y.L_s * y.m,
        phase=phase,
        source=SOURCE,
        overlap=Overlap.partial,
        spread=Spread.one_peer,
    )


def _flex(layout: Layout, half: Expr, again: int) -> Iterator[Term]:
    """Keys and values gathered apart, their gradients reduce-scattered."""
    yield _gather("cp.kv.forward", y.c * half, layout, 2, Phase.forward)
    if again:
        yield _gather("cp.kv.backward", y.c * half, layout, 2, Phase.backward)
    yield Term(
        name="cp.dkv.reduce_scatter",
        group=GroupKind.cp,
        primitive=Primitive.reduce_scatter,
        dtype=layout.param_dtype,
        elements=y.c * half,
        calls=2 * y.L_s * y.m,
        phase=Phase.backward,
        source=SOURCE,
    )
