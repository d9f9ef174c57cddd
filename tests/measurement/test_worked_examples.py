"""What docs/many-ranks.md says of the real traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.engine import summarize_all
from tracelens.many_ranks import Cause
from tracelens.measurement.measure import measure
from tracelens.results import Measurement
from tracelens.trace.discover import discover


def measured(folder: Path) -> Measurement:
    return measure(summarize_all(discover([folder])))


def test_the_sharded_optimizer_waits_for_the_rank_that_launches_late(shared_traces: Path) -> None:
    found = measured(shared_traces / "nanogpt_sharded_dp8")
    assert found.skew is not None
    rows = {row.primitive: row for row in found.skew}
    gathers, scatters = rows["all_gather"], rows["reduce_scatter"]
    assert (gathers.matched_calls, gathers.complete) == (28, True)
    assert (gathers.transfer_ns, gathers.wait_ns) == (6_068_481, 18_272_481)
    assert (scatters.transfer_ns, scatters.wait_ns) == (6_821_885, 14_016_351)
    assert gathers.busbw_bytes_per_s == pytest.approx(286e9, rel=0.01)
    waits = {wait.rank: wait.wait_ns / 1e6 for wait in gathers.waits}
    assert waits.pop(1) == pytest.approx(4.8, abs=0.05)
    assert all(16.7 < wait < 21.2 for wait in waits.values())
    assert scatters.last is not None
    assert (scatters.last.rank, scatters.last.calls, scatters.last.of) == (1, 9, 16)
    assert (scatters.last.systematic, scatters.last.cause) == (True, Cause.launch)
    assert found.dilation is not None
    assert found.dilation.ratio == pytest.approx(1.6, abs=0.05)
    assert found.clocks is not None
    assert max(abs(clock.offset_ns) for clock in found.clocks) < 4_000, "eight GPUs of one machine"


def test_the_recommendation_model_shows_the_start_of_a_profiler(shared_traces: Path) -> None:
    found = measured(shared_traces / "dlrm_8")
    assert found.skew is not None
    rows = {row.primitive: row for row in found.skew}
    exchange = rows["all_to_all"]
    assert (exchange.matched_calls, exchange.late_profiler_calls) == (5, 1)
    assert exchange.transfer_ns == 32_000
    assert exchange.wait_ns == pytest.approx(1.4e6, rel=0.01)
    assert any("rank 7 began" in p.message for p in found.run.problems if p.code == "profiler-started-late")
    assert found.pipeline is None
    assert found.routing is None


@pytest.mark.parametrize(
    ("folder", "promised", "measured_bubble", "imbalance"),
    [
        ("pp4_1f1b_dp2", 0.375, 0.698, 1.45),
        ("pp4_interleaved_tp2", 0.1875, 0.62, 1.50),
        ("mg_pp4_1f1b_tp2", 0.375, 0.70, 1.14),
    ],
)
def test_the_bubbles_of_pipelines_are_explained_by_imbalance(
    shared_traces: Path, folder: str, promised: float, measured_bubble: float, imbalance: float
) -> None:
    found = measured(shared_traces / "framework" / folder).pipeline
    assert found is not None
    first = found.runs[0]
    assert first.ideal_bubble_over_work == promised
    assert first.bubble_over_work == pytest.approx(measured_bubble, abs=0.01)
    assert first.imbalance == pytest.approx(imbalance, abs=0.01)
