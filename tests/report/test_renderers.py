"""What holds of every way to write a document: golden files, names stay names, nothing, and very much."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from markdown_it import MarkdownIt

from tests.golden import assert_golden
from tests.report.build import a_document, bare_document, huge_document, ordinary_document
from tests.report.judged import HOSTILE, judged_document, run_document, with_hostile_names
from tests.report.test_pipeline import a_run, a_stage
from tracelens import __version__
from tracelens.many_ranks import Pipeline
from tracelens.report.document import Document
from tracelens.report.github import render_github
from tracelens.report.html import render_html
from tracelens.report.json import render_json
from tracelens.report.junit import render_junit
from tracelens.report.markdown import MOST_CHARACTERS, render_markdown
from tracelens.report.table import printable
from tracelens.report.terminal import render_text

GOLDEN = Path(__file__).parent / "golden"
Render = Callable[[Document], str]
RENDERERS: dict[str, Render] = {
    "txt": render_text,
    "json": render_json,
    "html": render_html,
    "md": render_markdown,
    "xml": render_junit,
    "github": render_github,
}
DOCUMENTS = {
    "ordinary": ordinary_document,
    "judged": judged_document,
    "runs": run_document,
    "bare": bare_document,
    "empty": a_document,
    "huge": huge_document,
}
COMMAND = re.compile(r"^::(error|warning|notice) title=[^:,\r\n]*::[^\r\n]*$")


@pytest.mark.parametrize("suffix", ["md", "xml", "github", "html"])
@pytest.mark.parametrize("name", ["judged", "runs", "bare"])
def test_the_report_reads_as_in_its_golden_file(name: str, suffix: str) -> None:
    text = RENDERERS[suffix](DOCUMENTS[name]())
    if suffix == "html":  # the style is no text to read, and the version changes with each release
        text = text[text.index("<header>") : text.index("<script>")].replace(__version__, "VERSION")
    assert_golden(text, GOLDEN / f"{name}.{suffix}")


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("suffix", RENDERERS)
def test_a_report_ends_in_one_newline_and_has_no_line_with_what_a_terminal_obeys(suffix: str, name: str) -> None:
    text = RENDERERS[suffix](with_hostile_names(DOCUMENTS[name]()) if suffix != "json" else DOCUMENTS[name]())
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff]", text) == []
    text.encode()


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("suffix", [suffix for suffix in RENDERERS if suffix not in ("json", "github")])
def test_no_name_becomes_a_workflow_command_in_a_job_log(suffix: str, name: str) -> None:
    # a runner takes `::command::` at the start of a line, and `##[command]` anywhere (actions/runner ActionCommand.cs)
    text = RENDERERS[suffix](with_hostile_names(DOCUMENTS[name]()))
    assert [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line] == []


@pytest.mark.parametrize("build", [judged_document, run_document])
@pytest.mark.parametrize("suffix", ["html", "md", "xml", "github"])
def test_a_hostile_report_still_says_the_numbers(suffix: str, build: Callable[[], Document]) -> None:
    text = RENDERERS[suffix](with_hostile_names(build()))
    assert "of the bytes" in text or suffix == "xml"
    assert "MiB" in text


# --- HTML -------------------------------------------------------------------------------------------------


class _Page(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.tags.add("comment")


@pytest.mark.parametrize("build", [ordinary_document, judged_document, run_document])
def test_names_add_no_tag_and_no_attribute_to_a_page(build: Callable[[], Document]) -> None:
    plain, hostile = _Page(render_html(build())), _Page(render_html(with_hostile_names(build())))
    assert hostile.tags <= plain.tags
    assert hostile.attributes <= plain.attributes
    assert any(printable(HOSTILE) in text for text in hostile.texts)


# --- Markdown ---------------------------------------------------------------------------------------------


def _parse(text: str) -> list[str]:
    """Kinds of all inline parts, and the HTML among them."""
    kinds = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        kinds += [token.content.strip().split("(")[0]] if token.type == "html_block" else [token.type]
        for child in token.children or ():
            kinds.append(child.content if child.type == "html_inline" else child.type)
    return kinds


@pytest.mark.parametrize("build", [judged_document, run_document, ordinary_document])
def test_names_add_no_markup_to_markdown(build: Callable[[], Document]) -> None:
    plain, hostile = _parse(render_markdown(build())), _parse(render_markdown(with_hostile_names(build())))
    assert set(hostile) <= set(plain) | {"text_special"}
    assert "table_open" in hostile
    for kind in ("image", "link_open", "em_open", "s_open"):
        assert kind not in hostile
    # as many cells, rows, fences and paragraphs as without
    for kind in ("td_open", "tr_open", "list_item_open", "heading_open", "code_inline", "strong_open"):
        assert hostile.count(kind) == plain.count(kind), kind


def test_github_makes_no_mention_reference_link_or_picture_of_a_name() -> None:
    text = render_markdown(with_hostile_names(judged_document()))
    assert re.findall(r"@\w|(?<!&)#\d|://|www\.\w|:smile:", text) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_markdown_fits_a_comment_and_folds_every_table(name: str) -> None:
    text = render_markdown(DOCUMENTS[name]())
    assert len(text) <= MOST_CHARACTERS + 200
    assert text.count("<details>") == text.count("</details>")


def test_the_verdict_comes_first_in_markdown() -> None:
    assert render_markdown(judged_document()).startswith("## TraceLens: failed\n\n**1 of 5 limits is broken (bytes: ")


# --- JUnit ------------------------------------------------------------------------------------------------


def test_an_error_fails_a_warning_passes_and_a_skipped_file_is_skipped() -> None:
    root = ElementTree.fromstring(render_junit(judged_document()))
    failed = [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None]
    assert failed == ["TL302 bytes-differ (dp_shard)"]
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("11", "1", "2")
    kept = [case.get("name") for case in root.findall("testsuite[@name='limits']/testcase")]
    assert kept == ["expect.tp", "limits.idle_fraction", "limits.link_fraction"]
    skipped = [case.get("name") for case in root.iter("testcase") if case.find("skipped") is not None]
    assert skipped == ["traces/merged.json", "limits.link_fraction"]
    (warning,) = [case for case in root.iter("testcase") if (case.get("name") or "").startswith("TL401")]
    assert (warning.findtext("system-out") or "").startswith("warning: 25.0 %")


def test_test_cases_have_names_of_their_own() -> None:
    root = ElementTree.fromstring(render_junit(with_many_findings(3)))
    names = [case.get("name") for case in root.findall("testsuite[@name='findings']/testcase")]
    assert names == [
        "TL302 bytes-differ (dp_shard)",
        "TL302 bytes-differ (dp_shard) #2",
        "TL302 bytes-differ (dp_shard) #3",
    ]


def test_a_comparison_that_fails_the_job_fails_its_rows() -> None:
    root = ElementTree.fromstring(render_junit(run_document()))
    (failure,) = root.iter("failure")
    assert "calls 8 to 9" in (failure.get("message") or "")


@pytest.mark.parametrize("build", [judged_document, run_document, huge_document])
def test_names_are_text_in_xml_and_give_no_element(build: Callable[[], Document]) -> None:
    plain = ElementTree.fromstring(render_junit(build()))
    hostile = ElementTree.fromstring(render_junit(with_hostile_names(build())))
    assert [element.tag for element in hostile.iter()] == [element.tag for element in plain.iter()]
    assert any(printable(HOSTILE) in (case.get("name") or "") for case in hostile.iter("testcase"))


# --- workflow commands ------------------------------------------------------------------------------------


def _unescape(text: str) -> str:
    for code, character in (("%2C", ","), ("%3A", ":"), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, character)
    return text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_line_is_one_command_whatever_the_names(name: str) -> None:
    plain, hostile = render_github(DOCUMENTS[name]()), render_github(with_hostile_names(DOCUMENTS[name]()))
    assert [line for line in hostile.splitlines() if not COMMAND.match(line)] == []
    assert len(hostile.splitlines()) == len(plain.splitlines())


def test_a_message_comes_back_as_it_was() -> None:
    line = next(
        line for line in render_github(with_hostile_names(judged_document())).splitlines() if "25.0 %25" in line
    )
    _, properties, message = re.split(r"^::warning |::", line, maxsplit=2)
    assert _unescape(message) == printable(f"{HOSTILE} 25.0 % of the step is exposed communication")
    assert _unescape(properties.removeprefix("title=")) == printable(f"{HOSTILE} TL401 {HOSTILE} exposed-communication")


def test_no_more_annotations_than_github_keeps_and_the_rest_is_counted() -> None:
    lines = render_github(huge_document()).splitlines()
    assert len(lines) <= 30
    errors = with_many_findings(25)
    kinds = [line.split(" ")[0] for line in render_github(errors).splitlines()]
    assert kinds.count("::error") == 10
    assert "17 more stand in the report" in render_github(errors)


def with_many_findings(count: int) -> Document:
    document = judged_document()
    findings = tuple(document.findings[0] for _ in range(count))
    return msgspec.structs.replace(document, findings=findings)


# --- size and time ----------------------------------------------------------------------------------------


def the_largest_document() -> Document:
    """512 ranks that all differ, a pipeline of 64 stages with 2,000 blocks each, long names everywhere."""
    blocks = [("forward" if number % 2 else "backward", number * 50, number * 50 + 40) for number in range(2000)]
    stages = [a_stage(number, *blocks) for number in range(64)]
    pipeline = Pipeline(pipelines=8, stages=64, virtual_stages=1, microbatches=1000, schedule="1f1b",
                        bubble_fraction=0.1, ideal_bubble_over_work=0.1,
                        runs=tuple(a_run(*stages, span_ns=100_000) for _ in range(8)))  # fmt: skip
    judged = judged_document()
    return msgspec.structs.replace(
        huge_document(),
        pipeline=pipeline,
        comparison=judged.comparison,
        findings=judged.findings * 100,
        inference=judged.inference,
    )


def test_the_page_of_the_largest_job_stays_under_3_mb_and_3_seconds() -> None:
    render_html(a_document())  # the first page compiles the templates
    document = the_largest_document()
    began = time.process_time()
    page = render_html(document)
    assert time.process_time() - began < 3
    assert len(page.encode()) < 3_000_000
