"""Tokens on their way to experts and back, with torch's all-to-alls or over DeepEP.

Sources: torchtitan `models/common/moe` and `distributed/expert_parallel.py` (AllToAllTokenDispatcher); DeepEP
(`csrc/deep_ep.cpp`): a token goes once to every rank that holds one of its experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import comb

from tracelens.collectives import Primitive
from tracelens.ledger import symbols as y
from tracelens.ledger.expressions import Expr, Number, ceiling
from tracelens.ledger.layout import GroupKind, Layout, Recompute
from tracelens.ledger.results import Overlap
from tracelens.ledger.rules.activations import TOKENS
from tracelens.ledger.terms import Term
from tracelens.results import Phase

SOURCE = "torchtitan distributed/expert_parallel.py"
DEEPEP_SOURCE = "DeepEP csrc/deep_ep.cpp, internode dispatch and combine"


def dispatched_tokens(layout: Layout) -> Expr:
    """Tokens of one rank that enter the dispatcher: tensor-parallel ranks bring a slice of the sequence each."""
    return TOKENS / y.t if layout.tp > 1 else TOKENS


def routed_elements(layout: Layout) -> Expr:
    """Elements of one all-to-all: every token once per expert, or every expert's capacity."""
    tokens = dispatched_tokens(layout)
    if layout.capacity_factor is None:
        return tokens * y.k * y.h
    return y.E * ceiling(Number(layout.capacity_factor) * tokens * y.k / y.E) * y.h


def list_all_to_all_terms(layout: Layout, dtype: str, *, backward: bool = True) -> Iterator[Term]:
    """Counts, tokens there, tokens back; backward twice more, with no counts."""
    forwards = y.L_e * y.m
    again = 1 if layout.recompute is Recompute.full else 0
    if layout.capacity_factor is None:
        yield _term("ep.counts", y.E, "int64", (1 + again) * forwards, Phase.forward)
    passes = [("forward", 2 * forwards, Phase.forward)]
    if backward:
        passes.append(("backward", (2 + 2 * again) * forwards, Phase.backward))
    for name, calls, phase in passes:
        term = _term(f"ep.tokens.{name}", routed_elements(layout), dtype, calls, phase)
        yield replace(term, elements_vary=layout.capacity_factor is None)


def _term(name: str, elements: Expr, dtype: str, calls: Expr, phase: Phase) -> Term:
    return Term(
        name=f"{name}.all_to_all",
        group=GroupKind.ep,
        primitive=Primitive.all_to_all,
        dtype=dtype,
        elements=elements,
        calls=calls,
        phase=phase,
        source=SOURCE,
    )


def distinct_ranks(experts: int, ranks: int, top_k: int) -> float:
    """Expected ranks that hold at least one of a token's experts, routing being uniform.

    e · (1 - C(E - E/e, k) / C(E, k)).

    >>> round(distinct_ranks(256, 64, 8), 2), round(distinct_ranks(256, 8, 8), 2)
    (7.68, 5.29)
    """
    others = experts - experts // ranks
    return ranks * (1 - comb(others, top_k) / comb(experts, top_k))


def list_deepep_terms(layout: Layout, sizes: Mapping[str, int], *, backward: bool = True) -> Iterator[Term]:
    """Dispatch and combine of DeepEP, which are no NCCL calls; elements are those that leave for other ranks.

    A token travels once per rank that wants it, and of those ranks one in e is its own.
    """
    spread = Number(distinct_ranks(sizes["E"], layout.ep, sizes["k"]))
    elements = dispatched_tokens(layout) * spread * y.h
    names = [("ep.dispatch", Phase.forward), ("ep.combine", Phase.forward)]
    if backward:
        names += [("ep.combine_backward", Phase.backward), ("ep.dispatch_backward", Phase.backward)]
    for name, phase in names:
        yield Term(
            name=name,
            group=GroupKind.ep,
            primitive=Primitive.all_to_all,
            dtype=layout.param_dtype,
            elements=elements,
            calls=y.L_e * y.m,
            phase=phase,
            source=DEEPEP_SOURCE,
            overlap=Overlap.partial,
            elements_vary=True,
        )
