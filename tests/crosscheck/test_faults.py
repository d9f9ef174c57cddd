"""Each fault of HTA's on a trace that shows it: what HTA says, what we say, and why they differ.

The numbers of both sides are worked out by hand in the comments.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.crosscheck.traces import ALL_REDUCE, GEMM, Event, kernel, launch, on_stream, step, write_trace
from tracelens.crosscheck import compare_with_hta
from tracelens.crosscheck.compare import FileComparison, Row, Verdict
from tracelens.crosscheck.faults import MEANINGS, Fault
from tracelens.trace.summarize import summarize

pytestmark = [pytest.mark.hta, pytest.mark.usefixtures("hta")]

OVERLAP, COMPUTE = "communication overlapped %", "compute µs"


def compare(path: Path) -> FileComparison:
    comparison = compare_with_hta([summarize(path)])
    assert comparison.unexplained == 0
    return comparison.files[0]


def row(file: FileComparison, figure: str) -> Row:
    assert file.hta_error is None
    return next(row for row in file.rows if row.figure == figure)


def told(row: Row) -> tuple[float | None, float | None, Verdict, list[tuple[Fault, float | None]]]:
    return row.ours, row.hta, row.verdict, [(step.fault, step.value) for step in row.steps]


def test_where_no_fault_applies_all_figures_are_equal(tmp_path: Path) -> None:
    # compute 100..300, all-reduce 200..400
    path = write_trace(
        tmp_path / "rank0.json",
        *(launch(1, 10), launch(2, 20), kernel(GEMM, 100, 200, 1), kernel(ALL_REDUCE, 200, 200, 2, stream=20)),
    )
    file = compare(path)
    assert {row.verdict for row in file.rows} == {Verdict.equal}
    assert told(row(file, OVERLAP)) == (50.0, 50.0, Verdict.equal, [])
    assert told(row(file, "COMPUTATION overlapping COMMUNICATION µs")) == (100.0, 100.0, Verdict.equal, [])


def two_steps(*more: Event) -> tuple[Event, ...]:
    """Step 3 computes 100..200 beside an all-reduce 150..250; step 4 computes 1100..1300 beside one at 1100..1200."""
    return (
        *(step(3, 0, 1000), step(4, 1000, 1000)),
        *(launch(1, 10), launch(2, 20), launch(3, 1010), launch(4, 1020)),
        *(kernel(GEMM, 100, 100, 1), kernel(ALL_REDUCE, 150, 100, 2, stream=20)),
        *(kernel(GEMM, 1100, 200, 3), kernel(ALL_REDUCE, 1100, 100, 4, stream=20)),
        *more,
    )


def test_the_last_profiler_step_is_dropped(tmp_path: Path) -> None:
    file = compare(write_trace(tmp_path / "rank0.json", *two_steps()))
    # ours: 50 of 100 and 100 of 100; HTA's: the first alone
    assert told(row(file, OVERLAP)) == (75.0, 50.0, Verdict.explained, [(Fault.last_step, 50.0)])
    assert told(row(file, COMPUTE)) == (300.0, 100.0, Verdict.explained, [(Fault.last_step, 100.0)])


def test_kernels_launched_before_the_window_are_dropped(tmp_path: Path) -> None:
    early = kernel(ALL_REDUCE, 20, 50, 99, stream=20)  # nothing of the trace launched it
    file = compare(write_trace(tmp_path / "rank0.json", *two_steps(early)))
    # ours: 150 of 250; without the early one 150 of 200; without the last step 50 of 100
    explained = [(Fault.unseen_launch, 75.0), (Fault.last_step, 50.0)]
    assert told(row(file, OVERLAP)) == (60.0, 50.0, Verdict.explained, explained)


def test_rounding_shortens_what_is_below_a_microsecond_to_minus_one(tmp_path: Path) -> None:
    # 100.2..102.9 becomes 101..102; 200.3..200.6 becomes 201..200; the whole 300..310 stays
    path = write_trace(
        tmp_path / "rank0.json",
        *(launch(1, 10), launch(2, 20), launch(3, 30)),
        *(kernel(GEMM, 100.2, 2.7, 1), kernel(GEMM, 200.3, 0.3, 2), kernel(GEMM, 300, 10, 3)),
    )
    file = compare(path)
    assert told(row(file, COMPUTE)) == (13.0, 10.0, Verdict.explained, [(Fault.rounding, 10.0)])
    assert told(row(file, "kernel time µs")) == (210.0, 209.0, Verdict.explained, [(Fault.rounding, 209.0)])


def test_kernels_below_a_microsecond_alone_make_hta_fail(tmp_path: Path) -> None:
    # all-reduce 100.2..100.6 becomes 101..100: HTA asserts that no time is negative
    path = write_trace(
        tmp_path / "rank0.json",
        *(launch(1, 10), launch(2, 20)),
        *(kernel(GEMM, 50, 10, 1), kernel(ALL_REDUCE, 100.2, 0.4, 2, stream=20)),
    )
    file = compare(path)
    assert (file.hta_error, file.rows) == ("AssertionError in idle_time_per_rank", ())


def test_communication_by_another_name_counts_as_compute(tmp_path: Path) -> None:
    # a DeepEP dispatch 100..300, half of it under compute 200..300
    dispatch = "void deep_ep::internode::dispatch<false, 4, false>()"
    path = write_trace(
        tmp_path / "rank0.json",
        *(launch(1, 10), launch(2, 20), kernel(dispatch, 100, 200, 1, stream=20), kernel(GEMM, 200, 100, 2)),
    )
    file = compare(path)
    assert told(row(file, OVERLAP)) == (50.0, None, Verdict.explained, [(Fault.names_only, None)])
    assert told(row(file, COMPUTE)) == (100.0, 200.0, Verdict.explained, [(Fault.names_only, 200.0)])


def test_a_kernel_with_sync_in_its_name_is_nothing_to_hta(tmp_path: Path) -> None:
    norm = "SyncBatchNorm_forward_kernel"
    path = write_trace(
        tmp_path / "rank0.json", launch(1, 10), launch(2, 20), kernel(norm, 100, 30, 1), kernel(GEMM, 200, 100, 2)
    )
    assert told(row(compare(path), COMPUTE)) == (130.0, 100.0, Verdict.explained, [(Fault.names_only, 100.0)])


@pytest.mark.parametrize(
    "foreign",
    [
        on_stream("cuda_sync", "Stream Wait Event", 200, 100, {"stream": 20}),
        on_stream("cpu_op", "triton_poi_fused_add_0", 200, 100, {"stream": 0}),
    ],
    ids=["synchronization", "launch of a Triton kernel"],
)
def test_events_with_a_stream_number_count_as_gpu_work(tmp_path: Path, foreign: Event) -> None:
    # the all-reduce 100..300 is under no compute, but 100 µs of it under the foreign event
    path = write_trace(tmp_path / "rank0.json", launch(1, 10), kernel(ALL_REDUCE, 100, 200, 1, stream=20), foreign)
    file = compare(path)
    assert told(row(file, OVERLAP)) == (0.0, 50.0, Verdict.explained, [(Fault.foreign_events, 50.0)])


def test_a_kernel_without_a_time_stretches_the_window(tmp_path: Path) -> None:
    path = write_trace(
        tmp_path / "rank0.json",
        *(step(3, 1000, 1000), launch(1, 1010), kernel(GEMM, 1100, 100, 1), kernel(GEMM, 0, 0, 2)),
    )
    file = compare(path)
    assert told(row(file, "kernel time µs")) == (100, 1200, Verdict.explained, [(Fault.misplaced_kernels, 1200)])


def test_an_event_that_stands_twice_counts_twice(tmp_path: Path) -> None:
    once = kernel(GEMM, 1100, 50, 1)
    file = compare(write_trace(tmp_path / "rank0.json", launch(1, 1010), once, once))
    assert told(row(file, "COMPUTATION added up µs")) == (50, 100, Verdict.explained, [(Fault.duplicate_events, 100)])
    assert told(row(file, COMPUTE)) == (50.0, 50.0, Verdict.equal, [])


def test_a_trace_without_gpu_work_makes_hta_fail(tmp_path: Path) -> None:
    file = compare(write_trace(tmp_path / "rank0.json", step(3, 0, 100), launch(1, 10)))
    assert file.hta_error is not None
    assert file.rows == ()


def test_a_bare_list_of_events_makes_hta_fail(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", launch(1, 10), kernel(GEMM, 100, 50, 1))
    path.write_text(json.dumps(json.loads(path.read_text())["traceEvents"]))
    error = compare(path).hta_error
    assert error == "AttributeError in _parse_trace_dataframe_json: 'list' object has no attribute 'items'"


def test_every_fault_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Fault)


def test_a_difference_that_no_fault_makes_is_not_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a walk that lacks the fault at work
    from tracelens.crosscheck import faults

    monkeypatch.delitem(faults._FAULTS, Fault.last_step)
    path = write_trace(tmp_path / "rank0.json", *two_steps())

    # WHEN the figures are compared
    comparison = compare_with_hta([summarize(path)])

    # THEN the difference stands
    overlap = row(comparison.files[0], OVERLAP)
    assert told(overlap) == (75.0, 50.0, Verdict.unexplained, [])
    assert comparison.unexplained > 0
