"""The trace with a track per axis: Perfetto's rules hold, nothing of the trace changes, its numbers stay the same."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.traces import write_trace
from tests.recount import recount
from tracelens.annotate.tracks import assign_lanes
from tracelens.cli.main import main
from tracelens.errors import TraceLensError
from tracelens.trace.summarize import summarize

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
REAL_LIKE = FIXTURES / "fsdp2_tp2" / "rank0_trace.json.gz"
_FILES = sorted(path for path in (FIXTURES / "handwritten").glob("*/*.json*") if "truth" not in path.name)
HANDWRITTEN = list({path.parent: path for path in reversed(_FILES)}.values())


def _annotate(source: Path, target: Path) -> Any:
    assert main(["annotate", str(source), "-o", str(target), "--no-progress"]) == 0
    return _load(target)


def _load(path: Path) -> Any:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    elif path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    return json.loads(data)


def _ours(trace: Any) -> list[dict[str, Any]]:
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    return [event for event in events if event.get("cat") == "tracelens"]


def _slices(trace: Any) -> list[dict[str, Any]]:
    return [event for event in _ours(trace) if event["ph"] == "X"]


def _partly_overlapping(slices: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of one thread of which neither holds the other nor ends before it; times in whole ns."""
    found = []
    key = lambda event: (event["pid"], event["tid"])  # noqa: E731
    for _, group in itertools.groupby(sorted(slices, key=key), key=key):
        open_until: list[tuple[int, str]] = []
        for event in sorted(group, key=lambda event: (event["ts"], -event["dur"])):
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            while open_until and open_until[-1][0] <= start:
                open_until.pop()
            if open_until and open_until[-1][0] < end:
                found.append((open_until[-1][1], event["name"]))
            open_until.append((end, event["name"]))
    return found


def test_a_slice_has_the_kernels_time_and_what_its_call_moved(tmp_path: Path) -> None:
    # GIVEN an all-reduce of 1,000,000 bf16 from 200 to 400 µs, the first half under compute
    trace = _annotate(write_trace(tmp_path / "rank0.json", rank=0), tmp_path / "out.json")

    # THEN there is one slice: 2,000,000 bytes in 200 µs are 10 GB/s, on the bus 2 (2-1)/2 times as much
    (slice_,) = _slices(trace)
    assert slice_["name"].endswith("all_reduce 1.91 MiB")
    assert (slice_["ts"], slice_["dur"]) == (200, 200)
    wanted = {"payload bytes": 2_000_000, "wire bytes": 2_000_000, "algbw GB/s": 10, "busbw GB/s": 10,
              "exposed us": 100, "group ranks": "0-1", "group size": 2, "dtype": "bf16"}  # fmt: skip
    assert {key: slice_["args"][key] for key in wanted} == wanted
    # and its track is a process of its own with a name
    names = {event["pid"]: event["args"]["name"] for event in _ours(trace) if event["name"] == "process_name"}
    assert names[slice_["pid"]] == f"TraceLens: {slice_['name'].split()[0]}"
    assert slice_["pid"] not in {event["pid"] for event in trace["traceEvents"] if event.get("cat") != "tracelens"}


def test_tracks_are_axes_where_they_are_known(tmp_path: Path) -> None:
    trace = _annotate(REAL_LIKE, tmp_path / "out.json.gz")
    tracks = {event["args"]["name"] for event in _ours(trace) if event["name"] == "process_name"}
    assert tracks == {"TraceLens: tp", "TraceLens: dp_shard"}
    # one colour per primitive, so that a primitive looks alike on all tracks
    colours = {(event["args"]["primitive"], event["cname"]) for event in _slices(trace)}
    assert len(colours) == len({primitive for primitive, _ in colours}) == len({colour for _, colour in colours}) == 3


def test_nothing_of_the_trace_changes(tmp_path: Path) -> None:
    before, after = _load(REAL_LIKE), _annotate(REAL_LIKE, tmp_path / "out.json.gz")
    count = len(_ours(after))
    assert after["traceEvents"][count:] == before["traceEvents"]
    assert {**after, "traceEvents": None} == {**before, "traceEvents": None}


