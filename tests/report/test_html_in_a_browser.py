"""The page in a real browser: it draws, sorts, fits a phone, asks nobody for anything, and no name does a thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, find_browser, start_browser
from tests.cli.traces import write_trace
from tests.report.build import a_document, bare_document, huge_document, ordinary_document
from tests.report.judged import judged_document, run_document, with_hostile_names
from tracelens.cli.main import main
from tracelens.report.document import Document
from tracelens.report.html import render_html

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no chromium with chromedriver is installed")

DOCUMENTS = [ordinary_document, judged_document, run_document, bare_document, a_document, huge_document]
BOXES = (
    "[...document.querySelectorAll('%s')].map(e => { const b = e.getBoundingClientRect(); return [b.width, b.height] })"
)
FILLS = "[...document.querySelectorAll('svg.bar rect, .key rect')].map(e => getComputedStyle(e).fill)"
# WCAG 2.2, success criterion 1.4.3: contrast of text with what is behind it
CONTRASTS = """(() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const clear = (e) => getComputedStyle(e).backgroundColor === 'rgba(0, 0, 0, 0)';
  const texts = document.querySelectorAll('body, .muted, small, .note, th, .badge, dt, nav a, .lane-value, .verdict b');
  return [...texts].map((e) => {
    let behind = e;
    while (behind.parentElement && clear(behind)) behind = behind.parentElement;
    const [a, b] = [getComputedStyle(e).color, getComputedStyle(behind).backgroundColor].map(channels).map(light);
    return [(Math.max(a, b) + .05) / (Math.min(a, b) + .05), e.className || e.tagName];
  });
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with start_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def _show(browser: Browser, document: Document, folder: Path) -> Path:
    page = folder / "report.html"
    page.write_text(render_html(document), encoding="utf-8")
    browser.resize(1280, 900)
    browser.prefer("light")
    browser.requests()
    browser.open(page)
    return page


@pytest.mark.parametrize("hostile", [False, True])
@pytest.mark.parametrize("build", DOCUMENTS)
def test_a_page_says_nothing_on_the_console_and_asks_for_nothing_but_itself(
    build: Callable[[], Document], hostile: bool, browser: Browser, tmp_path: Path
) -> None:
    document = with_hostile_names(build()) if hostile else build()
    page = _show(browser, document, tmp_path)
    assert browser.console() == []
    assert set(browser.requests()) == {page.resolve().as_uri()}
    assert browser.run("document.querySelectorAll('img, iframe, object, link, [onerror], [onload]').length") == 0
    assert browser.run("document.scripts.length") == 1


@pytest.mark.parametrize("build", [ordinary_document, judged_document, huge_document])
def test_charts_are_drawn_and_every_part_has_a_colour(
    build: Callable[[], Document], browser: Browser, tmp_path: Path
) -> None:
    _show(browser, build(), tmp_path)
    bars = browser.run(BOXES % "#time svg.bar rect")
    assert len(bars) >= 4
    assert all(width > 0 and height > 0 for width, height in bars)
    assert all(width > 0 and height > 0 for width, height in browser.run(BOXES % ".grid rect"))
    # black is what SVG fills with where no rule of ours does
    assert "rgb(0, 0, 0)" not in browser.run(FILLS)


def test_a_stacked_bar_is_as_wide_as_its_parts_say(browser: Browser, tmp_path: Path) -> None:
    # GIVEN a mean step of 99.875 ms: 60 of compute, 24.875 exposed, 5 of memory work, 10 idle
    _show(browser, ordinary_document(), tmp_path)
    widths = [width for width, _ in browser.run(BOXES % ".first svg.bar rect")]
    whole = browser.run(BOXES % ".first svg.bar")[0][0]
    assert [round(100 * width / whole) for width in widths] == [60, 25, 5, 10]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(scheme: str, browser: Browser, tmp_path: Path) -> None:
    _show(browser, judged_document(), tmp_path)
    browser.prefer(scheme)
    assert [(round(ratio, 2), what) for ratio, what in browser.run(CONTRASTS) if ratio < 4.5] == []


def test_dark_is_dark(browser: Browser, tmp_path: Path) -> None:
    _show(browser, judged_document(), tmp_path)
    colours = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        colours.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(set(colours)) == 2


@pytest.mark.parametrize("build", [judged_document, run_document, huge_document, bare_document])
@pytest.mark.parametrize("hostile", [False, True])
def test_a_phone_scrolls_down_and_never_sideways(
    build: Callable[[], Document], hostile: bool, browser: Browser, tmp_path: Path
) -> None:
    _show(browser, with_hostile_names(build()) if hostile else build(), tmp_path)
    browser.resize(390, 844)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert all(width > 100 for width, _ in browser.run(BOXES % ".bar"))


def test_a_press_on_a_heading_sorts_by_number_and_another_turns_it(browser: Browser, tmp_path: Path) -> None:
    _show(browser, ordinary_document(), tmp_path)
    values = "[...document.querySelectorAll('#bytes table tbody tr')].slice(0, 4).map(r => r.cells[%d].dataset.v)"
    browser.run("document.querySelectorAll('#bytes table th button')[6].click()")
    sent = [float(value) for value in browser.run(values % 6)]
    assert sent == sorted(sent, reverse=True)
    browser.run("document.querySelectorAll('#bytes table th button')[6].click()")
    assert [float(value) for value in browser.run(values % 6)] == sorted(sent)
    assert browser.run("document.querySelectorAll('#bytes table th')[6].getAttribute('aria-sort')") == "ascending"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_prediction_is_drawn_by_the_same_rules(scheme: str, browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "prediction.html"
    layout = ["--tp", "8", "--pp", "4", "--dp", "2", "--microbatches", "8", "--cluster", "h100"]
    assert main(["predict", "--model", "llama3-8b", *layout, "-o", str(page)]) == 0
    browser.resize(1280, 900)
    browser.prefer(scheme)
    browser.requests()
    browser.open(page)
    assert browser.console() == []
    assert set(browser.requests()) == {page.resolve().as_uri()}
    assert len(browser.run(BOXES % "#bytes svg.bar rect")) >= 4
    assert "rgb(0, 0, 0)" not in browser.run(FILLS)
    assert [(round(ratio, 2), what) for ratio, what in browser.run(CONTRASTS) if ratio < 4.5] == []
    browser.resize(390, 844)
    assert browser.run("document.documentElement.scrollWidth") <= 390


def test_the_page_of_a_trace_draws_its_timeline(browser: Browser, tmp_path: Path) -> None:
    # GIVEN a step in which compute runs from 100 to 300 µs and an all-reduce from 200 to 400 µs
    trace, page = write_trace(tmp_path / "rank0.json", rank=0), tmp_path / "report.html"
    assert main(["analyze", str(trace), "-o", str(page), "--no-progress"]) == 0
    browser.resize(1280, 900)
    browser.open(page)

    # THEN the all-reduce fills the last two thirds of the step, and the last third is exposed
    rect = "document.querySelector('.dense .bar rect.k-all_reduce').getBoundingClientRect()"
    bar = "document.querySelector('.dense svg.bar').getBoundingClientRect()"
    start, width = browser.run(f"({rect}.left - {bar}.left) / {bar}.width"), browser.run(f"{rect}.width / {bar}.width")
    assert (round(start, 2), round(width, 2)) == (0.33, 0.67)
    exposed = browser.run(
        "[...document.querySelectorAll('.dense .bar rect.k-exposed')].map(e => e.getBoundingClientRect().left)"
    )
    assert min(exposed) >= browser.run(f"{bar}.left + 0.66 * {bar}.width")
