"""Comparisons and findings in the terminal: roundings that don't flatter, and words for every verdict."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.report.build import a_document
from tracelens.collectives import Primitive
from tracelens.compared import (
    Comparison,
    ComparisonRow,
    ExampleCall,
    MetricChange,
    RunComparison,
    RunRow,
    TimeVerdict,
    Verdict,
)
from tracelens.errors import Severity
from tracelens.report.comparison import comparison_lines, percent_down, percent_up
from tracelens.report.findings import finding_lines
from tracelens.report.table import WIDTH
from tracelens.report.terminal import render_text
from tracelens.results import Finding, Phase
from tracelens.topology import Axis


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(1.0, "100.00 %"), (0.999999, "99.99 %"), (0.5, "50.00 %"), (0.0, "0.00 %"), (None, "?")],
)
def test_what_is_explained_is_never_rounded_up(fraction: float | None, text: str) -> None:
    assert percent_down(fraction) == text


@pytest.mark.parametrize(("fraction", "text"), [(0.0, "0.00 %"), (1e-9, "< 0.01 %"), (0.0123, "1.23 %"), (None, "?")])
def test_what_is_absent_is_never_rounded_to_nothing(fraction: float | None, text: str) -> None:
    assert percent_up(fraction) == text


def a_row(stage: int | None, verdict: Verdict = Verdict.more, **changes: object) -> ComparisonRow:
    usual: dict[str, object] = {
        "term": "dp.bucket0.all_reduce",
        "rank_class": 0,
        "stage": stage,
        "axis": Axis.dp,
        "mesh": ((4, 8),),
        "primitive": Primitive.all_reduce,
        "dtype": "fp32",
        "phase": Phase.backward,
        "predicted_calls": 1.0,
        "measured_calls": 4.0,
        "predicted_bytes": 1048576.0,
        "measured_bytes": 4194304.0,
        "ratio": 4.0,
        "predicted_overlap": "yes",
        "measured_overlap_pct": 20.0,
        "verdict": verdict,
        "why": "no_sync did nothing",
        "ranks": (0, 1),
    }
    return ComparisonRow(**(usual | changes))  # type: ignore[arg-type]


def a_comparison(*rows: ComparisonRow) -> Comparison:
    return Comparison(
        sizes_from="given", model="llama3-8b", layout="--tp 8", rows=rows, explained_bytes_fraction=0.75,
        absent_bytes_fraction=0.0, unsized_time_fraction=0.0, inside_tolerance=False,
        assumptions=("inferred from the trace: microbatches 4",),
    )  # fmt: skip


def test_stages_that_differ_alike_are_one_line_with_reason_and_example() -> None:
    example = ExampleCall(rank=3, step=7, group="g", name="5", seconds=0.25, payload_bytes=1048576)
    lines = comparison_lines(a_comparison(a_row(0, example=example), a_row(1), a_row(2)), every_row=False)
    text = "\n".join(line.text for line in lines)
    assert "explained 75.00 % of 24.0 MiB measured" in text
    assert "Unexplained, the largest first (1 row)" in text
    assert "0-2" in text
    assert text.count("why: no_sync did nothing") == 1
    assert "look at rank 3, step 7, 0.250000 s after the trace begins, process group 5, 1.00 MiB payload" in text


def test_a_hostile_name_is_shown_as_text() -> None:
    example = ExampleCall(
        rank=0, step=0, group="g", name="\x1b[31m::error::", seconds=None, payload_bytes=None, label="a\nb"
    )
    document = a_document()
    lines = comparison_lines(a_comparison(a_row(None, why="\x1b]0;x", example=example)), every_row=False)
    text = render_text(document) + "\n".join(line.text for line in lines)
    assert "\x1b" not in text
    assert "\\x1b[31m::error::" in text


def test_every_line_fits() -> None:
    row = a_row(11, term="a.very.long.term.of.a.ledger + another.very.long.term", why="word " * 60)
    lines = comparison_lines(a_comparison(row, a_row(None, Verdict.match, why=None)), every_row=True)
    assert max(len(line.text) for line in lines) <= WIDTH


def test_two_runs_are_told_with_words_for_what_the_steps_can_show() -> None:
    metric = MetricChange(
        name="step_time", base=1e8, candidate=1.1e8, change=0.1, base_steps=2, candidate_steps=2, spread=None,
        verdict=TimeVerdict.not_enough_data,
    )  # fmt: skip
    row = RunRow(
        axis=Axis.tp, group="tp", primitive=Primitive.all_gather, dtype="bf16", from_bytes=None, to_bytes=None,
        base_calls=4.0, candidate_calls=5.0, base_bytes=1024.0, candidate_bytes=1280.0, ratio=1.25, base_busy_ns=1e6,
        candidate_busy_ns=1e6, base_exposed_ns=0.0, candidate_exposed_ns=0.0, spread_ns=None, verdict=Verdict.more,
        time_verdict=TimeVerdict.within_spread,
    )  # fmt: skip
    comparison = RunComparison(
        base="old", candidate="new", metrics=(metric,), rows=(row,), explained_bytes_fraction=0.0,
        absent_bytes_fraction=0.0, unsized_time_fraction=0.0, inside_tolerance=False, notes=("the GPUs are A and B",),
    )  # fmt: skip
    text = "\n".join(line.text for line in comparison_lines(comparison, every_row=False))
    for words in ("new against old", "too few steps", "+10.0 %", "4 → 5", "within spread", "A and B"):
        assert words in text


def test_a_finding_is_told_by_code_word_hint_and_what_it_rests_on() -> None:
    finding = Finding(
        code="TL402", name="tp-across-nodes", severity=Severity.warning, message="16 over 8", hint="keep it inside",
        claimed_ns=4_000_000, coverage="16 calls",
    )  # fmt: skip
    short = "\n".join(line.text for line in finding_lines([finding], explain=False))
    assert "warning TL402 tp-across-nodes: 16 over 8" in short
    assert "try: keep it inside" in short
    assert "rests on" not in short
    full = "\n".join(line.text for line in finding_lines([finding], explain=True))
    assert "speaks for 4.00 ms of exposed time" in full
    assert "rests on 16 calls" in full
    assert finding_lines([], explain=True) == []


def a_run_row(**changes: Any) -> RunRow:
    usual: dict[str, Any] = {
        "axis": Axis.tp, "group": "tp", "primitive": Primitive.all_gather, "dtype": "bf16", "from_bytes": None,
        "to_bytes": None, "base_calls": 4.0, "candidate_calls": 5.0, "base_bytes": 1024.0, "candidate_bytes": 1280.0,
        "ratio": 1.25, "base_busy_ns": 1e6, "candidate_busy_ns": 1e6, "base_exposed_ns": 0.0,
        "candidate_exposed_ns": 0.0, "spread_ns": None, "verdict": Verdict.more,
        "time_verdict": TimeVerdict.within_spread,
    }  # fmt: skip
    return RunRow(**(usual | changes))


def against_run(*rows: RunRow) -> list[str]:
    comparison = RunComparison(
        base="old", candidate="new", metrics=(), rows=rows, explained_bytes_fraction=0.0, absent_bytes_fraction=0.0,
        unsized_time_fraction=0.0, inside_tolerance=False,
    )  # fmt: skip
    return [line.text for line in comparison_lines(comparison, every_row=True)]


def test_the_widest_rows_of_two_runs_fit_a_line_and_no_heading_is_shortened() -> None:
    wide = a_run_row(
        group="embedding_grad", primitive=Primitive.reduce_scatter, dtype="fp8_e4m3", from_bytes=262144,
        to_bytes=1048575, base_calls=133.333, candidate_calls=266.667, base_bytes=100.5 * 2**20,
        candidate_bytes=99.9 * 2**20, base_busy_ns=12.3e6, candidate_busy_ns=11.2e6, base_exposed_ns=12.3e6,
        candidate_exposed_ns=11.2e6,
    )  # fmt: skip
    lines = against_run(a_run_row(), wide)
    assert max(map(len, lines)) <= 100
    headings = [line.split() for line in lines if line.split()[:1] == ["group"]]
    first = ["group", "primitive", "dtype", "size"]
    assert {" ".join(words) for words in headings} == {
        " ".join([*first, "calls", "bytes", "bytes", "are"]), " ".join([*first, "busy", "exposed", "busy", "is"])
    }  # fmt: skip


def test_what_is_gone_is_none_where_that_is_known() -> None:
    known = a_run_row(candidate_calls=0.0, candidate_bytes=0.0, candidate_busy_ns=0.0, verdict=Verdict.absent)
    hidden = a_run_row(candidate_calls=None, candidate_bytes=None, candidate_busy_ns=None, verdict=Verdict.absent)
    assert any(re.search(r"4 → 0 +1.00 KiB → 0 B +gone$", line) for line in against_run(known))
    assert any("1.00 ms → 0 ns" in line for line in against_run(known))
    assert any(re.search(r"4 → \? +1.00 KiB → \? +gone$", line) for line in against_run(hidden))


def test_a_hint_that_findings_of_one_code_share_is_said_once() -> None:
    def told(code: str, hint: str) -> Finding:
        return Finding(code=code, severity=Severity.error, message="calls differ", hint=hint)

    findings = [told("TL301", "look"), told("TL301", "look"), told("TL302", "look"), told("TL301", "look again")]
    text = [line.text.strip() for line in finding_lines(findings, explain=False)][1:]
    assert text == [
        "error TL301: calls differ", "try: look", "error TL301: calls differ", "error TL302: calls differ", "try: look",
        "error TL301: calls differ", "try: look again",
    ]  # fmt: skip