@pytest.mark.parametrize("path", HANDWRITTEN, ids=lambda path: path.parent.name + "/" + path.name)
def test_our_reader_finds_the_same_numbers_in_the_annotated_trace(path: Path, tmp_path: Path) -> None:
    try:
        before = summarize(path)
    except TraceLensError:
        assert main(["annotate", str(path), "-o", str(tmp_path / path.name), "--no-progress"]) == 2
        assert list(tmp_path.iterdir()) == []
        return
    name = path.name if path.name.endswith((".json", ".gz")) else f"{path.name}.json"
    trace = _annotate(path, tmp_path / name)
    assert recount(summarize(tmp_path / name)) == recount(before)
    assert _partly_overlapping(_slices(trace)) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 12)), max_size=40))
def test_intervals_of_one_lane_never_overlap_and_no_lane_is_used_without_need(raw: list[tuple[int, int]]) -> None:
    spans = sorted((start, start + length) for start, length in raw)
    lanes = assign_lanes(spans)
    for (a, lane_a), (b, lane_b) in itertools.combinations(zip(spans, lanes, strict=True), 2):
        assert lane_a != lane_b or a[1] <= b[0]
    most = max((sum(start <= at < end or at == start for start, end in spans) for at, _ in spans), default=0)
    assert max(lanes, default=-1) + 1 <= most


def test_concurrent_kernels_of_one_axis_stand_on_lanes(tmp_path: Path) -> None:
    # GIVEN two all-reduces of the same group that overlap partly
    path = write_trace(tmp_path / "rank0.json", rank=0)
    trace = json.loads(path.read_text())
    record, launch, _, kernel = trace["traceEvents"][3:7]
    for event, ts, correlation in ((record, 80, None), (launch, 86, 53), (kernel, 300, 53)):
        args = {**event["args"], "External id": 4, **({"correlation": correlation} if correlation else {})}
        trace["traceEvents"].append({**event, "ts": ts, "args": args})
    path.write_text(json.dumps(trace))

    slices = _slices(_annotate(path, tmp_path / "out.json"))
    assert len({(event["pid"], event["tid"]) for event in slices}) == len(slices)
    assert _partly_overlapping(slices) == []


def test_calls_that_no_kernel_served_stand_where_they_were_issued(tmp_path: Path) -> None:
    # GIVEN a record without a kernel
    path = write_trace(tmp_path / "rank0.json", rank=0)
    trace = json.loads(path.read_text())
    trace["traceEvents"] = [e for e in trace["traceEvents"] if "nccl" not in e["name"]]
    path.write_text(json.dumps(trace))

    out = _annotate(path, tmp_path / "out.json")
    (slice_,) = _slices(out)
    assert (slice_["ts"], slice_["dur"]) == (50, 20)
    threads = {e["tid"]: e["args"]["name"] for e in _ours(out) if e["name"] == "thread_name"}
    assert "no kernel" in threads[slice_["tid"]]


def test_a_damaged_trace_is_copied_as_far_as_it_can_be_read_and_the_loss_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a compressed trace whose last third is missing
    whole = REAL_LIKE.read_bytes()
    cut = tmp_path / "rank0_trace.json.gz"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    before = summarize(cut)

    after = _annotate(cut, tmp_path / "out.json")
    assert "ends too early" in capsys.readouterr().err
    assert len(after["traceEvents"]) - len(_ours(after)) == before.head.events
    assert recount(summarize(tmp_path / "out.json")) == recount(before)


def test_broken_events_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "rank0.json", rank=0)
    text = path.read_text().replace('{"ph": "X", "cat": "cpu_op", "name": "aten::mm"', '{"ph": "X", "cat": oops')
    path.write_text(text.replace('"ts": 13', '"ts": NaN'))
    trace = _annotate(path, tmp_path / "out.json")
    assert "1 event is broken and was left out" in capsys.readouterr().err
    assert "aten::mm" not in {event["name"] for event in trace["traceEvents"]}


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_the_suffix_tells_the_compression(suffix: str, tmp_path: Path) -> None:
    assert _slices(_annotate(write_trace(tmp_path / "rank0.json", rank=0), tmp_path / f"out{suffix}"))


