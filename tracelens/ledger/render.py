"""The ledger as text for people, within 100 columns, and as markdown for documents."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence

from tracelens.ledger.explain import Explanation
from tracelens.ledger.groups import mesh_size
from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.results import Ledger, LedgerRow, Link, StageMemory, TimeEstimate
from tracelens.ledger.symbols import MEANINGS
from tracelens.units import format_bytes, format_bytes_two_decimals, format_percent, format_time

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]
ROW_HEADINGS = ("axis", "primitive", "dtype", "phase", "calls", "payload", "wire", "link", "overlap", "term")
TEXT_HEADINGS = ("axis", "primitive", "dtype", "in", "calls", "payload", "wire", "link", "hides", "term")
"""A phase is three letters, and a term is said without its primitive: `--explain` finds it by its beginning."""
STAGE_HEADINGS = ("stage", "layers", "params", "state", "activations", "in flight", "total", "nvlink", "ib")


def render_text(ledger: Ledger, *, stage: int | None = None) -> str:
    """Aligned columns; the rows of the busiest pipeline rank unless another is asked for."""
    return "\n".join(_lines(ledger, stage, text_table, heading="{}", note="{}")) + "\n"


def _text_cells(row: LedgerRow, told: Callable[[float], str]) -> Sequence[str]:
    axis = row.axis if len(row.axis) <= _MOST_OF_AXIS else f"{row.axis[:7]}…{row.axis[7 - _MOST_OF_AXIS + 1 :]}"
    return (
        axis,
        row.primitive,
        row.dtype,
        _PHASES.get(row.phase, row.phase),
        _calls(row),
        told(row.payload_bytes),
        told(row.wire_bytes),
        row.link,
        "part" if row.overlap == "partial" else row.overlap,
        row.term.partition(f".{row.primitive}")[0],
    )


_MOST_OF_AXIS = 12
_PHASES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}


def render_markdown(ledger: Ledger, *, stage: int | None = None) -> str:
    """The same as GitHub-flavoured tables."""
    return "\n".join(_lines(ledger, stage, markdown_table, heading="## {}", note="_{}_")) + "\n"


def _lines(ledger: Ledger, stage: int | None, table: Table, *, heading: str, note: str) -> list[str]:
    shown = ledger.busiest_stage if stage is None else stage
    rows = rows_that_move(ledger.rows_of_stage(shown))
    told = describe_layout(ledger)
    if table is text_table:
        told = textwrap.fill(told, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    lines = [heading.format(told), "", *_memory(ledger, table), ""]
    title = "traffic per GPU and step"
    if ledger.layout.pp > 1 and shown is not None:
        title += f", stage {shown}" + ("" if stage is not None else " (the one that sends most)")
    lines += [heading.format(title), "", _traffic(ledger, rows, table), "", _totals(rows, _sizes(ledger))]
    if ledger.time is not None:
        lines += ["", heading.format("time"), "", *_time(ledger, ledger.time, table)]
    if ledger.layout.framework is Framework.textbook:
        lines += ["", note.format("the article's arithmetic; practice differs, see docs/article.md")]
    return lines


def rows_that_move(rows: Iterable[LedgerRow]) -> tuple[LedgerRow, ...]:
    """Without the calls of groups of one rank, which a framework issues and which move nothing."""
    return tuple(row for row in rows if mesh_size(row.mesh) > 1)


def _traffic(ledger: Ledger, rows: Sequence[LedgerRow], table: Table) -> str:
    if not rows:
        return "nothing is sent: every group has one rank"
    told = _sizes(ledger)
    if table is not text_table:
        return table(ROW_HEADINGS, (_row_cells(row, told) for row in rows))
    return table(TEXT_HEADINGS, (_text_cells(row, told) for row in rows))


def describe_layout(ledger: Ledger) -> str:
    """One line: model, framework and every degree."""
    layout = ledger.layout
    degrees = " ".join(f"{name}={getattr(layout, name)}" for name in ("tp", "cp", "pp", "dp", "ep"))
    return (
        f"{ledger.model.name} on {layout.framework}: {degrees} zero={layout.zero_level} "
        f"sp={layout.has_sequence_parallel} mb={layout.micro_batch} m={layout.num_microbatches} "
        f"seq={layout.seq_len or ledger.model.seq_len} -> {layout.world_size} GPUs"
    )


def _memory(ledger: Ledger, table: Table) -> list[str]:
    state, kept, size = ledger.state, ledger.activations, _sizes(ledger)
    return [
        f"state per GPU: params {size(state.params_bytes)}  grads {size(state.grads_bytes)}  "
        f"optim {size(state.optim_bytes)}  total {size(state.total_bytes)}",
        f"activations per layer and micro-batch: {size(kept.per_layer_bytes)}   "
        f"layers/stage {kept.layers:.1f}   tokens/GPU/mb {_tokens(ledger)}",
        _needed(ledger),
        f"not counted: {', '.join(ledger.memory.not_counted)}",
        f"pipeline bubble: {_bubble(ledger)} of the step",
        *(["", table(STAGE_HEADINGS, _stage_rows(ledger))] if len(ledger.stages) > 1 else []),
    ]


def _needed(ledger: Ledger) -> str:
    memory, size = ledger.memory, _sizes(ledger)
    where = f" of stage {memory.stage}" if ledger.layout.pp > 1 and len(ledger.stages) > 1 else ""
    where += ", one micro-batch" if ledger.layout.framework is Framework.textbook else ""
    text = f"states and activations per GPU{where}: {size(memory.needed_bytes)}"
    if memory.available_bytes is None:
        return text
    return f"{text} of {size(memory.available_bytes)}{'' if memory.fits else ': does not fit'}"


def describe_misfit(ledger: Ledger) -> str | None:
    """`does not fit: 291 GiB of 79.6 GiB`; None where it fits or that is unknown."""
    memory = ledger.memory
    if memory.fits is not False:
        return None
    return f"does not fit: {format_bytes(memory.needed_bytes)} of {format_bytes(memory.available_bytes)}"


def _bubble(ledger: Ledger) -> str:
    share = ledger.bubble_fraction
    return f"{share:.3f}" if ledger.layout.framework is Framework.textbook else format_percent(share)


def _sizes(ledger: Ledger) -> Callable[[float], str]:
    """How sizes are told: the article prints two decimals."""
    return format_bytes_two_decimals if ledger.layout.framework is Framework.textbook else format_bytes


def _tokens(ledger: Ledger) -> int:
    layout = ledger.layout
    return (layout.seq_len or ledger.model.seq_len) * layout.micro_batch // layout.cp


def _stage_rows(ledger: Ledger) -> Iterable[Sequence[str]]:
    """Pipeline ranks, equal neighbours said once."""
    previous: list[str] = []
    first = last = 0
    for memory in ledger.stages:
        cells = _stage_cells(ledger, memory)
        if previous and cells != previous:
            yield [_span(first, last), *previous]
        if cells != previous:
            first = memory.stage
        previous, last = cells, memory.stage
    yield [_span(first, last), *previous]


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _stage_cells(ledger: Ledger, memory: StageMemory) -> list[str]:
    rows, size = ledger.rows_of_stage(memory.stage), _sizes(ledger)
    return [
        str(memory.layers),
        f"{memory.parameters / 1e6:,.1f} M",
        size(memory.state.total_bytes),
        size(memory.activations.total_bytes),
        f"{memory.activations.microbatches_in_flight:g}",
        size(memory.total_bytes),
        size(_sent(rows, Link.nvlink)),
        size(_sent(rows, Link.ib)),
    ]


def _row_cells(row: LedgerRow, told: Callable[[float], str]) -> Sequence[str]:
    return (
        row.axis,
        row.primitive,
        row.dtype,
        row.phase,
        _calls(row),
        told(row.payload_bytes),
        told(row.wire_bytes),
        row.link,
        row.overlap,
        row.term,
    )


def _calls(row: LedgerRow) -> str:
    return f"{row.calls:g}" if isinstance(row.calls, float) else f"{row.calls:,}"


def _sent(rows: Iterable[LedgerRow], link: Link) -> float:
    return sum(row.wire_bytes for row in rows if row.link is link)


def _totals(rows: Sequence[LedgerRow], size: Callable[[float], str]) -> str:
    near, far = _sent(rows, Link.nvlink), _sent(rows, Link.ib)
    return f"total per GPU and step: {size(near + far)}  (nvlink {size(near)}, ib {size(far)})"


def _time(ledger: Ledger, estimate: TimeEstimate, table: Table) -> list[str]:
    rows = [
        (time.term, format_time(time.link_seconds * 1e9), format_time(time.exposed_seconds * 1e9))
        for time in sorted(estimate.terms, key=lambda time: -time.exposed_seconds)
        if time.link_seconds > 0
    ]
    parts = {
        "compute": estimate.compute_seconds,
        "exposed communication": estimate.exposed_seconds,
        "bubble": estimate.bubble_seconds,
        "optimizer": estimate.optimizer_seconds,
    }
    misfit = describe_misfit(ledger)
    of_what = ", of a layout that does not fit" if misfit else ""
    return [
        *([misfit] if misfit else []),
        f"step {format_time(estimate.step_seconds * 1e9)} on {estimate.cluster}, "
        f"MFU {format_percent(estimate.mfu)}{of_what}",
        ", ".join(f"{name} {format_time(seconds * 1e9)}" for name, seconds in parts.items()),
        "",
        table(("term", "on the link", "exposed"), rows),
        "",
        *(f"assumed: {line}" for line in estimate.assumptions),
    ]


def render_explanation(explanations: Iterable[Explanation], layout: Layout) -> str:
    """Formulas with their numbers, and where they are written down."""
    return "\n\n".join(_explanation(explanation, layout) for explanation in explanations) + "\n"


def _explanation(explanation: Explanation, layout: Layout) -> str:
    row = explanation.row
    where = "" if row.stage is None or layout.pp == 1 else f", stage {row.stage}"
    ranks = " · ".join(f"{count} at stride {stride}" for count, stride in row.mesh) or "one rank"
    lines = [
        f"{row.term}{where}: {row.primitive} of {row.dtype} over {row.axis} ({ranks}, {row.link}), {row.phase}",
        "  calls     " + _steps(explanation.calls_formula, explanation.calls_numbers, f"{row.calls:,}"),
        "  elements  " + _steps(explanation.elements_formula, explanation.elements_numbers, f"{row.elements:,}"),
        f"  payload   {row.calls:,} · {row.elements:,} · {explanation.bytes_per_element} B = {row.payload_bytes:,} B",
        f"  wire      {explanation.wire_factor:.6g} · {row.payload_bytes:,} B = {row.wire_bytes:,} B"
        f" = {format_bytes_two_decimals(row.wire_bytes)}  (group of {explanation.group_size})",
        f"  overlap   {row.overlap}",
        f"  source    {row.source}",
    ]
    lines += [f"  {name:<9} {value:,}  {MEANINGS.get(name, '')}" for name, value in explanation.unknowns.items()]
    return "\n".join(lines)


def _steps(*forms: str) -> str:
    """Formula, numbers and result, each on a line of its own, said once where they are the same."""
    return "\n            = ".join(dict.fromkeys(forms))


_WIDTH = 100
_NUMERIC = frozenset({"calls", "payload", "wire", "layers", "params", "state", "activations", "in flight", "total"})
_RIGHT = _NUMERIC | {"nvlink", "ib", "on the link", "exposed"}


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns two blanks apart, or one where two do not fit; numbers to the right."""
    grid = [list(headings), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in grid) for column in range(len(headings))]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= _WIDTH else " "
    lines = (
        gap.join(
            cell.rjust(width) if heading in _RIGHT else cell.ljust(width)
            for cell, width, heading in zip(row, widths, headings, strict=True)
        ).rstrip()
        for row in grid
    )
    return "\n".join(lines)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A GitHub-flavoured table."""
    rule = ["--:" if heading in _RIGHT else "---" for heading in headings]
    lines = [list(headings), rule, *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
