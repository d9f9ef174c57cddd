"""How much longer matrix products run under communication."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.measurement.build import summary
from tracelens import intervals
from tracelens.measurement.dilation import measure_dilation
from tracelens.summary import MATMULS, RankSummary
from tracelens.trace.columns import Collector, GpuWork
from tracelens.trace.summarize import summarize
from tracelens.trace.timeline import time_matmuls


def rank(number: int, rows: list[dict[str, object]]) -> RankSummary:
    return replace(summary(number), matmuls=pl.DataFrame(rows, schema=MATMULS))


def product(
    name: str, alone: int, alone_ns: float, under: int, under_ns: float, dims: str | None = "[[8,8]]"
) -> dict[str, object]:
    return {
        "name": name, "input_dims": dims, "grid": 0, "alone": alone, "alone_ns": alone_ns if alone else None,
        "under": under, "under_ns": under_ns if under else None, "partly": 0,
    }  # fmt: skip


def test_the_same_products_are_compared_and_the_others_are_counted() -> None:
    # GIVEN gemm a of 100 us takes 176 under communication, gemm b is not slowed; 7 and 20 products never ran alone
    other = rank(1, [product("d", 0, 0, 20, 80e3, dims=None)])
    compared = [product("a", 10, 100e3, 100, 176e3), product("b", 5, 50e3, 10, 50e3)]
    found = measure_dilation([rank(0, [*compared, product("c", 0, 0, 7, 60e3)]), other])
    assert found is not None
    # THEN 100 products cost 76 us each, of 110 that would take 10.5 ms alone, of 137 under communication
    assert (found.cost_ns, found.alone_ns) == (7_600_000, 10_500_000)
    assert (found.kernels_under, found.all_kernels_under, found.ranks) == (110, 137, (0,))
    assert found.ratio == pytest.approx((100 * 176 + 10 * 50) / (100 * 100 + 10 * 50))
    assert found.worst == "a"


def test_products_that_ran_one_way_only_or_of_unknown_sizes_say_nothing() -> None:
    assert measure_dilation([rank(0, [product("a", 10, 100e3, 0, 0), product("b", 0, 0, 9, 9e3)])]) is None
    assert measure_dilation([rank(0, [product("a", 10, 100e3, 10, 300e3, dims=None)])]) is None


def test_a_modelled_timeline_without_contention_shows_none(shared_traces: Path) -> None:
    """The times of these traces come from sizes alone, so equal products take equal time, give or take 3 %."""
    files = [shared_traces / "framework" / "fsdp2_8" / f"rank{number}.json.gz" for number in range(2)]
    found = measure_dilation([summarize(file) for file in files])
    assert found is not None
    assert found.ratio == pytest.approx(1.0, abs=0.03)


def test_a_real_run_pays_for_its_overlap(shared_traces: Path) -> None:
    files = [shared_traces / "nanogpt_sharded_dp8" / f"rank{number}-chrome-trace.json.gz" for number in range(2)]
    found = measure_dilation([summarize(file) for file in files])
    assert found is not None
    assert 1.2 < found.ratio < 2.0
    # counted in the JSON: 90 and 45 products under communication, 31 and 10 of them of a kind that ran alone too
    assert (found.kernels_under, found.all_kernels_under) == (41, 135)
    assert found.cost_ns == pytest.approx((found.ratio - 1) * found.alone_ns, rel=1e-6)


def test_kernels_are_counted_on_the_side_on_which_they_ran() -> None:
    events = Collector().finish()
    events.names.append("gemm")
    lengths = [(0, 100), (200, 300), (400, 500), (600, 700)]
    compute = pl.DataFrame(
        {
            "name": [0] * 4, "grid": [1] * 4, "external_id": [1] * 4, "correlation": [9] * 4, "is_matmul": [True] * 4,
            "is_comm": [False] * 4,
            "work": [int(GpuWork.kernel)] * 4,
            "start_ns": [start for start, _ in lengths], "end_ns": [end for _, end in lengths],
        },
        schema_overrides={"name": pl.UInt32, "grid": pl.Int32, "external_id": pl.Int64},
    )  # fmt: skip
    # the second is covered by nine tenths, the third by half, the fourth wholly
    comm = intervals.union([200, 400, 550], [290, 450, 800])
    [row] = time_matmuls(compute, comm, events).iter_rows(named=True)
    assert (row["alone"], row["under"], row["partly"]) == (1, 2, 1)
    assert (row["alone_ns"], row["under_ns"]) == (100.0, 100.0)