def test_a_bare_list_of_events_stays_one(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", rank=0)
    events = json.loads(path.read_text())["traceEvents"]
    path.write_text(json.dumps(events))
    out = _annotate(path, tmp_path / "out.json")
    assert isinstance(out, list)
    assert out[len(_ours(out)) :] == events


def test_added_events_begin_with_the_key_that_the_traces_own_begin_with(tmp_path: Path) -> None:
    # GIVEN a writer whose events begin with `ts`, by which a reader cuts them
    path = write_trace(tmp_path / "rank0.json", rank=0)
    trace = json.loads(path.read_text())
    trace["traceEvents"] = [{"ts": event["ts"], **event} for event in trace["traceEvents"]]
    path.write_text(json.dumps(trace))
    out = _annotate(path, tmp_path / "out.json")
    assert {next(iter(event)) for event in out["traceEvents"]} == {"ts"}


def test_names_that_would_end_a_string_are_written_as_text(tmp_path: Path) -> None:
    hostile = '"},{"ph":"X","name":"<script>\u202e\x1b[31m'
    path = write_trace(tmp_path / "rank0.json", rank=0)
    trace = json.loads(path.read_text())
    trace["traceEvents"][-1]["name"] = f"ncclDevKernel_{hostile}"
    trace["distributedInfo"]["pg_config"][0]["pg_desc"] = hostile
    path.write_text(json.dumps(trace))
    (slice_,) = _slices(_annotate(path, tmp_path / "out.json"))
    assert slice_["args"]["kernel"] == f"ncclDevKernel_{hostile}"


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write_trace(tmp_path / "rank0.json", rank=0), tmp_path / "out.json"
    out.write_text("mine")
    assert main(["annotate", str(path), "-o", str(out)]) == 2
    assert "will not overwrite" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["annotate", str(path), "-o", str(out), "--force"]) == 0
    assert _slices(_load(out))


def test_the_trace_itself_is_kept_even_if_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, link = write_trace(tmp_path / "rank0.json", rank=0), tmp_path / "link.json"
    link.symlink_to(path)
    before = path.read_bytes()
    for out in (path, link):
        assert main(["annotate", str(path), "-o", str(out), "--force"]) == 2
        assert "is the trace itself" in capsys.readouterr().err
        assert path.read_bytes() == before


def test_a_trace_is_not_annotated_twice_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_trace(tmp_path / "rank0.json", rank=0)
    _annotate(path, tmp_path / "out.json")
    assert main(["annotate", str(tmp_path / "out.json"), "-o", str(tmp_path / "again.json")]) == 2
    assert "annotated already" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.json", "rank0.json"]


def test_what_cannot_be_annotated_is_refused_with_a_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_trace(tmp_path / "rank0.json", rank=0)
    assert main(["annotate", str(path), "-o", str(tmp_path / "out.perfetto")]) == 2
    assert "use .json or .json.gz or .json.zst" in capsys.readouterr().err
    assert main(["annotate", str(FIXTURES / "fsdp2_tp2"), "-o", str(tmp_path / "out.json")]) == 2
    assert "name the one to annotate" in capsys.readouterr().err
    summarize(path).save(tmp_path / "rank0.tracelens")
    assert main(["annotate", str(tmp_path / "rank0.tracelens"), "-o", str(tmp_path / "out.json")]) == 2
    assert "annotate the trace itself" in capsys.readouterr().err


def test_real_traces_keep_their_numbers(shared_traces: Path, tmp_path: Path) -> None:
    for name in ("megatron_tp2", "dlrm_8", "recsys_two_level_16", "moe_ep2_b200", "framework/mg_pp4_1f1b_tp2"):
        path = next(file for file in sorted((shared_traces / name).iterdir()) if file.name.endswith("json.gz"))
        trace = _annotate(path, tmp_path / f"{path.parent.name}.json.gz")
        assert recount(summarize(tmp_path / f"{path.parent.name}.json.gz")) == recount(summarize(path))
        assert _slices(trace)
        assert _partly_overlapping(_slices(trace)) == []
