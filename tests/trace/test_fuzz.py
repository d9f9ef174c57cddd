"""Damaged traces: an error that says what is wrong, or a summary that says what is missing; nothing else."""

from __future__ import annotations

import copy
import gzip
import io
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.recount import recount
from tracelens.cli.main import main
from tracelens.errors import InputError, TraceLensError
from tracelens.measurement.measure import measure
from tracelens.summary import RankSummary
from tracelens.trace.summarize import summarize

HANDWRITTEN = Path(__file__).resolve().parents[2] / "fixtures" / "handwritten"
TRACES = [
    HANDWRITTEN / name
    for name in (
        "all_reduce_half_hidden/rank0.json",
        "batched_p2p/rank0.json",
        "fsdp_gather_and_scatter/rank0.json",
        "uneven_all_to_all/rank1.json",
        "records_with_positional_inputs/rank1.json",
        "fault_43_gloo_on_the_cpu/rank0.json",
        "cut_ranks_rebuilt_from_stride/rank0.json",
    )
]
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))

Json = dict[str, Any]
Change = Callable[[bytes], bytes]


def read(data: bytes, name: str = "rank0.json") -> RankSummary | TraceLensError:
    """What becomes of the bytes of a file; anything but these two is a failure of the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        try:
            return summarize(path)
        except TraceLensError as error:
            return error


def numbers(data: bytes) -> Json:
    summary = read(data)
    assert isinstance(summary, RankSummary), summary
    return recount(summary)


def codes(summary: RankSummary) -> set[str]:
    return {problem.code for problem in summary.head.problems}


ODD_NUMBERS = [-1, 0, 2**31, 2**63, 2**64, 10**30, -(10**30), 1e300, -1e300, 1e-300, float("nan"), float("inf")]
ODD_TEXTS = ["", "12", "NaN", "\ud800", "\x00", "x" * 5000, "[0, 1, ..., 99999999999999999999]"]
ODD_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, *ODD_NUMBERS, *ODD_TEXTS, [], [[]], [1, "a"], {}, {"a": {}}]
).map(copy.deepcopy)  # a list that is put in for the events is changed later on


@st.composite
def changed_events(draw: st.DrawFn) -> bytes:
    """A trace whose JSON is whole and whose content is not: keys dropped, types swapped, events moved and repeated."""
    trace = json.loads(draw(st.sampled_from(TRACES)).read_bytes())
    events = trace["traceEvents"]
    for _ in range(draw(st.integers(0, 4))):
        where = draw(st.sampled_from([trace, trace.get("distributedInfo") or trace, *events]))
        if draw(st.booleans()) and where.get("args"):
            where = where["args"]
        if where and isinstance(where, dict):
            key = draw(st.sampled_from(sorted(where)))
            if draw(st.booleans()):
                del where[key]
            else:
                where[key] = draw(ODD_VALUES)
    events = trace.get("traceEvents")
    if isinstance(events, list) and events:
        kind = draw(st.sampled_from(["keep", "shuffle", "repeat", "foreign"]))
        if kind == "shuffle":
            trace["traceEvents"] = draw(st.permutations(events))
        elif kind == "repeat":
            trace["traceEvents"] = events + events[: draw(st.integers(0, len(events)))]
        elif kind == "foreign":
            events.insert(draw(st.integers(0, len(events))), draw(ODD_VALUES))
    return json.dumps(trace, indent=draw(st.sampled_from([None, 1]))).encode("utf-8", "surrogatepass")


@st.composite
def changed_bytes(draw: st.DrawFn) -> bytes:
    """Bytes of a trace flipped, cut, repeated, inserted."""
    data = bytearray(draw(st.one_of(changed_events(), st.sampled_from(TRACES).map(Path.read_bytes))))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, max(len(data) - 1, 0)))
        stop = min(len(data), start + draw(st.integers(1, 400)))
        kind = draw(st.sampled_from(["flip", "cut", "repeat", "delete", "insert", "swap"]))
        if kind == "flip" and data:
            data[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[start:]
        elif kind == "repeat":
            data[start:start] = data[start:stop]
        elif kind == "delete":
            del data[start:stop]
        elif kind == "insert":
            odd = [b"\0", b"\n", b'"', b"\\", b"[", b"]", b"{", b"}", b"},{", b"NaN", b"\xff\xfe", b"1e999"]
            data[start:start] = draw(st.sampled_from(odd))
        else:
            data = data[stop:] + data[:stop]
    return bytes(data)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Any of these, compressed or not, whole or damaged once more."""
    data = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + draw(changed_bytes())
    if draw(st.booleans()):
        data = data.replace(b"\n", b"\r\n")
    packed = bytearray(draw(st.sampled_from(PACKS))(data))
    kind = draw(st.sampled_from(["whole", "cut", "flip", "zeros", "twice"]))
    place = draw(st.integers(0, max(len(packed) - 1, 0)))
    if kind == "cut":
        del packed[place:]
    elif kind == "flip" and packed:
        packed[place] ^= 0xFF
    elif kind == "zeros":
        packed += bytes(512)
    elif kind == "twice":
        packed = packed + packed
    return bytes(packed)


