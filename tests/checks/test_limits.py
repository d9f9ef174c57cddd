"""Policies held against jobs built by hand: what fails, what warns, and what is let through."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.checks import jobs
from tests.checks.jobs import ACROSS, PARAMETERS, RANKS, SHARD, gradients, inferred, job, link, times
from tests.report.build import MIB, MS, a_row, a_run, a_step
from tracelens.checks.baseline import make_baseline
from tracelens.checks.codes import Code
from tracelens.checks.facts import Facts
from tracelens.checks.limits import check
from tracelens.checks.policy import Expect, Level, Limits, OverlapLimits, Policy, TimeLimits, TrafficLimits
from tracelens.collectives import Primitive
from tracelens.compared import Comparison
from tracelens.errors import Severity
from tracelens.inferred import Inference
from tracelens.many_ranks import Cause, LastArrival, Skew
from tracelens.results import Measurement, Overlap
from tracelens.topology import Axis


def run(compute: int = 60, exposed: int = 25, **changes: Any) -> Measurement:
    time = tuple(a_step(rank, step, compute=compute, exposed=exposed) for rank in RANKS for step in (3, 4, 5))
    overlap = tuple(Overlap(rank=rank, comm_overlap_pct=60.0) for rank in RANKS)
    return job(gradients(SHARD, **changes), PARAMETERS, groups=(SHARD,), time=time, overlap=overlap)


BASELINE = make_baseline([run()], ["a"])


def codes(measurement: Measurement, policy: Policy, **parts: Any) -> list[tuple[str, str]]:
    facts = Facts(measurement, parts.get("inference"), parts.get("comparison"))
    return [(one.name or "", one.severity.value) for one in check(facts, policy, parts.get("baseline")).findings]


def test_a_run_keeps_the_baseline_that_was_made_from_it() -> None:
    assert codes(run(), Policy(), baseline=BASELINE) == []


def test_one_call_more_fails() -> None:
    assert codes(run(calls_per_step=times(9)), Policy(), baseline=BASELINE) == [("calls-differ", "error")]


def test_one_byte_in_a_mean_is_rounding_and_two_fail() -> None:
    assert codes(run(wire_bytes_per_step=700 * MIB + 1), Policy(), baseline=BASELINE) == []
    assert codes(run(wire_bytes_per_step=700 * MIB + 2), Policy(), baseline=BASELINE) == [("bytes-differ", "error")]


def test_both_floors_must_be_passed_for_bytes_to_differ() -> None:
    more = run(wire_bytes_per_step=round(700 * MIB * 1.02))
    wide = Policy(traffic=TrafficLimits(relative=0.01, absolute_bytes=20 * MIB))
    assert codes(more, wide, baseline=BASELINE) == []
    tight = Policy(traffic=TrafficLimits(relative=0.01, absolute_bytes=MIB))
    assert codes(more, tight, baseline=BASELINE) == [("bytes-differ", "error")]


def test_all_to_alls_follow_the_data_and_may_differ_by_a_percent() -> None:
    def dispatch(sent: int) -> Measurement:
        group = jobs.EXPERTS
        return job(a_row(group, Primitive.all_to_all, RANKS, wire_bytes_per_step=sent), groups=(group,))

    baseline = make_baseline([dispatch(1000 * MIB)], ["a"])
    assert codes(dispatch(1009 * MIB), Policy(), baseline=baseline) == []
    assert codes(dispatch(1011 * MIB), Policy(), baseline=baseline) == [("bytes-differ", "error")]


def test_calls_that_came_and_went_are_named() -> None:
    other = job(gradients(SHARD), a_row(SHARD, Primitive.broadcast, RANKS), groups=(SHARD,))
    found = check(Facts(other), Policy(severity={"time-regressed": Level.off}), BASELINE).findings
    told = {one.message.split(":")[0]: one.message for one in found if one.code == Code.calls_differ}
    assert told["all_gather of bf16 in dp_shard [[8,1]]"].endswith("0 calls a step, the reference has 8 (gone)")
    assert told["broadcast of bf16 in dp_shard [[8,1]]"].endswith("8 calls a step, the reference has 0 (new)")


def test_time_warns_when_it_passes_both_floors_and_chance() -> None:
    assert codes(run(compute=64), Policy(), baseline=BASELINE) == []
    assert codes(run(compute=66), Policy(), baseline=BASELINE) == [("time-regressed", "warning")]
    # 6 ms of 100 are within an absolute floor of 10 ms
    wide = Policy(time=TimeLimits(absolute_ms=10))
    assert codes(run(compute=66), wide, baseline=BASELINE) == []


def test_a_baseline_of_shaky_runs_lets_more_pass() -> None:
    shaky = make_baseline([run(56), run(64)], ["a", "b"])
    # mean 100 ms, sigma 5.66: up to 117 ms
    assert codes(run(compute=75), Policy(), baseline=shaky) == []
    assert codes(run(compute=80), Policy(), baseline=shaky) == [("time-regressed", "warning")]


def test_overlap_warns_below_the_allowed_points() -> None:
    lower = msgspec.structs.replace(run(), overlap=(Overlap(rank=0, comm_overlap_pct=54.0),))
    assert codes(lower, Policy(), baseline=BASELINE) == [("overlap-lost", "warning")]
    assert codes(lower, Policy(overlap=OverlapLimits(absolute_points=7)), baseline=BASELINE) == []


def test_the_policy_says_what_weighs_how_much() -> None:
    slower = run(compute=80)
    assert codes(slower, Policy(severity={"time-regressed": Level.error}), baseline=BASELINE) == [
        ("time-regressed", "error")
    ]
    assert codes(slower, Policy(severity={"time-regressed": Level.off}), baseline=BASELINE) == []


def test_a_job_of_another_size_is_not_compared_call_by_call() -> None:
    other = msgspec.structs.replace(run(), run=a_run(RANKS, world_size=16))
    assert ("layout-differs", "error") in codes(other, Policy(), baseline=BASELINE)


@pytest.mark.parametrize(
    ("inference", "expected"),
    [
        (inferred(tp=8), []),
        (inferred(tp=4), [("layout-differs", "error")]),
        (inferred(), [("layout-undetermined", "warning")]),
        (msgspec.structs.replace(inferred(), undetermined={"tp": (4, 8)}), [("layout-undetermined", "warning")]),
        (msgspec.structs.replace(inferred(), undetermined={"tp": (2, 4)}), [("layout-differs", "error")]),
        (None, [("not-checked", "warning")]),
    ],
)
def test_the_expected_layout_is_held_against_the_inferred_one(
    inference: Inference | None, expected: list[tuple[str, str]]
) -> None:
    assert codes(run(), Policy(expect=Expect(tp=8)), inference=inference) == expected


def test_limits_on_shares_of_the_step() -> None:
    # 25 of 100 ms exposed, 10 idle
    assert codes(run(), Policy(limits=Limits(exposed_comm_fraction=0.25, idle_fraction=0.1))) == []
    found = codes(run(), Policy(limits=Limits(exposed_comm_fraction=0.24, idle_fraction=0.09)))
    assert found == [("exposed-communication", "warning"), ("idle-time", "warning")]


def test_unexplained_bytes_need_a_ledger_and_fail_above_their_limit() -> None:
    policy = Policy(limits=Limits(unexplained_bytes_fraction=0.01))
    comparison = Comparison(
        sizes_from="given", rows=(), explained_bytes_fraction=0.98, absent_bytes_fraction=0.0,
        unsized_time_fraction=0.0, inside_tolerance=False,
    )  # fmt: skip
    assert codes(run(), policy, comparison=comparison) == [("bytes-unexplained", "error")]
    kept = msgspec.structs.replace(comparison, explained_bytes_fraction=0.995)
    assert codes(run(), policy, comparison=kept) == []
    assert codes(run(), policy) == [("not-checked", "warning")]


def test_links_below_their_share_warn_and_unknown_ones_are_not_checked() -> None:
    policy = Policy(limits=Limits(link_fraction=0.6))
    assert codes(msgspec.structs.replace(run(), links=(link(0.55),)), policy) == [("bandwidth-under-link", "warning")]
    assert codes(msgspec.structs.replace(run(), links=(link(0.7),)), policy) == []
    assert codes(run(), policy) == [("not-checked", "warning")]


def test_an_overlap_that_no_run_could_fall_below_is_no_limit() -> None:
    # GIVEN ranks that hide 60 % each: 5 points are allowed, and 55 % are the least
    assert limits(run(), Policy(), baseline=BASELINE)["overlap: communication under compute"][3] == pytest.approx(55.0)
    # AND 4, 20 and 36 %: three sigma of 16 points are more than the mean of 20
    uneven = tuple(Overlap(rank=rank, comm_overlap_pct=4.0 + 16 * rank) for rank in range(3))
    apart = msgspec.structs.replace(run(), overlap=uneven)
    names = limits(apart, Policy(), baseline=make_baseline([apart], ["a"]))
    assert not [name for name in names if name.startswith("overlap")]
    assert [name for name in names if name.startswith("time")]


def test_times_of_other_ranks_than_those_of_the_baseline_are_not_judged() -> None:
    other = run(compute=90)
    fewer = msgspec.structs.replace(other, run=a_run((3,), world_size=8), time=other.time[:3])
    told = check(Facts(fewer), Policy(), BASELINE)
    assert {one.verdict for one in told.limits if one.name.startswith(("time", "overlap"))} == {"not_checked"}
    assert {one.code for one in told.findings} == {Code.not_checked}
    assert "made from other ranks" in told.findings[0].message


def test_groups_that_may_not_cross_nodes_fail_when_they_do() -> None:
    crossing = job(a_row(ACROSS, Primitive.all_reduce, RANKS), groups=(ACROSS,))
    assert codes(crossing, Policy(limits=Limits(node_local=(Axis.tp,)))) == [("group-spans-nodes", "error")]
    assert codes(crossing, Policy(limits=Limits(node_local=(Axis.pp,)))) == []


def waiting(*, systematic: bool) -> Skew:
    last = LastArrival(rank=5, calls=40, of=47, systematic=systematic, late_ns=MS, cause=Cause.compute, cause_ns=MS)
    return Skew(
        group=SHARD.id, name="1", primitive="all_reduce", size=8, ranks=RANKS, pairing="seq", matched_calls=47,
        partly_matched_calls=0, unmatched_calls=0, conflicting_calls=0, late_profiler_calls=0, transfer_ns=MS,
        wait_ns=30 * MS, behind_receive_ns=0, complete=True, busbw_bytes_per_s=None, last=last, waits=(),
    )  # fmt: skip


def test_a_rank_that_is_always_last_warns_and_one_that_is_so_by_chance_does_not() -> None:
    policy = Policy(limits=Limits(straggler_wait_fraction=0.05))
    # 30 ms of waiting in three steps are a tenth of each
    late = msgspec.structs.replace(run(), skew=(waiting(systematic=True),))
    (finding,) = check(Facts(late), policy, None).findings
    assert (finding.code, finding.ranks) == (Code.straggler, (5,))
    assert finding.measured == pytest.approx(0.1)
    # 30 ms are the mean of all ranks, the late one among them: the others wait longer
    assert "a rank waits 10.0 ms a step on average" in finding.message
    assert finding.severity is Severity.warning
    # of the 30 ms, 6 are for the late rank: 2 ms a step
    other = waiting(systematic=True)
    assert other.last is not None
    partly = msgspec.structs.replace(other, last=msgspec.structs.replace(other.last, waited_ns=6 * MS))
    assert codes(msgspec.structs.replace(run(), skew=(partly,)), policy) == []
    chance = msgspec.structs.replace(run(), skew=(waiting(systematic=False),))
    assert codes(chance, policy) == []
    assert codes(run(), policy) == [("not-checked", "warning")]


def limits(measurement: Measurement, policy: Policy, **parts: Any) -> dict[str, tuple[object, ...]]:
    facts = Facts(measurement, parts.get("inference"), parts.get("comparison"))
    checked = check(facts, policy, parts.get("baseline"))
    return {one.name: (one.verdict, one.measured, one.bound, one.limit, one.unit) for one in checked.limits}


def test_a_kept_limit_stands_with_its_numbers() -> None:
    # 25 of 100 ms exposed, 10 idle
    policy = Policy(expect=Expect(tp=8), limits=Limits(exposed_comm_fraction=0.3, idle_fraction=0.05))
    assert limits(run(), policy, inference=inferred(tp=8)) == {
        "expect.tp": ("kept", 8, "exactly", 8, None),
        "limits.exposed_comm_fraction": ("kept", pytest.approx(0.25), "at most", 0.3, "fraction"),
        "limits.idle_fraction": ("exceeded", pytest.approx(0.1), "at most", 0.05, "fraction"),
    }


@pytest.mark.parametrize(
    ("level", "verdict"), [(Level.error, "broken"), (Level.warning, "exceeded"), (Level.info, "exceeded")]
)
def test_a_limit_is_broken_only_where_it_fails_the_job(level: Level, verdict: str) -> None:
    severity = {"idle-time": level, "layout-differs": level}
    policy = Policy(expect=Expect(tp=4), limits=Limits(idle_fraction=0.05), severity=severity)
    found = limits(run(), policy, inference=inferred(tp=8))
    assert {name: told[0] for name, told in found.items()} == {"expect.tp": verdict, "limits.idle_fraction": verdict}


def test_every_kind_of_call_of_the_baseline_is_a_limit() -> None:
    found = limits(run(), Policy(), baseline=BASELINE)
    assert {verdict for verdict, *_ in found.values()} == {"kept"}
    assert found["calls: all_gather of bf16 in dp_shard [[8,1]]"] == ("kept", 8.0, "exactly", 8.0, "calls")
    (sent,) = [numbers for name, numbers in found.items() if name.startswith("bytes: reduce_scatter")]
    assert sent == ("kept", 700 * MIB, "exactly", 700 * MIB, "bytes")
    # 100 ms a step: 5 % more at most; 60 % under compute: 5 points less at least
    assert found["time: the step"] == ("kept", 100 * MS, "at most", pytest.approx(105 * MS), "ns")
    assert found["overlap: communication under compute"] == ("kept", 60.0, "at least", 55.0, "percent")


def test_a_baseline_that_a_run_cannot_answer_is_not_checked_and_warns() -> None:
    timeless = msgspec.structs.replace(run(), time=(), overlap=())
    found = limits(timeless, Policy(), baseline=BASELINE)
    assert found["time: the step"] == ("not_checked", None, "at most", pytest.approx(105 * MS), "ns")
    unsized = run(wire_bytes_per_step=None, payload_bytes_per_step=None)
    against = limits(unsized, Policy(), baseline=BASELINE)
    assert [numbers[0] for name, numbers in against.items() if name.startswith("bytes: reduce_")] == ["not_checked"]
    assert ("not-checked", "warning") in codes(timeless, Policy(), baseline=BASELINE)


def test_bytes_that_may_differ_are_about_and_not_exactly_those_of_the_reference() -> None:
    found = limits(run(), Policy(traffic=TrafficLimits(relative=0.01)), baseline=BASELINE)
    assert {bound for name, (_, _, bound, _, _) in found.items() if name.startswith("bytes: ")} == {"about"}


def test_what_the_policy_has_off_is_no_limit() -> None:
    policy = Policy(limits=Limits(idle_fraction=0.05), severity={"idle-time": Level.off})
    assert limits(run(), policy) == {}
    assert limits(run(), Policy(limits=Limits(idle_fraction=0.2))) != {}


def test_groups_of_an_axis_that_is_not_there_cross_no_node_and_unknown_groups_are_not_checked() -> None:
    policy, name = Policy(limits=Limits(node_local=(Axis.tp,))), "limits.node_local: groups of tp across nodes"
    one = job(a_row(SHARD, Primitive.all_reduce, RANKS), groups=(SHARD,))
    assert limits(one, policy)[name][:2] == ("kept", 0)
    unknown = msgspec.structs.replace(SHARD, axis=None)
    assert limits(job(a_row(unknown, Primitive.all_reduce, RANKS), groups=(unknown,)), policy)[name][0] == "not_checked"
