"""One step over time: hand-made traces, and the sums of real ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.traces import write_trace
from tracelens.measurement.measure import measure
from tracelens.report.document import make_document
from tracelens.report.timeline import StepTimeline, lay_timeline
from tracelens.trace.summarize import summarize

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def _timeline(path: Path) -> StepTimeline:
    summary = summarize(path)
    timeline = lay_timeline([summary], make_document(measure([summary])))
    assert timeline is not None
    return timeline


def test_a_step_begins_with_its_first_kernel_and_kernels_stand_where_they_ran(tmp_path: Path) -> None:
    # GIVEN compute from 100 to 300 µs and an all-reduce from 200 to 400 µs
    timeline = _timeline(write_trace(tmp_path / "rank0.json", rank=0))
    compute, exposed, world = timeline.lanes

    # THEN the step lasts 300 µs; the all-reduce fills its last two thirds, the last third is exposed
    assert (timeline.step, timeline.span_ns) == (3, 300_000)
    assert [(lane.label, lane.busy_ns) for lane in timeline.lanes[:2]] == [
        ("compute", 200_000),
        ("exposed comm", 100_000),
    ]
    (piece,) = world.pieces
    assert (piece.kind, round(piece.start, 3), piece.end, piece.duration_ns) == ("all_reduce", 0.333, 1.0, 200_000)
    assert max(piece.end for piece in compute.pieces) == pytest.approx(2 / 3)
    assert min(piece.start for piece in exposed.pieces) == pytest.approx(2 / 3)
    assert sum(piece.duration_ns for piece in exposed.pieces) == pytest.approx(100_000, abs=200)


@pytest.mark.parametrize("rank", [0, 5])
def test_lanes_add_up_to_what_was_measured(rank: int) -> None:
    # GIVEN a job whose steps are budgeted from unions of kernels
    path = FIXTURES / "fsdp2_tp2" / f"rank{rank}_trace.json.gz"
    timeline = _timeline(path)
    budget = next(row for row in measure([summarize(path)]).time if row.step == timeline.step)

    # THEN the drawn compute and exposed time are those of the budget, within what a call's blocks blur
    drawn = {lane.label: sum(piece.duration_ns for piece in lane.pieces) for lane in timeline.lanes}
    assert drawn["compute"] == pytest.approx(budget.compute_ns, rel=0.02)
    assert drawn["exposed comm"] == pytest.approx(budget.exposed_comm_ns, rel=0.05)
    comm = sum(lane.busy_ns for lane in timeline.lanes[2:])
    assert comm >= budget.comm_ns
    assert all(
        0 <= piece.start <= piece.end <= 1 and 0 < piece.filled <= 1 for lane in timeline.lanes for piece in lane.pieces
    )


def test_a_trace_without_communication_has_no_timeline(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank0.json", rank=0)
    trace = json.loads(path.read_text())
    trace["traceEvents"] = [event for event in trace["traceEvents"] if "dtype" not in event["args"]]
    path.write_text(json.dumps(trace))
    summary = summarize(path)
    assert lay_timeline([summary], make_document(measure([summary]))) is None
    assert lay_timeline([], make_document(measure([summary]))) is None
