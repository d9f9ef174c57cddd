"""The hand-written traces: every number of theirs was computed by hand, and must come out to the byte and the ns."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from tracelens.engine import summarize_all
from tracelens.errors import InputError
from tracelens.measurement.measure import measure
from tracelens.results import StepTime
from tracelens.summary import RankSummary
from tracelens.trace.discover import discover
from tracelens.trace.summarize import summarize

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
HANDWRITTEN = FIXTURES / "handwritten"
# the generated run of the README has a truth of the same form, tallied by its program as it wrote the traces
CASES = [*sorted(folder.name for folder in HANDWRITTEN.iterdir()), "../fsdp2_tp2"]
TRUTHS = {case: tomllib.loads((HANDWRITTEN / case / "truth.toml").read_text()) for case in CASES}
FILES = [(case, file) for case in CASES for file in TRUTHS[case].get("files", [])]
REFUSED = [case for case in CASES if TRUTHS[case].get("expect", {}).get("outcome") == "refused"]

Json = dict[str, Any]


def names_of(files: list[tuple[str, Json]]) -> list[str]:
    return [f"{case}/{file['name']}" for case, file in files]


@functools.cache
def summary_of(case: str, name: str) -> RankSummary:
    return summarize(HANDWRITTEN / case / name)


def calls_by_row(summary: RankSummary) -> pl.DataFrame:
    groups = summary.head.groups
    names = [None if index is None else groups[index].name for index in summary.calls["group"]]
    return summary.calls.with_columns(group_name=pl.Series(names, dtype=pl.String))


def time_of(summary: RankSummary, kernels: pl.Series) -> tuple[int, int]:
    """Busy and exposed time of a set of kernels."""
    segments = summary.segments.filter(pl.col("kernel").is_in(kernels.to_list())).unique("segment")
    return int(segments["length_ns"].sum()), int((segments["length_ns"] - segments["covered_ns"]).sum())


def kernels_of(summary: RankSummary, calls: pl.DataFrame) -> pl.Series:
    return summary.links.join(calls.select("call"), on="call", how="semi")["kernel"].unique()


@pytest.mark.parametrize(("case", "file"), FILES, ids=names_of(FILES))
def test_traffic_is_what_was_computed_by_hand(case: str, file: Json) -> None:
    summary = summary_of(case, file["name"])
    calls = calls_by_row(summary)
    wanted = {"calls", "payload_bytes", "wire_bytes", "kernels", "busy_ns", "exposed_ns", "ranks", "peers"}
    for row in file["traffic"]:
        found = calls.filter(pl.col("primitive") == row["primitive"])
        if "group" in row:
            found = found.filter(pl.col("group_name") == row["group"])
        if "dtype" in row:
            found = found.filter(pl.col("dtype") == row["dtype"])
        kernels = kernels_of(summary, found)
        busy, exposed = time_of(summary, kernels)
        group = next(iter(found["group"].drop_nulls().to_list()), None)
        ranks = None if group is None else summary.head.groups[group].ranks
        got: Json = {
            "calls": len(found),
            "payload_bytes": found["payload_bytes"].sum(),
            "wire_bytes": found["wire_bytes"].sum(),
            "kernels": len(kernels),
            "busy_ns": busy,
            "exposed_ns": exposed,
            "ranks": None if ranks is None else list(ranks),
            "peers": sorted(found["peer"].drop_nulls().unique()),
        }
        expected = {key: value for key, value in row.items() if key in wanted}
        assert {key: got[key] for key in expected} == expected, row
    assert len(calls) == sum(row["calls"] for row in file["traffic"])


@pytest.mark.parametrize(("case", "file"), FILES, ids=names_of(FILES))
def test_time_is_what_was_computed_by_hand(case: str, file: Json) -> None:
    measurement = measure([summary_of(case, file["name"])])
    got = [msgspec.to_builtins(entry) for entry in measurement.time]
    zero = dict.fromkeys((field for field in StepTime.__struct_fields__ if field not in ("rank", "step")), 0)
    for entry in file.get("time", []):
        same_step = [g for g in got if g["step"] == entry.get("step")]
        assert same_step, f"no budget for step {entry.get('step')}"
        expected = {key: value for key, value in entry.items() if key in zero}
        assert {key: same_step[0][key] for key in expected} == expected
    for entry in measurement.time:
        assert entry.span_ns == entry.compute_ns + entry.exposed_comm_ns + entry.exposed_memory_ns + entry.idle_ns
    if "comm_overlap_pct" in file:
        assert measurement.overlap[0].comm_overlap_pct == pytest.approx(file["comm_overlap_pct"], abs=1e-9)


@pytest.mark.parametrize(("case", "file"), FILES, ids=names_of(FILES))
def test_identity_coverage_and_unions_are_what_was_computed_by_hand(case: str, file: Json) -> None:
    summary = summary_of(case, file["name"])
    coverage = msgspec.to_builtins(measure([summary]).run.coverage)
    assert summary.rank == file.get("rank")
    assert {key: coverage[key] for key in file.get("coverage", {})} == file.get("coverage", {})
    if "comm_ns" in file:
        assert (summary.head.comm_ns, summary.head.overlap_ns) == (file["comm_ns"], file["overlap_ns"])


@pytest.mark.parametrize(("case", "file"), FILES, ids=names_of(FILES))
def test_kernels_of_several_calls_count_their_time_once(case: str, file: Json) -> None:
    summary = summary_of(case, file["name"])
    calls = calls_by_row(summary)
    for shared in file.get("shared", []):
        found = calls.filter(pl.col("primitive").is_in(shared["primitives"]))
        if "group" in shared:
            found = found.filter(pl.col("group_name") == shared["group"])
        kernels = kernels_of(summary, found)
        assert len(kernels) == shared["kernels"]
        assert time_of(summary, kernels) == (shared["busy_ns"], shared["exposed_ns"])


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_read_truly_is_refused_with_the_reason(case: str) -> None:
    trace = next(path for path in (HANDWRITTEN / case).iterdir() if path.name != "truth.toml")
    with pytest.raises(InputError) as refusal:
        summarize(trace)
    for words in TRUTHS[case]["expect"]["says"]:
        assert words in refusal.value.message


PROBLEMS = [case for case in CASES if "problem" in TRUTHS[case].get("expect", {})]


@pytest.mark.parametrize("case", PROBLEMS)
def test_odd_input_is_a_problem_that_is_told(case: str) -> None:
    files = [file["name"] for file in TRUTHS[case]["files"]]
    told = [problem.message for name in files for problem in measure([summary_of(case, name)]).run.problems]
    assert any(TRUTHS[case]["expect"]["problem"] in message for message in told), told


RUNS = [case for case in CASES if {"run_problem", "skipped", "steps", "ranks"} & set(TRUTHS[case].get("expect", {}))]


@pytest.mark.parametrize("case", RUNS)
def test_folders_give_one_run_and_name_what_is_left_out(case: str) -> None:
    expect = TRUTHS[case]["expect"]
    run = measure(summarize_all(discover([HANDWRITTEN / case]))).run
    left_out = {Path(file.path).name for file in run.skipped}
    assert list(run.ranks) == expect.get("ranks", list(run.ranks))
    assert list(run.steps) == expect.get("steps", list(run.steps))
    assert set(expect.get("skipped", [])) <= left_out
    if "run_problem" in expect:
        assert any(expect["run_problem"] in problem.message for problem in run.problems)


def test_the_launch_decides_where_an_external_id_repeats_another_calls() -> None:
    case = "external_ids_that_are_correlations"
    summary = summary_of(case, TRUTHS[case]["files"][0]["name"])
    owned = summary.kernels.join(summary.calls.select(owner="call", payload_bytes="payload_bytes"), on="owner")
    by_start = dict(owned.select((pl.col("start_ns") // 1000) % 1000, "payload_bytes").iter_rows())
    assert by_start == {int(us): size for us, size in TRUTHS[case]["expect"]["bytes_by_kernel_start_us"].items()}
