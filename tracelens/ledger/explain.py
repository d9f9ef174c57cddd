"""A term's formula with the numbers put in, and where it is written down."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tracelens.collectives import DTYPE_BYTES, wire_factor
from tracelens.errors import UsageError
from tracelens.ledger.bindings import bind_layout, bind_stage
from tracelens.ledger.groups import group_mesh, mesh_size
from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model import ModelSpec
from tracelens.ledger.predict import list_terms
from tracelens.ledger.results import LedgerRow
from tracelens.ledger.rules import textbook
from tracelens.ledger.stages import plan_stages
from tracelens.ledger.terms import Term, bind_term


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One row, step by step."""

    row: LedgerRow
    calls_formula: str
    calls_numbers: str
    elements_formula: str
    elements_numbers: str
    unknowns: dict[str, int | float]
    """Every name in the formula and its number."""
    bytes_per_element: int
    group_size: int
    wire_factor: float
    """Bytes on the wire over payload bytes."""


def explain(model: ModelSpec, layout: Layout, term: str, *, stage: int | None = None) -> tuple[Explanation, ...]:
    """Every row whose term has that name, or begins with it.

    Args:
        model: sizes.
        layout: degrees.
        term: a term's name, or its beginning such as `tp`.
        stage: the pipeline rank; None is the first that has the term.

    Raises:
        UsageError: when no term has such a name; the hint lists those there are.
    """
    found = [*_explanations(model, layout, term, stage)]
    if not found:
        names = sorted({name.name for name, _, _ in _bound(model, layout, stage)})
        raise UsageError(f"no term `{term}`", hint=f"terms of this layout: {', '.join(names) or 'none'}")
    return tuple(found)


def _explanations(model: ModelSpec, layout: Layout, wanted: str, stage: int | None) -> Iterable[Explanation]:
    seen: set[str] = set()
    for term, bindings, row in _bound(model, layout, stage):
        if term.name in seen or not (term.name == wanted or term.name.startswith(f"{wanted}.")):
            continue
        seen.add(term.name)
        size = mesh_size(group_mesh(layout, term.group))
        yield Explanation(
            row=row,
            calls_formula=str(term.calls),
            calls_numbers=term.calls.text(bindings),
            elements_formula=str(term.elements),
            elements_numbers=term.elements.text(bindings),
            unknowns={name: bindings[name] for name in sorted(term.unknowns())},
            bytes_per_element=DTYPE_BYTES[term.dtype],
            group_size=size,
            wire_factor=(
                row.wire_bytes / row.payload_bytes if row.payload_bytes else wire_factor(term.primitive, size) or 0.0
            ),
        )


def _bound(model: ModelSpec, layout: Layout, stage: int | None) -> Iterable[tuple[Term, dict[str, int], LedgerRow]]:
    shared = bind_layout(model, layout)
    if layout.framework is Framework.textbook:
        yield from _rows(textbook.list_terms(model, layout), layout, shared, None)
        return
    for plan in plan_stages(model, layout):
        if stage is None or plan.rank == stage:
            terms = list_terms(model, layout, plan)
            yield from _rows(terms, layout, shared | bind_stage(plan), plan.rank)


def _rows(
    terms: Iterable[Term], layout: Layout, bindings: dict[str, int], stage: int | None
) -> Iterable[tuple[Term, dict[str, int], LedgerRow]]:
    for term in terms:
        row = bind_term(term, layout, bindings, stage)
        if row is not None:
            yield term, bindings, row
