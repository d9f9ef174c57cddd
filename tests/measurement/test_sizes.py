"""Traffic by size of call, on summaries written by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from tests.measurement.build import call, group, summary
from tracelens.measurement.measure import measure
from tracelens.measurement.sizes import MOST_SIZES
from tracelens.results import SizeRow
from tracelens.summary import FRAMES, RankSummary


def sizes(*ranks: RankSummary) -> list[SizeRow]:
    return list(measure(ranks).sizes)


def rank(*calls: dict[str, Any], steps: tuple[int, ...] = (3,), number: int = 0) -> RankSummary:
    return summary(number, calls=calls, groups=[group("0", [0, 1])], steps=steps)


def with_kernels(base: RankSummary, times: list[tuple[int, int, int]]) -> RankSummary:
    """Give calls a kernel each: (call, length, covered), one after the other."""
    kernels = pl.DataFrame(
        [{"kernel": n, "name": "ncclDevKernel", "owner": c, "step": None} for n, (c, _, _) in enumerate(times)],
        schema=FRAMES["kernels"],
    )
    segments = pl.DataFrame(
        [
            {"segment": n, "kernel": n, "length_ns": length, "covered_ns": covered}
            for n, (_, length, covered) in enumerate(times)
        ],
        schema=FRAMES["segments"],
    )
    frames = {name: getattr(base, name) for name in FRAMES}
    return RankSummary(head=base.head, **(frames | {"kernels": kernels, "segments": segments}))


def test_calls_of_each_size_have_a_row_of_their_own() -> None:
    rows = sizes(rank(call(0), call(1), call(2, payload_bytes=64, wire_bytes=64.0)))
    assert [(row.from_bytes, row.to_bytes, row.calls_per_step.mean, row.wire_bytes_per_step) for row in rows] == [
        (64, 64, 1.0, 64),
        (1000, 1000, 2.0, 2000),
    ]


def test_a_step_without_such_a_call_counts_as_none() -> None:
    (row,) = sizes(rank(call(0), call(1), steps=(3, 4)))
    calls = row.calls_per_step
    assert (calls.min, calls.median, calls.max, calls.mean) == (0, 1.0, 2, 1.0)
    assert row.busy_spread_ns is None


def test_many_sizes_are_put_in_buckets_from_one_power_of_four_to_the_next() -> None:
    calls = [call(n, payload_bytes=4096 + n, wire_bytes=1.0) for n in range(MOST_SIZES + 1)]
    (row,) = sizes(rank(*calls))
    assert (row.from_bytes, row.to_bytes, row.calls_per_step.mean) == (4096, 16383, MOST_SIZES + 1)


def test_calls_without_a_size_are_told_without_one() -> None:
    (row,) = sizes(rank(call(0, payload_bytes=None, wire_bytes=None)))
    assert (row.from_bytes, row.to_bytes, row.wire_bytes_per_step, row.calls_per_step.mean) == (None, None, None, 1.0)


def test_time_and_its_spread_between_steps() -> None:
    # GIVEN three steps of 100, 130 and 160 ns of one call each, the first 40 under compute
    base = rank(call(0), call(1, step=1), call(2, step=2), steps=(3, 4, 5))
    (row,) = sizes(with_kernels(base, [(0, 100, 40), (1, 130, 0), (2, 160, 0)]))
    assert (row.busy_ns_per_step, row.exposed_ns_per_step) == (130, round((60 + 130 + 160) / 3))
    # a sample of 100, 130, 160 has the standard deviation 30
    assert row.busy_spread_ns == 30


def test_ranks_alike_are_one_row_of_means() -> None:
    both = sizes(rank(call(0), number=0), rank(call(0), number=1))
    assert [(row.calls_per_step.mean, row.wire_bytes_per_step, row.steps_used) for row in both] == [(1.0, 1000, 2)]


@pytest.mark.parametrize("payload", [64, 1000])
def test_sizes_sum_up_to_the_rows_of_traffic(payload: int) -> None:
    measurement = measure([rank(call(0), call(1, payload_bytes=payload, wire_bytes=float(payload)))])
    assert sum(row.wire_bytes_per_step or 0 for row in measurement.sizes) == sum(
        row.wire_bytes_per_step or 0 for row in measurement.traffic
    )
