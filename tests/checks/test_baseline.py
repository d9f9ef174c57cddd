"""Baselines: what good runs did, and how far they may lie apart."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.checks.jobs import PARAMETERS, RANKS, SHARD, gradients, job
from tests.report.build import MIB, MS, a_run, a_step
from tracelens.checks.baseline import load_baseline, make_baseline, render_baseline
from tracelens.checks.policy import Policy
from tracelens.checks.propose import propose_policy
from tracelens.errors import InputError
from tracelens.results import Measurement


def run(compute: int = 60, **changes: object) -> Measurement:
    time = tuple(a_step(rank, step, compute=compute) for rank in RANKS for step in (3, 4, 5))
    return job(gradients(SHARD, **changes), PARAMETERS, groups=(SHARD,), time=time)


def test_a_baseline_holds_calls_bytes_and_times_per_rank_and_step() -> None:
    baseline = make_baseline([run()], ["a"])
    row = next(row for row in baseline.rows if row.primitive == "reduce_scatter")
    assert (row.group, row.calls, row.wire_bytes) == ("[[8,1]]", 8.0, 700 * MIB)
    step = baseline.part("step_time")
    assert step is not None
    # 60 ms of compute, 25 of exposed communication, 15 of the rest, in each of three steps
    assert (step.mean, step.deviation, step.values) == (100 * MS, 0.0, 3)


def test_several_runs_tell_how_far_they_lie_apart() -> None:
    baseline = make_baseline([run(60), run(62), run(64)], ["a", "b", "c"])
    step = baseline.part("step_time")
    assert step is not None
    # 100, 102 and 104 ms: a sample whose standard deviation is 2
    assert (step.mean, step.values) == (102 * MS, 3)
    assert step.deviation == pytest.approx(2 * MS)


def test_bytes_that_differ_between_good_runs_are_allowed_to() -> None:
    baseline = make_baseline([run(), run(wire_bytes_per_step=714 * MIB)], ["a", "b"])
    row = next(row for row in baseline.rows if row.primitive == "reduce_scatter")
    assert row.bytes_differ == pytest.approx(14 / 707)


def test_tolerances_are_five_percent_or_three_sigma() -> None:
    steady = propose_policy([run()], [None], make_baseline([run()], ["a"]), "b.json")
    assert steady.time.relative == 0.05
    runs = [run(60), run(70), run(80)]
    shaky = propose_policy(runs, [None], make_baseline(runs, ["a", "b", "c"]), "b.json")
    # 100, 110 and 120 ms: sigma is 10 of a mean of 110
    assert shaky.time.relative == pytest.approx(3 * 10 / 110, abs=1e-4)
    assert shaky.traffic == Policy().traffic


def test_the_largest_share_of_good_runs_is_within_the_proposed_limit() -> None:
    runs = [run(60), run(70)]
    limits = propose_policy(runs, [None], make_baseline(runs, ["a", "b"]), "b.json").limits
    assert limits.exposed_comm_fraction is not None
    # 25 of 100 ms is the most, and there is room for a twentieth, or three sigma
    assert 0.25 * 1.05 <= limits.exposed_comm_fraction < 0.3


def test_a_share_of_a_few_ns_leaves_room_and_none_is_rounded_below_what_was_seen() -> None:
    def proposed(exposed_ns: int) -> float | None:
        step = msgspec.structs.replace(a_step(0, 3), span_ns=100 * MS, exposed_comm_ns=exposed_ns, idle_ns=0)
        one = msgspec.structs.replace(run(), time=(step,))
        return propose_policy([one], [None], make_baseline([one], ["a"]), "b.json").limits.exposed_comm_fraction

    # 223 ns of 100 ms: a hundredth of the step is the least room
    assert proposed(223) == 0.0101
    # a twentieth of 40.1234 % beside: 42.12957 %, upwards
    assert proposed(40_123_400) == 0.4213
    # nothing could be above a limit of the whole step
    assert proposed(97 * MS) is None


def test_a_baseline_is_small_and_read_as_it_was_written(tmp_path: Path) -> None:
    baseline = make_baseline([run()], ["a"])
    path = tmp_path / "b.json"
    path.write_text(render_baseline(baseline), encoding="utf-8")
    assert load_baseline(path) == baseline
    assert path.stat().st_size < 10_000


def test_runs_of_different_sizes_make_no_baseline() -> None:
    other = msgspec.structs.replace(run(), run=a_run((0, 1)))
    with pytest.raises(InputError, match="different world sizes: 2, 8"):
        make_baseline([run(), other], ["a", "b"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "no baseline of tracelens, or a damaged one"),
        ('{"kind": "other"}', "is no baseline of tracelens"),
        ('{"kind": "baseline", "schema_version": 7}', "of schema version 7, this is version 1"),
        ('{"kind": "baseline", "schema_version": 1}', "a damaged one"),
        ("[]", "a damaged one"),
    ],
)
def test_what_is_no_baseline_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told):
        load_baseline(path)