def two_members(data: bytes) -> bytes:
    """Gzip as `cat a.gz b.gz` makes it: one stream of bytes."""
    return gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])


PACKS: list[Change] = [bytes, gzip.compress, zstandard.compress, two_members]


def check_any(data: bytes) -> None:
    outcome = read(data)
    if isinstance(outcome, RankSummary):
        measure([outcome])
    else:
        assert isinstance(outcome, InputError)
        assert "rank0.json" in outcome.message


@QUICK
@given(files())
def test_whatever_is_in_a_file_gives_a_summary_or_an_error(data: bytes) -> None:
    check_any(data)


@pytest.mark.slow
@LONG
@given(files())
def test_whatever_is_in_a_file_gives_a_summary_or_an_error_long(data: bytes) -> None:
    check_any(data)


@QUICK
@given(st.sampled_from(TRACES), st.data(), st.sampled_from(PACKS))
def test_a_cut_file_is_refused_or_says_that_it_is_cut(
    path: Path, data: st.DataObject, pack: Callable[[bytes], bytes]
) -> None:
    whole = path.read_bytes().rstrip()
    packed = pack(whole)
    outcome = read(packed[: data.draw(st.integers(0, len(packed) - 1))])
    assert not isinstance(outcome, RankSummary) or codes(outcome) & {"file-cut-off", "file-damaged", "head-unreadable"}


@QUICK
@given(st.sampled_from(TRACES), st.data())
def test_an_event_that_can_not_be_read_is_told(path: Path, data: st.DataObject) -> None:
    trace = json.loads(path.read_bytes())
    event = data.draw(st.sampled_from([event for event in trace["traceEvents"] if is_used(event)]))
    key, value = data.draw(
        st.sampled_from(
            [("ts", "soon"), ("ts", None), ("ts", 1e300), ("ts", float("nan")), ("dur", "long"), ("args", [1]),
             ("name", 7), ("cat", {}), ("cat", None), ("args", {"stream": 7.5}), ("pid", 1.5)]
        )
    )  # fmt: skip
    event[key] = value
    outcome = read(json.dumps(trace).encode())
    told = {"events-unreadable", "events-without-time", "events-without-category"}
    assert not isinstance(outcome, RankSummary) or codes(outcome) & told


def is_used(event: Json) -> bool:
    used = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "user_annotation"}
    return event.get("cat") in used or event["name"] == "record_param_comms"


SAME: dict[str, Change] = {
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "carriage returns": lambda data: data.replace(b"\n", b"\r\n"),
    "one line": lambda data: json.dumps(json.loads(data), separators=(",", ":")).encode(),
    "one value a line": lambda data: json.dumps(json.loads(data), indent=4).encode(),
    "keys in another order": lambda data: json.dumps(json.loads(data), sort_keys=True).encode(),
    "blanks and zeros behind": lambda data: data + b"\n \n" + bytes(4096),
    "gzip": gzip.compress,
    "gzip in two members": two_members,
    "gzip with zeros behind": lambda data: gzip.compress(data) + bytes(512),
    "zstd": zstandard.compress,
    "zstd in two frames": lambda data: zstandard.compress(data[:999]) + zstandard.compress(data[999:]),
    "events in another order": lambda data: json.dumps(
        {**json.loads(data), "traceEvents": json.loads(data)["traceEvents"][::-1]}
    ).encode(),
    "a list of objects with names in every event": lambda data: json.dumps(
        {**json.loads(data), "traceEvents": [with_nested_list(event) for event in json.loads(data)["traceEvents"]]}
    ).encode(),
}


