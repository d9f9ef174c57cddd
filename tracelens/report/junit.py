"""The report as JUnit XML: a test case per finding, per limit kept or not checked, and per kind of call compared.

Errors and rows outside the tolerance fail; a warning passes and says so in its output.
The dialect is that of Jenkins' JUnit plugin and GitLab: testsuites, testsuite, testcase, failure, skipped, system-out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tracelens.compared import Comparison, ComparisonRow, RunComparison, RunRow, TimeVerdict, Verdict
from tracelens.errors import Severity
from tracelens.report.comparison import merge_rows
from tracelens.report.document import Document
from tracelens.report.limits import describe_limit
from tracelens.report.sections_compared import describe_difference, format_place
from tracelens.report.table import as_text, printable
from tracelens.report.verdict import fails_by_comparison
from tracelens.results import Finding, Limit
from tracelens.units import format_bytes

_NOT_CHECKED = "not-checked"


def render_junit(document: Document) -> str:
    """The document as JUnit XML that ends in a newline."""
    root = Element("testsuites", name="tracelens")
    for suite in _suites(document):
        _count(suite)
        root.append(suite)
    for name in ("tests", "failures", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    indent(root)
    # on stdout of a CI job the runner would take `##[` for a command
    text = tostring(root, encoding="unicode").replace("##[", "&#35;#[")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suites(document: Document) -> Iterator[Element]:
    yield _reading(document)
    yield _findings(document)
    named = [one for one in document.limits if one.verdict in ("kept", "not_checked")]
    if named:
        yield _limits(named)
    if isinstance(document.comparison, Comparison):
        yield _compared(document.comparison, fails=fails_by_comparison(document))
    elif isinstance(document.comparison, RunComparison):
        yield _runs(document.comparison, fails=fails_by_comparison(document))


def _count(suite: Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))


def _reading(document: Document) -> Element:
    suite = Element("testsuite", name="input")
    files = len(document.run.files)
    _case(suite, "input", f"{files} file{'' if files == 1 else 's'} read")
    for file in document.run.skipped:
        SubElement(_case(suite, "input", file.path), "skipped", message=printable(file.why))
    return suite


def _findings(document: Document) -> Element:
    suite = Element("testsuite", name="findings")
    if not document.findings:
        _case(suite, "findings", "nothing found")
    for finding in document.findings:
        if document.limits and finding.name == _NOT_CHECKED:
            continue  # the limit stands under its own name
        case = _case(suite, "findings", _finding_name(finding))
        told = "\n".join(as_text(text) for text in (finding.message, finding.hint, finding.coverage) if text)
        if finding.severity is Severity.error:
            SubElement(case, "failure", type=printable(finding.code), message=printable(finding.message)).text = told
        else:
            SubElement(case, "system-out").text = f"{finding.severity}: {told}"
    return suite


def _limits(limits: Sequence[Limit]) -> Element:
    """Those that are kept and those that could not be checked; the others have a finding that tells more."""
    suite = Element("testsuite", name="limits")
    for one in limits:
        case = _case(suite, "limits", one.name)
        if one.verdict == "kept":
            SubElement(case, "system-out").text = as_text(describe_limit(one))
        else:
            SubElement(case, "skipped", message=printable(f"not checked: {describe_limit(one)}"))
    return suite


def _finding_name(finding: Finding) -> str:
    parts = [finding.code, finding.name or "", f"({finding.axis})" if finding.axis else ""]
    return " ".join(part for part in parts if part)


def _compared(comparison: Comparison, *, fails: bool) -> Element:
    suite = Element("testsuite", name="predicted against measured")
    for alike in merge_rows(comparison.rows):
        row = alike[0]
        case = _case(suite, "comparison", _row_name(row))
        if row.verdict is Verdict.match:
            continue
        _tell(case, row.verdict, describe_difference(row), fails=fails)
    return suite


def _tell(case: Element, verdict: Verdict, difference: str, *, fails: bool) -> None:
    """A difference as a failure, or as output where the job passes in spite of it."""
    told = printable(difference)
    if fails:
        SubElement(case, "failure", type=verdict.value, message=told).text = told
    else:
        SubElement(case, "system-out").text = told


def _row_name(row: ComparisonRow) -> str:
    stage = "" if row.stage is None else f"stage {row.stage}"
    parts = [format_place(row), row.primitive, row.dtype or "", row.phase or "", stage, row.term or ""]
    return " ".join(part for part in parts if part)


def _runs(comparison: RunComparison, *, fails: bool) -> Element:
    suite = Element("testsuite", name="run against run")
    for metric in comparison.metrics:
        case = _case(suite, "time", metric.name.replace("_", " "))
        if metric.verdict is not TimeVerdict.same:
            SubElement(case, "system-out").text = metric.verdict.replace("_", " ")
    for row in comparison.rows:
        case = _case(suite, "traffic", _run_name(row))
        if row.verdict is not Verdict.match:
            _tell(case, row.verdict, _run_difference(row), fails=fails)
    return suite


def _run_name(row: RunRow) -> str:
    of_size = "all sizes" if row.from_bytes is None else f"from {format_bytes(row.from_bytes)}"
    return f"{row.group} {row.primitive} {row.dtype or ''} {of_size}"


def _run_difference(row: RunRow) -> str:
    calls = f"calls {_known(row.base_calls)} to {_known(row.candidate_calls)}"
    sent = f"bytes {format_bytes(row.base_bytes)} to {format_bytes(row.candidate_bytes)}"
    return f"{row.verdict}: {calls}, {sent}{f'; {row.why}' if row.why else ''}"


def _known(number: float | None) -> str:
    return "none" if number is None else f"{number:.6g}"


def _case(suite: Element, group: str, name: str) -> Element:
    """A new test case; one whose name is taken gets a number, since CI systems tell tests apart by name."""
    unique, number, taken = printable(name), 2, {case.get("name") for case in suite}
    while unique in taken:
        unique, number = f"{printable(name)} #{number}", number + 1
    return SubElement(suite, "testcase", classname=f"tracelens.{group}", name=unique)
