"""One job and one run of it are measured; the others are named, never averaged in."""

from __future__ import annotations

from tests.measurement.build import summary
from tracelens.measurement.jobs import Job, choose_job
from tracelens.summary import RankSummary


def paths(ranks: tuple[RankSummary, ...]) -> list[str]:
    return [rank.head.path for rank in ranks]


def left_out(job: Job) -> dict[str, str]:
    return {skipped.path: skipped.why for skipped in job.left_out}


def test_ranks_of_jobs_of_different_size_are_told_apart() -> None:
    small = [summary(rank, world_size=2, path=f"small{rank}") for rank in (0, 1)]
    large = [summary(0, world_size=8, path="large0")]
    job = choose_job([*large, *small])
    assert paths(job.ranks) == ["small0", "small1"]
    assert "8 ranks" in left_out(job)["large0"]
    assert [problem.code for problem in job.problems] == ["several-jobs"]


def test_steps_that_begin_again_are_another_run() -> None:
    first = [summary(rank, steps=(3, 4), path=f"a{rank}", start_ns=0) for rank in (0, 1)]
    second = [summary(rank, steps=(3, 4), path=f"b{rank}", start_ns=9000) for rank in (0, 1)]
    job = choose_job(first + second)
    assert paths(job.ranks) == ["b0", "b1"]  # the newest among equals
    assert set(left_out(job)) == {"a0", "a1"}


def test_the_choice_is_told_as_it_was_made() -> None:
    def told(*ranks: RankSummary) -> str:
        (problem,) = choose_job(ranks).problems
        return problem.message

    pair = [summary(rank, world_size=2, start_ns=5) for rank in (0, 1)]
    old, new = (summary(0, world_size=size, path=str(size), start_ns=start) for size, start in ((4, 1), (8, 2)))
    assert "the one with the most ranks is shown (2 of 4 files)" in told(*pair, old, new)
    assert "the newest of 2 with as many ranks is shown (1 of 2 files)" in told(old, new)
    at_once = summary(0, world_size=16, path="16", start_ns=2)
    assert "the first of 2 with as many ranks is shown" in told(new, at_once)


def test_steps_that_go_on_are_windows_of_one_run() -> None:
    windows = [summary(0, steps=(n,), path=f"w{n}", start_ns=n) for n in (10, 20, 30)]
    job = choose_job(windows)
    assert paths(job.ranks) == ["w10", "w20", "w30"]
    assert job.left_out == ()
    assert job.problems == ()


def test_the_same_recording_twice_counts_once() -> None:
    job = choose_job([summary(0, path="a"), summary(0, path="copy")])
    assert paths(job.ranks) == ["a"]
    assert "rank 0 twice" in left_out(job)["copy"]
    assert [problem.code for problem in job.problems] == ["rank-twice"]


def test_a_trace_that_tells_no_job_belongs_to_the_only_one() -> None:
    job = choose_job([summary(0), summary(None, world_size=None, path="silent", start_ns=77)])
    assert paths(job.ranks) == ["rank0.json", "silent"]


def test_any_subset_of_ranks_is_a_job() -> None:
    job = choose_job([summary(63, world_size=64), summary(5, world_size=64)])
    assert [rank.rank for rank in job.ranks] == [5, 63]
