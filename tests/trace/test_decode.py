"""Files to events: what is whole is read, what is broken is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracelens.errors import InputError
from tracelens.trace.decode import Reader
from tracelens.trace.salvage import decode_singles, end_of_events, mend
from tracelens.trace.schema import ExactEvent

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}


def reader_of(tmp_path: Path, data: bytes) -> tuple[Reader, list[Any]]:
    path = tmp_path / "rank0.json"
    path.write_bytes(data)
    reader = Reader(path)
    return reader, [event for batch in reader for event in batch]


def codes(reader: Reader) -> list[str]:
    return [problem.code for problem in reader.decoded.problems]


def text_of(events: list[dict[str, Any]], **keys: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, "traceEvents": events, **keys}).encode()


def test_keys_before_and_after_the_events_are_read(tmp_path: Path) -> None:
    reader, events = reader_of(tmp_path, text_of([EVENT], baseTimeNanoseconds=7, traceName="here"))
    assert len(events) == reader.decoded.events == 1
    before, after = reader.decoded.heads
    assert (before.schema_version, after.base_time_ns, after.trace_name) == (1, 7, "here")
    assert codes(reader) == []


def test_a_bare_list_is_a_trace(tmp_path: Path) -> None:
    reader, events = reader_of(tmp_path, b"\xef\xbb\xbf\n" + json.dumps([EVENT, EVENT]).encode() + b"\n\0\0")
    assert len(events) == 2
    assert codes(reader) == []


def test_a_file_without_events_has_none(tmp_path: Path) -> None:
    reader, events = reader_of(tmp_path, text_of([]))
    assert events == []
    assert codes(reader) == []


def test_large_fractional_times_switch_to_exact_text_for_all_of_a_batch(tmp_path: Path) -> None:
    _, events = reader_of(tmp_path, text_of([{**EVENT, "ts": "T"}] * 3).replace(b'"T"', b"1712195495505630.023"))
    assert [bytes(event.ts) for event in events] == [b"1712195495505630.023"] * 3
    assert all(isinstance(event, ExactEvent) for event in events)


def test_exactness_found_while_salvaging_holds_for_the_whole_batch(tmp_path: Path) -> None:
    large = {**EVENT, "ts": "T"}
    text = text_of([EVENT, {**EVENT, "name": 7}, EVENT, large, large, EVENT])
    reader, events = reader_of(tmp_path, text.replace(b'"T"', b"1712195495505630.023"))
    assert [type(event) for event in events] == [ExactEvent] * 5
    assert codes(reader) == ["events-unreadable"]


@pytest.mark.parametrize("key", ["distributedInfo", "deviceProperties"])
def test_of_a_broken_head_the_other_keys_are_kept(tmp_path: Path, key: str) -> None:
    reader, _ = reader_of(tmp_path, text_of([EVENT], traceName="kept", **{key: 7}))
    assert codes(reader) == ["head-unreadable"]
    assert reader.decoded.heads[1].trace_name == "kept"


def test_an_object_in_a_list_of_an_event_is_no_event(tmp_path: Path) -> None:
    nested = {**EVENT, "args": {"parts": [{"name": "a", "b": {}}, {"ph": "X"}, {"name": "c"}]}}
    reader, events = reader_of(tmp_path, text_of([nested] * 50))
    assert len(events) == 50
    assert codes(reader) == []


@pytest.mark.parametrize(
    ("second", "place"),
    [(text_of([EVENT]), "written over one another"), (b'"traceEvents": [' + json.dumps(EVENT).encode(), "two ranks")],
)
def test_a_second_trace_in_the_file_is_refused(tmp_path: Path, second: bytes, place: str) -> None:
    with pytest.raises(InputError, match=place):
        reader_of(tmp_path, text_of([EVENT, EVENT]) + second)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b" \n\0\0", "is empty"),
        (b"<html>", "is not JSON"),
        (b'{"a": 1}', "no `traceEvents`"),
        (b'{"traceEvents": {}}', "no `traceEvents`"),
        (b"\x1f\x8b\x08\0\0", "can't be decompressed"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says) as refusal:
        reader_of(tmp_path, data)
    assert "rank0.json" in refusal.value.message
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b'{"ph": "X"}], "traceName": "a]"}', 11),
        (b'{"a": [1], "b": [2]}], "displayTimeUnit": "ms", "x": [3]}', 20),
        (b'{"a": [1], "b": 2}]}\n', 18),
        (b"]}", 0),
        (b'{"a": [1], "b": 2}], "traceName": "cut', 18),
        (b'{"a": [1], "b": 2}', None),
        (b'{"a": [1]', None),
    ],
)
def test_the_end_of_the_events_is_where_the_rest_of_the_object_begins(data: bytes, end: int | None) -> None:
    assert end_of_events(data) == end


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        (rb'{"name": "a "b" c", "ts": 1}', {"name": 'a "b" c', "ts": 1}),
        (rb'{"path": "C:\Windows"}', {"path": "C:\\Windows"}),
        (b'{"name": "a\x01\nb"}', {"name": "a  b"}),
        (b'{"ts": NaN, "dur": -Infinity}', {"ts": None, "dur": None}),
        (b'{"name": "\xff"}', {"name": "\ufffd"}),
    ],
)
def test_known_ways_to_break_json_are_undone(broken: bytes, mended: dict[str, Any]) -> None:
    assert json.loads(mend(broken)) == mended


def decode(text: bytes) -> list[Any]:
    import msgspec

    return msgspec.json.decode(b"[" + text + b"]", type=list[dict[str, Any]])


def test_only_the_broken_ones_are_left_out_and_fragments_join() -> None:
    singles = [b'{"a": 1}', b"{oops}", b'{"b": [{"x": 1}', b'{"y": 2}]}', b'{"c": 3}']
    good, lost, rest = decode_singles(singles, decode, may_go_on=False)
    assert good == [{"a": 1}, {"b": [{"x": 1}, {"y": 2}]}, {"c": 3}]
    assert (lost, rest) == (1, b"")


def test_what_may_go_on_is_kept_for_the_next_piece() -> None:
    good, lost, rest = decode_singles([b'{"a": 1}', b'{"b": [{"x": 1}', b'{"y": 2}'], decode, may_go_on=True)
    assert (good, lost, rest) == ([{"a": 1}], 0, b'{"b": [{"x": 1},{"y": 2}')
