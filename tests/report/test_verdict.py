"""The verdict in a line: what was judged, why it fails or passes, and nothing where nothing was judged."""

from __future__ import annotations

import msgspec
import pytest

from tests.report.build import ordinary_document
from tests.report.judged import a_finding, judged_document, run_document
from tracelens.compared import Comparison, RunComparison, Verdict
from tracelens.errors import Severity
from tracelens.report.document import Document
from tracelens.report.terminal import render_text
from tracelens.report.verdict import summarize_verdict
from tracelens.results import Limit

KEPT = Limit(name="expect.tp", verdict="kept", bound="exactly", measured=2, limit=2)
BROKEN = Limit(name="expect.tp", verdict="broken", bound="exactly", measured=2, limit=4)
OVER = Limit(
    name="limits.idle_fraction", verdict="exceeded", bound="at most", measured=0.08, limit=0.01, unit="fraction"
)
UNCHECKED = Limit(name="limits.link_fraction", verdict="not_checked", bound="at least", limit=0.6, unit="fraction")
ERROR = a_finding("TL201", Severity.error, "expected tp = 4, and the traffic shows 2")
WARNING = a_finding("TL408", Severity.warning, "idle time is 8.0 % of the step")


def checked(*limits: Limit, passed: bool = True, **changes: object) -> Document:
    return msgspec.structs.replace(ordinary_document(), limits=limits, passed=passed, **changes)


def told(document: Document) -> str:
    return render_text(document).partition("\nrun ")[0].replace("\n  ", " ")


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (checked(KEPT), "passed: 1 limit kept"),
        (checked(KEPT, KEPT, findings=(WARNING,)), "passed: 2 limits kept"),
        (
            checked(KEPT, OVER, findings=(WARNING,)),
            "passed, with warnings: 1 of 2 limits is exceeded (limits.idle_fraction: 8.0 %, at most 1.0 %)",
        ),
        (checked(KEPT, UNCHECKED), "passed, with warnings: 1 of 2 limits is not checked"),
        (
            checked(KEPT, BROKEN, BROKEN, OVER, UNCHECKED, passed=False, findings=(ERROR, ERROR)),
            "failed: 2 of 5 limits are broken (expect.tp: 2, exactly 4; and 1 more), 1 is exceeded "
            "(limits.idle_fraction: 8.0 %, at most 1.0 %), 1 is not checked",
        ),
        # a finding of no limit that the policy weighs as an error
        (checked(KEPT, passed=False, findings=(ERROR,)), "failed: 1 limit kept, 1 error"),
    ],
)
def test_the_verdict_counts_the_limits_by_how_they_are_kept(document: Document, line: str) -> None:
    assert told(document) == line


def test_a_comparison_says_what_takes_it_out_of_the_tolerance() -> None:
    comparison = judged_document().comparison
    assert isinstance(comparison, Comparison)
    for changes, line in (
        ({"tolerance": 0.05}, "failed: 25.00 % of the bytes explained, outside the tolerance of 5 %"),
        (
            {"explained_bytes_fraction": 1.0, "absent_bytes_fraction": 0.12},
            "failed: 100.00 % of the bytes explained, 12.00 % of the predicted absent, outside the tolerance of 1 %",
        ),
        (
            {"explained_bytes_fraction": 0.999, "inside_tolerance": True},
            "passed: 99.90 % of the bytes explained, inside the tolerance of 1 %",
        ),
    ):
        changed = msgspec.structs.replace(comparison, **changes)
        assert told(checked(comparison=changed, passed=changed.inside_tolerance)) == line


def test_a_run_that_sends_the_same_and_is_slower_says_so() -> None:
    comparison = run_document().comparison
    assert isinstance(comparison, RunComparison)
    same = tuple(msgspec.structs.replace(row, verdict=Verdict.match) for row in comparison.rows)
    slower = msgspec.structs.replace(comparison, rows=same, explained_bytes_fraction=1.0)
    assert told(checked(comparison=slower, passed=False)) == (
        "failed: 100.00 % of the bytes unchanged, the step is slower"
    )
    assert told(run_document()) == "failed: 50.00 % of the bytes unchanged, outside the tolerance of 1 %"


def test_what_was_only_analyzed_has_no_line() -> None:
    document = msgspec.structs.replace(ordinary_document(), findings=(WARNING,))
    assert render_text(document).startswith("run ")
    summary = summarize_verdict(document)
    assert summary is not None
    assert summary.status.label == "Worth a look"
