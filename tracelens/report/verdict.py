"""What a report says in one line: whether the job passes, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from tracelens.compared import Comparison, RunComparison, Verdict
from tracelens.errors import Severity
from tracelens.report.comparison import percent_down, percent_up, what_is_compared
from tracelens.report.document import Document
from tracelens.report.limits import describe_limit
from tracelens.results import Limit
from tracelens.units import plural


class Status(StrEnum):
    """Whether a job passes."""

    failed = "failed"
    warned = "warned"
    """Nothing was judged, and something was found."""
    passed_with_warnings = "passed-with-warnings"
    passed = "passed"

    @property
    def label(self) -> str:
        """The status for people."""
        return {
            "failed": "Failed",
            "warned": "Worth a look",
            "passed-with-warnings": "Passed, with warnings",
            "passed": "Passed",
        }[self.value]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict and its reason."""

    status: Status
    text: str


def summarize_verdict(document: Document) -> Summary | None:
    """The verdict and what it rests on; None where nothing was judged and nothing found."""
    if document.passed is None:
        counts = ", ".join(_counts(document))
        return Summary(status=Status.warned, text=counts) if counts else None
    parts = [
        *_limits(document.limits),
        *([] if document.comparison is None else [_compared(document.comparison, decides=not document.limits)]),
        *_counts(document),
    ]
    return Summary(status=_status(document), text=", ".join(parts) or "every limit is kept")


def fails_by_comparison(document: Document) -> bool:
    """Whether it is the comparison that fails the job, and not a finding."""
    return document.passed is False and not _count(document, Severity.error)


def _status(document: Document) -> Status:
    if not document.passed:
        return Status.failed
    unkept = any(one.verdict != "kept" for one in document.limits)
    return Status.passed_with_warnings if unkept else Status.passed


def _count(document: Document, severity: Severity) -> int:
    return sum(finding.severity is severity for finding in document.findings)


def _counts(document: Document) -> Iterator[str]:
    """Errors and warnings; beside limits only the errors that are of none, since they fail the job too."""
    errors = _count(document, Severity.error) - sum(one.verdict == "broken" for one in document.limits)
    warnings = 0 if document.limits else _count(document, Severity.warning)
    if errors > 0:
        yield plural(errors, "error")
    if warnings:
        yield plural(warnings, "warning")


# --- limits -----------------------------------------------------------------------------------------------


def _limits(limits: Sequence[Limit]) -> Iterator[str]:
    broken, exceeded, unchecked = (
        [one for one in limits if one.verdict == verdict] for verdict in ("broken", "exceeded", "not_checked")
    )
    whole = f" of {plural(len(limits), 'limit')}"
    for few, verdict in ((broken, "broken"), (exceeded, "exceeded")):
        if few:
            rest = f"; and {len(few) - 1} more" if len(few) > 1 else ""
            yield f"{len(few)}{whole} {_is(few)} {verdict} ({describe_limit(few[0])}{rest})"
            whole = ""
    if unchecked:
        yield f"{len(unchecked)}{whole} {_is(unchecked)} not checked"
    elif limits and whole:
        yield f"{plural(len(limits), 'limit')} kept"


def _is(few: Sequence[Limit]) -> str:
    return "is" if len(few) == 1 else "are"


# --- comparison -------------------------------------------------------------------------------------------


def _compared(comparison: Comparison | RunComparison, *, decides: bool) -> str:
    what = "explained" if isinstance(comparison, Comparison) else "unchanged"
    fraction, known = percent_down(comparison.explained_bytes_fraction), what_is_compared(comparison)
    told = f"{fraction} of the {known} {what}"
    return f"{told}, {_side(comparison)}{_why(comparison)}" if decides else f"{told}{_why(comparison)}"


def _why(comparison: Comparison | RunComparison) -> str:
    """Where options contradict the trace, if the comparison shows it."""
    if isinstance(comparison, RunComparison) or comparison.inside_tolerance or not comparison.contradictions:
        return ""
    return f" ({'; '.join(comparison.contradictions)})"


def _side(comparison: Comparison | RunComparison) -> str:
    """How a comparison stands to its tolerance, with what takes it out of it where that is not the bytes explained."""
    tolerance = f"the tolerance of {100 * comparison.tolerance:.6g} %"
    if comparison.inside_tolerance:
        return f"inside {tolerance}"
    if isinstance(comparison, RunComparison):
        changed = any(row.from_bytes is None and row.verdict is not Verdict.match for row in comparison.rows)
        return f"outside {tolerance}" if changed else "the step is slower"
    if 1 - (comparison.explained_bytes_fraction or 0) > comparison.tolerance:
        return f"outside {tolerance}"
    return f"{percent_up(comparison.absent_bytes_fraction)} of the predicted absent, outside {tolerance}"
