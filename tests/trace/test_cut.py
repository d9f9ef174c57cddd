"""Pieces of a trace: whole events, whatever the sizes of the chunks, and nothing lost between them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace.cut import Cutter, Part, Piece, split_events


def pieces(data: bytes, *cuts: int) -> list[Piece]:
    cutter = Cutter()
    found: list[Piece] = []
    places = [0, *sorted(cuts), len(data)]
    for start, stop in pairwise(places):
        found += cutter.feed(data[start:stop])
    return [*found, cutter.tail()]


def events_of(found: list[Piece], closing: bytes) -> list[Any]:
    texts = [piece.data for piece in found if piece.part is not Part.head]
    texts[-1] = texts[-1][: texts[-1].rindex(closing)]
    return [event for text in texts if text.strip() for event in json.loads(b"[" + text + b"]")]


EVENTS: list[dict[str, Any]] = [
    {"ph": "X", "name": "a}, {", "args": {"x": [1, {"y": 2}]}},
    {"name": "b", "ph": "M"},
] * 3
FORMS = {
    "kineto": json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "traceName": "t"}, indent=2).encode(),
    "dense": json.dumps({"traceEvents": EVENTS}, separators=(",", ":")).encode(),
    "list": json.dumps(EVENTS).encode(),
    "other keys": json.dumps({"traceEvents": [{"cat": "c", **event} for event in EVENTS]}).encode(),
}


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_chunks_of_any_sizes_give_the_events(form: str, data: st.DataObject) -> None:
    text = FORMS[form]
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    found = pieces(text, *cuts)
    assert [piece.part for piece in found][:: len(found) - 1] == [Part.head, Part.tail]
    assert events_of(found, b"]") == json.loads(text if form == "list" else json.dumps(json.loads(text)["traceEvents"]))


@pytest.mark.parametrize("form", FORMS)
def test_offsets_say_where_a_piece_stands_in_the_file(form: str) -> None:
    text = FORMS[form]
    for piece in pieces(text, 150, 300, 450):
        assert text[piece.offset : piece.offset + len(piece.data)] == piece.data


def test_events_leave_as_soon_as_they_are_whole() -> None:
    cutter = Cutter()
    parts = [piece.part for piece in cutter.feed(b'{"traceEvents": [{"ph": "X"}, {"ph": "Y"}, {"ph"')]
    assert parts == [Part.head, Part.events]
    assert cutter.tail().data == b'{"ph"'


@pytest.mark.parametrize("data", [b"hello", b"\x1f\x8b", b"  \n <html>", b"\xef\xbb\xbfx", b"\xff\xfe{\0"])
def test_what_is_no_json_is_hopeless_at_once(data: bytes) -> None:
    cutter = Cutter()
    assert list(cutter.feed(data)) == []
    assert cutter.is_hopeless()


@pytest.mark.parametrize("data", [b"", b" \n", b"\xef\xbb\xbf", b'{"a": 1', b"[", b"\xef\xbb\xbf [{"])
def test_what_may_become_json_is_not_hopeless(data: bytes) -> None:
    cutter = Cutter()
    list(cutter.feed(data))
    assert not cutter.is_hopeless()


def test_a_broken_piece_falls_into_its_events() -> None:
    assert split_events(b'{"ph": 1}, {"ph": oops}\n,\n {"name": {"a": 2}}, {"x": 3}') == [
        b'{"ph": 1}',
        b'{"ph": oops}',
        b'{"name": {"a": 2}}, {"x": 3}',
    ]
