"""Run against run, on measurements built by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.report.build import MIB, MS, a_group, a_row, a_run, a_step, an_unsized_row
from tracelens.collectives import Primitive
from tracelens.compared import RunRow, TimeVerdict, Verdict
from tracelens.comparison.kinds import bucket_of
from tracelens.comparison.runs import compare_runs
from tracelens.comparison.step_times import judge_time
from tracelens.errors import InputError
from tracelens.results import CallsPerStep, Measurement, Phase, SizeRow
from tracelens.topology import Axis

GROUP = a_group((0, 1), "1")
CALLS = CallsPerStep(min=8, median=8, max=8, mean=8)


def sized(**changes: Any) -> SizeRow:
    usual: dict[str, Any] = {
        "rank_class": 0,
        "group": GROUP.id,
        "primitive": Primitive.all_reduce,
        "dtype": "bf16",
        "phase": Phase.forward,
        "from_bytes": MIB,
        "to_bytes": MIB,
        "steps_used": 8,
        "calls_per_step": CALLS,
        "payload_bytes_per_step": 8 * MIB,
        "wire_bytes_per_step": 8 * MIB,
        "busy_ns_per_step": 4 * MS,
        "exposed_ns_per_step": 2 * MS,
        "busy_spread_ns": MS // 10,
        "exposed_spread_ns": MS // 10,
    }
    return SizeRow(**(usual | changes))


def run(*sizes: SizeRow, steps: int = 4, compute: int = 60) -> Measurement:
    """Two ranks, four steps: sums over both make `steps_used` eight."""
    return Measurement(
        run=a_run((0, 1)),
        groups=(GROUP,),
        traffic=(a_row(GROUP, Primitive.all_reduce, (0, 1)),),
        sizes=sizes or (sized(),),
        time=tuple(a_step(rank, step, compute=compute + step % 2) for rank in (0, 1) for step in range(steps)),
        overlap=(),
    )


def total(base: Measurement, candidate: Measurement) -> RunRow:
    return next(row for row in compare_runs(base, candidate, "a", "b").rows if row.from_bytes is None)


def test_a_run_is_unchanged_against_itself() -> None:
    comparison = compare_runs(run(), run(), "a", "a")
    assert {row.verdict for row in comparison.rows} == {Verdict.match}
    assert {metric.verdict for metric in comparison.metrics} == {TimeVerdict.same}
    assert (comparison.explained_bytes_fraction, comparison.absent_bytes_fraction) == (1.0, 0.0)
    assert comparison.inside_tolerance


def test_calls_of_a_group_in_two_roles_stand_under_their_own_axis() -> None:
    tokens = sized(primitive=Primitive.all_to_all, axis=Axis.ep)
    one = run(sized(axis=Axis.dp_replicate), tokens)
    shared = msgspec.structs.replace(GROUP, axis=Axis.dp_replicate, roles=(Axis.dp_replicate, Axis.ep))
    one = msgspec.structs.replace(one, groups=(shared,))
    rows = compare_runs(one, one, "a", "b").rows
    assert {(row.primitive, row.axis, row.group) for row in rows} == {
        (Primitive.all_reduce, Axis.dp_replicate, "dp_replicate"),
        (Primitive.all_to_all, Axis.ep, "ep"),
    }


def without_time(*sizes: SizeRow, **changes: Any) -> Measurement:
    return msgspec.structs.replace(run(*sizes), time=(), **changes)


def test_runs_without_times_are_compared_by_calls_and_bytes_and_say_so() -> None:
    same = compare_runs(without_time(), without_time(), "a", "b")
    assert same.inside_tolerance
    assert "the base holds no times: what is compared are calls and bytes" in same.notes
    larger = sized(wire_bytes_per_step=9 * MIB)
    assert not compare_runs(without_time(), without_time(larger), "a", "b").inside_tolerance


@pytest.mark.parametrize("timed", [True, False])
def test_calls_without_their_sizes_are_no_pass(timed: bool) -> None:
    lacking = msgspec.structs.replace(run() if timed else without_time(), sizes=())
    for pair in ((lacking, lacking), (lacking, run()), (run(), lacking)):
        with pytest.raises(InputError, match="does not tell the sizes of its calls"):
            compare_runs(*pair, "a", "b")


def test_two_runs_with_neither_calls_nor_times_are_no_pass() -> None:
    silent = without_time(sizes=(), traffic=())
    with pytest.raises(InputError, match="nothing in common that could be compared"):
        compare_runs(silent, silent, "a", "b")
    # times on one side only are nothing in common either
    timed = msgspec.structs.replace(run(), sizes=(), traffic=())
    with pytest.raises(InputError, match="nothing in common"):
        compare_runs(timed, silent, "a", "b")
    assert compare_runs(timed, timed, "a", "b").inside_tolerance


def test_more_calls_of_the_same_size_are_told_from_larger_calls() -> None:
    twice = CallsPerStep(min=16, median=16, max=16, mean=16)
    more = total(run(), run(sized(calls_per_step=twice, wire_bytes_per_step=16 * MIB)))
    assert (more.verdict, more.ratio, more.why) == (Verdict.more, 2.0, "another number of calls, of the same size")

    larger = total(run(), run(sized(from_bytes=2 * MIB, to_bytes=2 * MIB, wire_bytes_per_step=16 * MIB)))
    assert (larger.verdict, larger.why) == (Verdict.more, "the same number of calls, of another size")


def test_calls_that_came_or_went_are_named() -> None:
    both = (sized(), sized(primitive=Primitive.all_gather, wire_bytes_per_step=MIB))
    rows = {row.primitive: row for row in compare_runs(run(*both), run(), "a", "b").rows if row.from_bytes is None}
    assert rows[Primitive.all_gather].verdict is Verdict.absent
    comparison = compare_runs(run(), run(*both), "a", "b")
    assert [row.verdict for row in comparison.rows if row.from_bytes is None] == [Verdict.unpredicted, Verdict.match]
    assert not comparison.inside_tolerance


@pytest.mark.parametrize(
    ("base", "candidate", "spread", "verdict"),
    [
        (100.0, 100.05, 50.0, TimeVerdict.same),
        (100.0, 120.0, 30.0, TimeVerdict.within_spread),
        (100.0, 140.0, 30.0, TimeVerdict.slower),
        (100.0, 60.0, 30.0, TimeVerdict.faster),
        (100.0, 140.0, None, TimeVerdict.not_enough_data),
        (None, 140.0, 30.0, TimeVerdict.not_enough_data),
    ],
)
def test_a_change_smaller_than_the_spread_is_called_so(
    base: float | None, candidate: float, spread: float | None, verdict: TimeVerdict
) -> None:
    assert judge_time(base, candidate, spread) is verdict


def test_the_spread_is_three_standard_errors_of_the_difference() -> None:
    # GIVEN steps of 100, 101, 100 and 101 ms in both runs: s = 0.577 ms, so 3·sqrt(2·s²/4) = 1.22 ms
    step_time = compare_runs(run(), run(compute=62), "a", "b").metrics[0]
    assert step_time.spread == pytest.approx(3 * (2 * (1 / 3) / 4) ** 0.5 * MS)
    assert (step_time.name, step_time.verdict) == ("step_time", TimeVerdict.slower)


def test_two_steps_are_not_enough_to_judge_time() -> None:
    metrics = compare_runs(run(steps=2), run(steps=2, compute=90), "a", "b").metrics
    assert {metric.verdict for metric in metrics} == {TimeVerdict.not_enough_data}


def test_a_step_slower_by_more_than_five_percent_is_outside_the_tolerance() -> None:
    assert not compare_runs(run(), run(compute=90), "a", "b").inside_tolerance
    assert compare_runs(run(), run(compute=62), "a", "b").inside_tolerance


def test_runs_that_share_nothing_are_refused() -> None:
    other = msgspec.structs.replace(run(sized(group="other")), groups=(a_group((0, 2, 4, 6), "other", id="other"),))
    with pytest.raises(InputError, match="have no kind of call in common"):
        compare_runs(run(), other, "a", "b")


def test_sizes_stand_together_from_one_power_of_four_to_the_next() -> None:
    assert bucket_of(4096) == (4096, 16383)
    assert bucket_of(16383) == (4096, 16383)
    assert bucket_of(16384) == (16384, 65535)
    assert bucket_of(0) == (1, 3)
    assert bucket_of(None) is None


def test_what_makes_runs_hard_to_compare_is_noted() -> None:
    other = msgspec.structs.replace(run(), run=a_run((0,), world_size=2, devices=("NVIDIA A100-SXM4-80GB",)))
    notes = compare_runs(run(), other, "a", "b").notes
    assert [note.split(":")[0] for note in notes] == [
        "ranks 0-1 of the base and 0 of the candidate were read",
        "the GPUs are NVIDIA H100 80GB HBM3 and NVIDIA A100-SXM4-80GB",
    ]
    assert compare_runs(run(), run(), "a", "a").notes == ()


def of_ranks(ranks: tuple[int, ...], slow: int) -> Measurement:
    """Steps of 100, 101, 100 and 101 ms; rank `slow` computes 20 ms longer."""
    time = tuple(
        a_step(rank, step, compute=60 + step % 2 + (20 if rank == slow else 0)) for rank in ranks for step in range(4)
    )
    traffic = (a_row(GROUP, Primitive.all_reduce, ranks),)
    return msgspec.structs.replace(run(), run=a_run(ranks, world_size=2), time=time, traffic=traffic)


def test_a_run_is_neither_faster_nor_slower_than_a_rank_of_its_own() -> None:
    # GIVEN both ranks of a run, one of them slower, and that one alone
    both, alone = of_ranks((0, 1), slow=1), of_ranks((1,), slow=1)
    for base, candidate in ((both, alone), (alone, both)):
        comparison = compare_runs(base, candidate, "a", "b")
        step = comparison.metrics[0]
        # THEN rank 1 stands beside rank 1: 120.5 ms and no change
        assert (step.base, step.candidate, step.verdict) == (120.5 * MS, 120.5 * MS, TimeVerdict.same)
        # AND the calls of classes of ranks, which are means over all of them, are not compared in time
        assert {row.time_verdict for row in comparison.rows} == {TimeVerdict.not_comparable}
        assert any("the step is compared over rank 1 alone" in note for note in comparison.notes)


def test_ranks_that_no_side_shares_with_the_other_are_not_comparable() -> None:
    comparison = compare_runs(of_ranks((0,), slow=1), of_ranks((1,), slow=1), "a", "b")
    assert {metric.verdict for metric in comparison.metrics} == {TimeVerdict.not_comparable}
    # 100.5 and 120.5 ms stand there all the same, and fail nothing
    assert comparison.metrics[0].change == pytest.approx(120.5 / 100.5 - 1)
    assert comparison.inside_tolerance
    assert any("nor are those of the step" in note for note in comparison.notes)


def test_a_kind_that_a_run_lacks_has_no_calls_unless_a_kernel_without_record_may_be_of_it() -> None:
    both = (sized(), sized(primitive=Primitive.all_gather, wire_bytes_per_step=MIB))
    gone = next(row for row in compare_runs(run(*both), run(), "a", "b").rows if row.verdict is Verdict.absent)
    assert (gone.candidate_calls, gone.candidate_bytes, gone.candidate_busy_ns, gone.ratio) == (0, 0, 0, 0)
    unsized = msgspec.structs.replace(run(), traffic=(*run().traffic, an_unsized_row("DeepEP", (0, 1))))
    gone = next(row for row in compare_runs(run(*both), unsized, "a", "b").rows if row.verdict is Verdict.absent)
    assert (gone.candidate_calls, gone.candidate_bytes, gone.candidate_busy_ns, gone.ratio) == (None,) * 4


def test_groups_of_one_are_called_so() -> None:
    alone = a_group((0,), "9", id="alone", axis=None)
    base = run(sized(), sized(group="alone", primitive=Primitive.all_gather, wire_bytes_per_step=0))
    measured = msgspec.structs.replace(base, groups=(GROUP, alone))
    assert {row.group for row in compare_runs(measured, measured, "a", "a").rows} == {"[[2,1]]", "1 rank"}
