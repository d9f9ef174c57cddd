"""A term: one kind of call that a framework makes, in named unknowns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tracelens.collectives import DTYPE_BYTES, Primitive, wire_factor
from tracelens.ledger.expressions import Bindings, Expr, Value
from tracelens.ledger.groups import AXIS_OF, group_mesh, mesh_size, stays_in_node
from tracelens.ledger.layout import GroupKind, Layout
from tracelens.ledger.results import LedgerRow, Link, Overlap
from tracelens.results import Phase
from tracelens.topology import Axis


class Spread(StrEnum):
    """How much of an all-to-all's payload leaves the rank."""

    even = "even"
    """Equal parts to every rank, one of them itself."""
    one_peer = "one_peer"
    """All of it to one other rank."""


class Payload(NamedTuple):
    """The buffer of one call."""

    elements: Expr
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One kind of call: how often, how large, to whom, and where that is written down."""

    name: str
    group: GroupKind
    primitive: Primitive
    dtype: str
    elements: Expr
    """Elements of the full buffer of one call, as `collectives.wire_factor` counts a payload."""
    calls: Expr
    """Calls per step of one rank."""
    phase: Phase
    source: str
    overlap: Overlap = Overlap.no
    spread: Spread = Spread.even
    axis: Axis | None = None
    """The axis that it serves where that is not what the group is named after."""
    elements_vary: bool = False
    """Calls differ in size (routing decides), and `elements` is their mean."""
    link: Link | None = None
    """The link where it does not follow from the ranks (the article names it)."""

    @property
    def formula(self) -> str:
        """Payload bytes of a step: calls, elements of a call, bytes of an element."""
        factors = (str(self.calls), str(self.elements))
        shown = [f"({text})" if " " in text else text for text in factors if text != "1"]
        return " · ".join([*shown, f"{DTYPE_BYTES[self.dtype]} B"])

    def unknowns(self) -> frozenset[str]:
        """The names that the term rests on."""
        return self.elements.unknowns() | self.calls.unknowns()


def bind_term(term: Term, layout: Layout, bindings: Bindings, stage: int | None) -> LedgerRow | None:
    """The row of a term on a pipeline rank; None for a term that makes no call there."""
    calls, elements = _whole(term.calls.evaluate(bindings)), _whole(term.elements.evaluate(bindings))
    if not calls or not elements:
        return None
    mesh = group_mesh(layout, term.group)
    payload = calls * elements * DTYPE_BYTES[term.dtype]
    size = mesh_size(mesh)
    factor = 1.0 if term.spread is Spread.one_peer and size > 1 else wire_factor(term.primitive, size) or 0.0
    inside = stays_in_node(mesh, layout.gpus_per_node, layout.world_size)
    return LedgerRow(
        term=term.name,
        axis=term.axis or AXIS_OF[term.group],
        group=term.group,
        mesh=mesh,
        primitive=term.primitive,
        dtype=term.dtype,
        phase=term.phase,
        stage=stage,
        calls=calls,
        elements=elements,
        payload_bytes=_whole(payload),
        wire_bytes=_whole(payload * factor),
        link=term.link or (Link.nvlink if inside else Link.ib),
        overlap=term.overlap,
        formula=term.formula,
        source=term.source,
        # a fraction of an element is a mean too
        elements_vary=term.elements_vary or not float(elements).is_integer(),
    )


def _whole(value: Value) -> Value:
    rounded = round(value)
    return rounded if abs(value - rounded) < 1e-9 * max(1.0, abs(value)) else value
