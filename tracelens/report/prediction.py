"""A ledger as one HTML page: what each GPU sends, holds and waits for, with formula and source of every row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tracelens import __version__
from tracelens.ledger.layout import Framework
from tracelens.ledger.render import describe_layout, describe_misfit, rows_that_move
from tracelens.ledger.results import Ledger, LedgerRow, Link, StageMemory, TimeEstimate
from tracelens.ledger.symbols import MEANINGS
from tracelens.report.charts import SCALE, Chart, Lane, Span
from tracelens.report.page import render_page
from tracelens.report.sections import Cell, Table, count, name, number_columns, size, table_of, text_columns, time
from tracelens.report.tiles import Tile
from tracelens.units import format_bytes, format_percent, format_time

_NS = 1e9
_WORD = re.compile(r"[^\W\d]\w*")
_TEXTBOOK = "The article's arithmetic; practice differs, see docs/article.md."


def render_prediction(ledger: Ledger, *, stage: int | None = None) -> str:
    """The ledger as a page that needs nothing beside itself.

    Args:
        ledger: what to tell.
        stage: the pipeline rank whose traffic is drawn; the one that sends most unless given.
    """
    shown = ledger.busiest_stage if stage is None else stage
    rows = rows_that_move(ledger.rows_of_stage(shown))
    pipelined = ledger.layout.pp > 1
    where = f", pipeline rank {shown}" if pipelined and shown is not None else ""
    busiest = " (the one that sends most)" if where and stage is None else ""
    return render_page(
        "prediction.html.jinja",
        version=__version__,
        title=describe_layout(ledger),
        tiles=_tiles(ledger, rows, f"on the wire{where}"),
        note=_TEXTBOOK if ledger.layout.framework is Framework.textbook else "",
        axis_chart=_axis_chart(rows, f"Bytes sent per GPU and step by axis{where}{busiest}"),
        traffic_table=_traffic_table(f"Traffic per GPU and step{where}", rows),
        formulas_table=_formulas_table(rows),
        symbols=_symbols(rows),
        stages_traffic_table=_all_stages_table(ledger) if pipelined and stage is None else None,
        memory_table=_memory_table(ledger),
        activations=ledger.activations,
        memory=ledger.memory,
        misfit=describe_misfit(ledger),
        time=ledger.time,
        time_parts=[] if ledger.time is None else _time_parts(ledger.time),
        time_table=None if ledger.time is None else _time_table(ledger.time, shown),
    )


def _symbols(rows: Iterable[LedgerRow]) -> list[tuple[str, str]]:
    """The unknowns of the formulas and what they mean."""
    used = {word for row in rows for word in _WORD.findall(row.formula)}
    return [(symbol, meaning) for symbol, meaning in MEANINGS.items() if symbol in used]


def _tiles(ledger: Ledger, rows: Iterable[LedgerRow], where: str) -> list[Tile]:
    sent = sum(row.wire_bytes for row in rows)
    parameters = f"{ledger.parameters / 1e9:,.2f} billion parameters in all"
    tiles = [
        Tile(label="GPUs", value=f"{ledger.layout.world_size:,}", detail=parameters),
        Tile(label="sent per GPU and step", value=format_bytes(sent), detail=where),
        Tile(label="states per GPU", value=format_bytes(ledger.state.total_bytes), detail="parameters to optimizer"),
        Tile(label="activations per GPU", value=format_bytes(ledger.activations.total_bytes), detail="at the most"),
        _memory_tile(ledger),
        Tile(label="pipeline bubble", value=format_percent(ledger.bubble_fraction), detail="of the step"),
    ]
    if ledger.time is not None:
        step, mfu = format_time(ledger.time.step_seconds * _NS), format_percent(ledger.time.mfu)
        detail = f"MFU {mfu} on {ledger.time.cluster}"
        detail += ", of a layout that does not fit" if describe_misfit(ledger) else ""
        tiles.append(Tile(label="step, an estimate", value=step, detail=detail))
    return tiles


def _memory_tile(ledger: Ledger) -> Tile:
    needed, available = ledger.memory.needed_bytes, ledger.memory.available_bytes
    detail = describe_misfit(ledger) or ("" if available is None else f"of {format_bytes(available)}")
    return Tile(label="states and activations", value=format_bytes(needed), detail=detail or "of the fullest GPU")


def _axis_chart(rows: Sequence[LedgerRow], label: str) -> Chart | None:
    """Bytes by axis, stacked by primitive; the axis that sends most comes first."""
    sent: dict[str, dict[str, float]] = {}
    for row in rows:
        own = sent.setdefault(row.axis.value, {})
        own[row.primitive.value] = own.get(row.primitive.value, 0.0) + row.wire_bytes
    sent = {axis: own for axis, own in sent.items() if sum(own.values())}
    if not sent:
        return None
    most = max(sum(own.values()) for own in sent.values())
    ordered = sorted(sent, key=lambda axis: -sum(sent[axis].values()))
    lanes = [
        Lane(
            label=axis,
            spans=_stack(sent[axis], most),
            value=format_bytes(sum(sent[axis].values())),
            note=" and ".join(sorted({row.link.value for row in rows if row.axis == axis and row.wire_bytes})),
        )
        for axis in ordered
    ]
    used = dict.fromkeys(primitive for axis in ordered for primitive, value in sent[axis].items() if value)
    return Chart(label=label, lanes=tuple(lanes), legend=tuple((kind, kind) for kind in used))


def _stack(parts: dict[str, float], most: float) -> tuple[Span, ...]:
    spans, at = [], 0.0
    for primitive, value in parts.items():
        width = SCALE * value / most
        if width:
            spans.append(Span(at, width, primitive, f"{primitive} {format_bytes(value)}"))
        at += width
    return tuple(spans)


_CALL_COLUMNS = [
    *text_columns("axis", "primitive", "dtype", "phase"),
    *number_columns("calls", "elements of a call", "payload", "sent"),
    *text_columns("link", "overlap", "term"),
]


def _call_cells(row: LedgerRow) -> list[Cell]:
    return [
        name(row.axis),
        name(row.primitive),
        name(row.dtype),
        name(row.phase),
        count(row.calls),
        Cell(f"{row.elements:,}" if isinstance(row.elements, int) else f"{row.elements:,.2f}", row.elements),
        size(row.payload_bytes),
        size(row.wire_bytes),
        name(row.link),
        name(row.overlap),
        name(row.term),
    ]


def _traffic_table(title: str, rows: Sequence[LedgerRow]) -> Table | None:
    near, far = (sum(row.wire_bytes for row in rows if row.link is link) for link in (Link.nvlink, Link.ib))
    total = f"In all {format_bytes(near + far)}: {format_bytes(near)} over nvlink, {format_bytes(far)} over ib."
    return table_of(title, _CALL_COLUMNS, [_call_cells(row) for row in rows], note=total)


def _formulas_table(rows: Iterable[LedgerRow]) -> Table | None:
    told = dict.fromkeys((row.term, row.formula, row.source) for row in rows)
    columns = text_columns("term", "formula", "source")
    return table_of(
        "Formulas of the payload, and where they are written down", columns, [[*map(name, one)] for one in told]
    )


def _all_stages_table(ledger: Ledger) -> Table | None:
    columns = [*number_columns("stage"), *_CALL_COLUMNS]
    rows = [
        [Cell("all" if row.stage is None else str(row.stage), row.stage), *_call_cells(row)]
        for row in rows_that_move(ledger.rows)
    ]
    return table_of("Traffic of every pipeline rank", columns, rows)


def _memory_table(ledger: Ledger) -> Table | None:
    columns = number_columns(
        "stage", "layers", "parameters", "weights", "gradients", "optimizer", "activations", "micro-batches in flight",
        "total", "sent over nvlink", "sent over ib",
    )  # fmt: skip
    several = len(ledger.stages) > 1
    title = "What a GPU of every pipeline rank holds and sends" if several else "What a GPU holds and sends"
    return table_of(title, columns, [_memory_cells(ledger, stage) for stage in ledger.stages])


def _memory_cells(ledger: Ledger, memory: StageMemory) -> list[Cell]:
    rows = ledger.rows_of_stage(memory.stage)
    return [
        Cell(str(memory.stage), memory.stage),
        count(memory.layers),
        count(memory.parameters),
        size(memory.state.params_bytes),
        size(memory.state.grads_bytes),
        size(memory.state.optim_bytes),
        size(memory.activations.total_bytes),
        count(memory.activations.microbatches_in_flight),
        size(memory.total_bytes),
        *(size(sum(row.wire_bytes for row in rows if row.link is link)) for link in (Link.nvlink, Link.ib)),
    ]


def _time_parts(estimate: TimeEstimate) -> list[tuple[str, str]]:
    parts = {
        "step": estimate.step_seconds,
        "compute": estimate.compute_seconds,
        "exposed communication": estimate.exposed_seconds,
        "bubble": estimate.bubble_seconds,
        "optimizer": estimate.optimizer_seconds,
    }
    return [(label, format_time(seconds * _NS)) for label, seconds in parts.items()]


def _time_table(estimate: TimeEstimate, shown: int | None) -> Table | None:
    columns = [*text_columns("term"), *number_columns("on the link", "exposed")]
    terms = [term for term in estimate.terms if term.link_seconds > 0 and term.stage in (None, shown)]
    rows = [
        [name(term.term), time(term.link_seconds * _NS), time(term.exposed_seconds * _NS)]
        for term in sorted(terms, key=lambda term: -term.exposed_seconds)
    ]
    return table_of("Time of every term", columns, rows)