def with_nested_list(event: Json) -> Json:
    nested = [{"name": "a", "x": {}}, {"ph": "b"}, {"name": "c"}]
    return {**event, "args": {**event.get("args", {}), "modules": nested}}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("change", SAME)
def test_the_same_trace_in_other_bytes_gives_the_same_numbers(path: Path, change: str) -> None:
    data = path.read_bytes()
    assert numbers(SAME[change](data)) == numbers(data)


def test_one_broken_event_costs_that_event_and_no_other() -> None:
    trace = json.loads(TRACES[0].read_bytes())
    filler = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
    trace["traceEvents"] += [filler, {**filler, "ts": "soon"}, filler]
    outcome = read(json.dumps(trace).encode())
    assert isinstance(outcome, RankSummary)
    assert outcome.head.events == len(trace["traceEvents"]) - 1
    assert [problem.message.split(",")[0] for problem in outcome.head.problems] == [
        "1 event is broken and was left out"
    ]


def test_a_broken_key_of_the_head_does_not_cost_the_others() -> None:
    trace = json.loads(TRACES[0].read_bytes())
    trace["deviceProperties"] = "none"
    outcome = read(json.dumps(trace).encode())
    assert isinstance(outcome, RankSummary)
    assert outcome.rank == trace["distributedInfo"]["rank"]
    assert "head-unreadable" in codes(outcome)


SLOW_TO_READ: dict[str, bytes] = {
    "blanks": b'{"traceEvents": [{"ph": "X"}' + b" " * 3_000_000 + b"x",
    "brackets": b'{"traceEvents": [{"a": ' + b"]," * 1_000_000,
    "closed lists": b'{"traceEvents": [' + b'{"ph": "X", "a": [1], "b": [2], "c": 3},' * 60_000 + b"x",
    "names that never end": b'{"traceEvents": [' + b'{"ph": "X", "name": "a' * 60_000,
    "every event broken": b'{"traceEvents": [' + b'{"ph": "X", "ts": "x"},' * 100_000 + b"{}]}",
    "nested lists": b'{"traceEvents": [' + b"[" * 2_000_000,
    "nested values": b'{"traceEvents": [{"ph": ' + b'{"a":' * 500_000,
    "no list of events": b'{"a": [' + b'{"ph": "X"},' * 300_000 + b"{}]}",
    "no boundary": b'{"traceEvents": [' + b'{"a": 1, "ph": "X"},{"b": 1},' * 1 + b'{"c": 1}, ' * 500_000 + b"{}]}",
    "quotes": b'{"traceEvents": [{"ph": "X", "name": "' + b'"' * 2_000_000,
    "backslashes": b'{"traceEvents": [{"ph": "X", "name": "' + b"\\" * 2_000_000,
    "digits": b'{"traceEvents": [{"ph": "X", "ts": ' + b"9" * 2_000_000 + b"}]}",
}  # fmt: skip


@pytest.mark.parametrize("kind", SLOW_TO_READ)
def test_no_file_takes_time_beyond_its_size(kind: str) -> None:
    started = time.process_time()
    read(SLOW_TO_READ[kind])
    assert time.process_time() - started < 10


@QUICK
@given(files())
def test_the_command_ends_with_0_or_with_2_and_one_error_and_leaves_nothing_half_written(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace, output = Path(folder) / "rank0.json", Path(folder) / "out" / "report.json"
        output.parent.mkdir()
        trace.write_bytes(data)
        errors = io.StringIO()
        with redirect_stderr(errors):
            exit_code = main(["analyze", str(trace), "-o", str(output), "--no-progress"])
        if exit_code == 0:
            assert json.loads(output.read_text())["schema_version"] == 1
        else:
            assert exit_code == 2
            assert list(output.parent.iterdir()) == []
            told = errors.getvalue().splitlines()
            assert [line.startswith("error: ") for line in told].count(True) == 1
            assert not any("Traceback" in line for line in told)
