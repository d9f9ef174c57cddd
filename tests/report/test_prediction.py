"""A ledger as a page: the numbers of the ledger, and names that stay text."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import msgspec
import pytest

from tests.report.judged import HOSTILE
from tracelens.ledger.layout import Framework, Layout
from tracelens.ledger.model import ModelSpec, MoE
from tracelens.ledger.predict import predict
from tracelens.report.prediction import render_prediction
from tracelens.report.table import printable

TINY = ModelSpec(name="tiny", layers=4, hidden=64, heads=4, ffn=128, vocab=1000, seq_len=32)
EXPERTS = msgspec.structs.replace(TINY, moe=MoE(experts=8, top_k=2, ffn=64))
PIPELINE = Layout(framework=Framework.megatron, tp=2, pp=2, dp=2, num_microbatches=4)


class Page(HTMLParser):
    """Tables of a page by their title: the text of every cell, and what it is sorted by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[tuple[str, float | None]]]] = {}
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self._rows: list[list[tuple[str, float | None]]] = []
        self._is_title = self._is_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.attributes.update(given)
        self._is_title = tag == "h3" and given.get("class") == "caption"
        if tag == "tr":
            self._rows.append([])
        if tag == "td":
            value = given.get("data-v")
            self._is_cell = True
            self._rows[-1].append(("", None if value is None else float(value)))

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = self._is_cell and tag != "td"
        self._is_title = False

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._is_title:
            self._rows = self.tables.setdefault(data, [])
        elif self._is_cell:
            text, value = self._rows[-1][-1]
            self._rows[-1][-1] = (text + data, value)


def test_every_row_of_the_stage_stands_on_the_page_with_its_bytes() -> None:
    ledger = predict(TINY, PIPELINE, stage=1)
    rows = Page(render_prediction(ledger, stage=1)).tables["Traffic per GPU and step, pipeline rank 1"][1:]
    told = [(row[0][0], row[1][0], row[4][1], row[7][1], row[10][0]) for row in rows]
    assert told == [
        (row.axis.value, row.primitive.value, row.calls, row.wire_bytes, row.term) for row in ledger.rows_of_stage(1)
    ]


def test_a_row_counted_by_hand_reads_so_on_the_page() -> None:
    """Gradients of ddp: 4·(4·64² + 3·64·128 + 2·64) + 64 + 2·1000·64 parameters in fp32, 2·7/8 of them sent."""
    parameters = 4 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64) + 64 + 2 * 1000 * 64
    page = Page(render_prediction(predict(TINY, Layout(framework=Framework.ddp, dp=8))))
    sent = sum(row[7][1] or 0 for row in page.tables["Traffic per GPU and step"][1:])
    assert sent == parameters * 4 * 2 * 7 / 8
    # fp32 weights, gradients and two moments
    held = page.tables["What a GPU holds and sends"][1]
    assert [value for _, value in held[3:6]] == [4 * parameters, 4 * parameters, 8 * parameters]


def test_formulas_come_with_their_source_and_the_meaning_of_their_names() -> None:
    ledger = predict(TINY, PIPELINE)
    text = render_prediction(ledger)
    rows = Page(text).tables["Formulas of the payload, and where they are written down"][1:]
    shown = ledger.rows_of_stage(ledger.busiest_stage)
    assert [tuple(cell for cell, _ in row) for row in rows] == [(one.term, one.formula, one.source) for one in shown]
    assert "<code>m</code> micro-batches per step and replica" in text


@pytest.mark.parametrize(
    ("model", "layout", "cluster"),
    [
        (TINY, Layout(framework=Framework.ddp), None),
        (TINY, PIPELINE, "h100"),
        (EXPERTS, Layout(framework=Framework.torchtitan, dp=8, ep=8), "h100"),
    ],
)
def test_the_name_of_a_model_adds_no_tag_and_no_attribute(
    model: ModelSpec, layout: Layout, cluster: str | None
) -> None:
    named = msgspec.structs.replace(model, name=HOSTILE.replace("\ud800", ""))
    plain, hostile = (Page(render_prediction(predict(one, layout, cluster=cluster))) for one in (model, named))
    assert hostile.tags == plain.tags
    assert hostile.attributes == plain.attributes
    assert any(printable(named.name) in text for text in hostile.texts)


def test_a_page_asks_for_nothing_but_itself() -> None:
    text = render_prediction(predict(TINY, PIPELINE, cluster="h100"))
    assert "default-src 'none'" in html.unescape(text)
    assert re.findall(r"""(?:src|href)=["'](?!#)""", text) == []


def test_where_nothing_is_sent_that_is_said() -> None:
    assert "Nothing is sent" in render_prediction(predict(TINY, Layout(framework=Framework.ddp)))
