"""The report as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tracelens.compared import Comparison, ComparisonRow, RunComparison
from tracelens.inferred import Inference
from tracelens.report import charts, charts_ranks, charts_time, sections, sections_compared, sections_ranks
from tracelens.report.comparison import percent_down, percent_up
from tracelens.report.document import Document
from tracelens.report.families import Family, find_families, find_owners
from tracelens.report.headline import describe_coverage, describe_run, describe_spread
from tracelens.report.limits import limits_table
from tracelens.report.lines import Line
from tracelens.report.page import render_page
from tracelens.report.tiles import make_tiles
from tracelens.report.timeline import StepTimeline
from tracelens.report.verdict import summarize_verdict
from tracelens.report.waiting import dilation_lines, routing_lines
from tracelens.units import UNKNOWN, format_percent

_PIPELINES, _MOST_VALUES, _MOST_DIFFERENCES = 2, 6, 12


def render_html(document: Document, timeline: StepTimeline | None = None) -> str:
    """The document as a page that needs nothing beside itself.

    Args:
        document: what to tell.
        timeline: one step over time, which the document itself does not hold.
    """
    families = find_families(document.groups, world_size=document.run.world_size)
    return render_page(
        "report.html.jinja",
        document=document,
        version=document.tracelens_version,
        verdict=summarize_verdict(document),
        findings=document.findings,
        run_line=_capital(describe_run(document.run)),
        spread_line=_capital(describe_spread(document)),
        coverage_line=_capital(describe_coverage(document)),
        tiles=make_tiles(document),
        **_parts(document, families, timeline),
    )


def _parts(document: Document, families: tuple[Family, ...], timeline: StepTimeline | None) -> dict[str, Any]:
    """Every chart and table of the page by its name in the template; None where there is nothing to show."""
    owners = find_owners(families)
    grids, grids_note = charts_ranks.rank_grids(document, families)
    pipeline = document.pipeline
    runs = charts_time.complete_runs(pipeline.runs)[:_PIPELINES] if pipeline else []
    return {
        "step_chart": _step_chart(document),
        "axis_chart": charts.axis_chart(document, families),
        "budget_chart": charts.budget_chart(document.time),
        "timeline_chart": None if timeline is None else charts_time.timeline_chart(timeline),
        "primitive_chart": charts.primitive_chart(document),
        "sizes_chart": charts.sizes_chart(document),
        "pipelines": [(charts_time.pipeline_chart(run), sections_ranks.stages_table(run)) for run in runs],
        "grids": grids,
        "grids_note": grids_note,
        "limits_table": limits_table(document.limits),
        "configuration": _configuration(document.inference),
        "comparison": _comparison(document.comparison),
        "traffic_table": sections.traffic_table(document, families),
        "unsized_table": sections.unsized_table(document),
        "sizes_table": sections.sizes_table(document, families),
        "groups_table": sections.groups_table(families),
        "time_table": sections.time_table(document.time),
        "skew_table": sections_ranks.skew_table(document, owners),
        "links_table": sections_ranks.links_table(document, owners),
        "files_table": sections_ranks.files_table(document),
        "problems_table": sections_ranks.problems_table(document),
        "remarks": [_text(routing_lines(document.routing)), _text(dilation_lines(document.dilation))],
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(lines: list[Line]) -> str:
    return " ".join(line.text.strip() for line in lines)


def _step_chart(document: Document) -> charts.Chart | None:
    if not document.time:
        return None
    mean = sum(row.span_ns for row in document.time) / len(document.time)
    lane = charts.budget_lane("mean step", document.time, mean)
    return charts.Chart(label="The mean step", lanes=(lane,), legend=charts.BUDGET)


# --- what was inferred and compared -----------------------------------------------------------------------


class ConfigField(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the configuration as the page shows it."""

    name: str
    value: str
    confidence: str
    is_open: bool
    """Whether several values are left."""
    supports: tuple[str, ...]
    against: tuple[str, ...]


def _configuration(inference: Inference | None) -> dict[str, Any] | None:
    if inference is None:
        return None
    evidence = {entry.field: entry for entry in inference.evidence}
    fields = []
    for name in inference.config.__struct_fields__:
        value, left = getattr(inference.config, name), inference.undetermined.get(name)
        if value is None and not left:
            continue
        entry = evidence.get(name)
        fields.append(
            ConfigField(
                name=name,
                value=_alternatives(left) if left else _word(value),
                confidence=format_percent(inference.confidence[name]) if name in inference.confidence else "",
                is_open=bool(left),
                supports=entry.supports if entry else (),
                against=entry.against if entry else (),
            )
        )
    return {"inference": inference, "fields": fields}


def _alternatives(values: Sequence[object]) -> str:
    words = [_word(value) for value in values[:_MOST_VALUES]]
    rest = len(values) - len(words)
    return f"{', '.join(words)} and {rest} more" if rest else " or ".join(words)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else UNKNOWN if value is None else str(value)


def _comparison(comparison: Comparison | RunComparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    if isinstance(comparison, RunComparison):
        tables = [sections_compared.metrics_table(comparison), sections_compared.runs_table(comparison)]
        return {"title": "Run against run", "facts": [("base", comparison.base), ("candidate", comparison.candidate)],
                "tables": tables, "assumptions": (), "differences": (), "more": 0}  # fmt: skip
    facts = [
        ("model", f"{comparison.model or UNKNOWN} ({comparison.sizes_from})"),
        ("layout", f"{comparison.layout or UNKNOWN} ({comparison.layout_from})"),
        ("explained", f"{percent_down(comparison.explained_bytes_fraction)} of the measured bytes"),
        ("absent", f"{percent_up(comparison.absent_bytes_fraction)} of the predicted bytes"),
        ("bytes unknown", f"in {percent_up(comparison.unsized_time_fraction)} of the communication time"),
    ]
    rows = sections_compared.differences(comparison)
    return {"title": "Predicted against measured", "facts": facts, "assumptions": comparison.assumptions,
            "tables": [sections_compared.comparison_table(comparison)],
            "differences": [_difference(row) for row in rows[:_MOST_DIFFERENCES]],
            "more": max(0, len(rows) - _MOST_DIFFERENCES)}  # fmt: skip


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a comparison that does not match, as the page tells it."""

    verdict: str
    text: str
    why: str
    example: str


def _difference(row: ComparisonRow) -> Difference:
    example = "" if row.example is None else sections_compared.format_example(row.example)
    text = sections_compared.describe_row(row)
    return Difference(verdict=row.verdict.value, text=text, why=row.why or "", example=example)
