"""Groups, classes and rows of a measurement, against cases small enough to be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import polars as pl
import pytest

from tests.measurement.build import call, group, summary
from tracelens.errors import InputError, UsageError
from tracelens.measurement.measure import measure
from tracelens.results import RanksSource, Traffic
from tracelens.summary import KERNELS, LINKS, SEGMENTS, RankSummary


def with_kernels(base: RankSummary, spans: dict[int, tuple[int, int, int]]) -> RankSummary:
    """Give calls one kernel each: call -> (start, end, covered ns); the kernels must not overlap."""
    rows: list[dict[str, Any]] = [
        {"kernel": n, "name": "nccl", "start_ns": start, "end_ns": end, "launch_ns": start, "owner": owner}
        for n, (owner, (start, end, _)) in enumerate(spans.items())
    ]
    segments = [
        {"segment": n, "kernel": n, "length_ns": end - start, "covered_ns": covered}
        for n, (start, end, covered) in enumerate(spans.values())
    ]
    links = [{"kernel": n, "call": owner, "link": "launch"} for n, owner in enumerate(spans)]
    calls = base.calls.with_columns(
        kernels=pl.when(pl.col("call").is_in(list(spans))).then(1).otherwise(0).cast(pl.UInt32)
    )
    return replace(
        base,
        calls=calls,
        kernels=pl.DataFrame(rows, schema=KERNELS),
        links=pl.DataFrame(links, schema=LINKS),
        segments=pl.DataFrame(segments, schema=SEGMENTS),
    )


def only(rows: tuple[Traffic, ...], primitive: str) -> Traffic:
    (row,) = [row for row in rows if row.primitive == primitive]
    return row


def test_means_are_over_steps_and_a_step_without_a_call_counts() -> None:
    calls = [call(0, step=0), call(1, step=0), call(2, step=1, payload_bytes=500, wire_bytes=500.0)]
    rank = summary(calls=calls, groups=[group("0", [0, 1])], steps=(3, 4, 5))
    row = only(measure([rank]).traffic, "all_reduce")
    assert row.steps_used == 3
    assert (row.calls_per_step.min, row.calls_per_step.median, row.calls_per_step.max) == (0, 1, 2)
    assert row.calls_per_step.mean == pytest.approx(1.0)
    assert row.payload_bytes_per_step == 833  # 2500 / 3, rounded at the end
    assert row.busy_ns_per_step is None


def test_bandwidth_is_payload_over_busy_time_of_the_calls_that_have_both() -> None:
    calls = [call(0, payload_bytes=4000, wire_bytes=6000.0, group_size=4), call(1, payload_bytes=9999)]
    rank = with_kernels(summary(calls=calls, groups=[group("0", [0, 1, 2, 3])]), {0: (1000, 3000, 500)})
    row = only(measure([rank]).traffic, "all_reduce")
    assert (row.busy_ns_per_step, row.exposed_ns_per_step) == (2000, 1500)
    assert row.algbw_bytes_per_s == pytest.approx(4000 / 2000e-9)
    assert row.busbw_bytes_per_s == pytest.approx(4000 / 2000e-9 * 1.5)  # 2(n-1)/n with n = 4
    assert (row.calls_with_bytes, row.calls_with_time) == (2, 1)


def test_steps_are_chosen_with_both_ends_included() -> None:
    calls = [call(n, step=n, payload_bytes=10 ** (n + 1)) for n in range(3)]
    rank = summary(calls=calls, groups=[group("0", [0, 1])], steps=(3, 4, 5))
    measured = measure([rank], steps=(4, 5))
    assert measured.run.steps == (4, 5)
    assert only(measured.traffic, "all_reduce").payload_bytes_per_step == 550
    with pytest.raises(UsageError, match="they hold 3 to 5"):
        measure([rank], steps=(7, 9))


def test_ranks_alike_are_one_class_and_others_are_not() -> None:
    def rank(number: int, payload: int) -> RankSummary:
        pair = [number - number % 2, number - number % 2 + 1]
        calls = [call(0, payload_bytes=payload, wire_bytes=float(payload))]
        return summary(number, calls=calls, groups=[group(f"{7 + pair[0]}", pair, "mesh_tp")], world_size=4)

    measured = measure([rank(0, 100), rank(1, 100), rank(2, 100), rank(3, 200)])
    assert [(row.rank_class, row.ranks) for row in measured.traffic] == [(0, (0, 1, 2)), (1, (3,))]
    assert [g.ranks for g in measured.groups] == [(0, 1), (2, 3)]
    assert [row.ranks for row in measure([rank(0, 100), rank(1, 100)], per_rank=True).traffic] == [(0,), (1,)]


def test_what_an_all_to_all_sends_does_not_part_ranks() -> None:
    ranks = [
        summary(n, calls=[call(0, primitive="all_to_all", payload_bytes=size)], groups=[group("0", [0, 1])])
        for n, size in enumerate((100, 300))
    ]
    (row,) = measure(ranks).traffic
    assert (row.ranks, row.payload_bytes_per_step) == ((0, 1), 200)


def test_groups_of_equal_ranks_stand_together_and_their_traffic_apart() -> None:
    groups = [group("5", [0, 1], "mesh_fsdp"), group("6", [0, 1], "mesh_tp")]
    measured = measure([summary(calls=[call(0, group=0), call(1, group=1)], groups=groups)])
    (found,) = measured.groups
    assert (found.id, found.names, found.descriptions) == ("group:[[2,1]]@0", ("5", "6"), ("mesh_fsdp", "mesh_tp"))
    assert [row.names for row in measured.traffic] == [("5",), ("6",)]


def test_groups_are_known_to_cross_nodes_by_the_given_size_of_one() -> None:
    rank = summary(calls=[call(0, group_size=4)], groups=[group("0", [0, 4, 8, 12])], world_size=16)
    assert [g.spans_nodes for g in measure([rank], gpus_per_node=4).groups] == [True]
    assert [g.spans_nodes for g in measure([rank], gpus_per_node=16).groups] == [False]
    assert [problem.code for problem in measure([rank]).run.problems] == ["nodes-assumed"]
    # where nothing communicates nothing crosses nodes
    assert measure([summary(world_size=16)]).run.problems == ()


def test_words_that_the_contract_does_not_have_are_told_as_other() -> None:
    rank = summary(calls=[call(0, primitive="barrier")], groups=[group("0", [0, 1])])
    assert [row.primitive for row in measure([rank]).traffic] == ["other"]


def test_no_summary_is_an_error() -> None:
    with pytest.raises(InputError, match="no trace"):
        measure([])


def test_a_communicator_that_is_known_by_its_stream_has_assumed_ranks() -> None:
    local = group("stream 7", [0, 1])
    rebuilt = msgspec.structs.replace(local, ranks_source=RanksSource.rebuilt)
    named = msgspec.structs.replace(group("5", [0, 2]), ranks_source=RanksSource.rebuilt)
    measured = measure([summary(calls=[call(0, group=0), call(1, group=1)], groups=[rebuilt, named])])
    assert {found.names: found.ranks_source for found in measured.groups} == {
        ("stream 7",): RanksSource.assumed,
        ("5",): RanksSource.rebuilt,
    }
