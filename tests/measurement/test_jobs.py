"""One job and one run of it are measured; the others are named, never averaged in."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.measurement.build import group, summary
from tracelens.measurement.jobs import Job, choose_job
from tracelens.summary import RankSummary
from tracelens.trace.summarize import summarize

BASE = 1_751_410_836_000_000_000  # 2025-07-01 23:00:36 UTC
SECOND = 10**9
DAY = 86_400 * SECOND
ROOT = Path(__file__).resolve().parents[2]
FSDP2_TP2 = ROOT / "fixtures" / "fsdp2_tp2"
TRACES = ROOT.parent / "shared" / "traces"
real = pytest.mark.skipif(not TRACES.is_dir(), reason="no real traces in ../shared/traces")


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
    first = [summary(rank, steps=(3, 4), path=f"a{rank}", start_ns=0, base_time_ns=BASE) for rank in (0, 1)]
    second = [summary(rank, steps=(3, 4), path=f"b{rank}", start_ns=9000, base_time_ns=BASE) for rank in (0, 1)]
    job = choose_job(first + second)
    assert paths(job.ranks) == ["b0", "b1"]  # the newest among equals
    assert set(left_out(job)) == {"a0", "a1"}


def test_the_choice_is_told_as_it_was_made() -> None:
    def told(*ranks: RankSummary) -> str:
        (problem,) = choose_job(ranks).problems
        return problem.message

    pair = [summary(rank, world_size=2, start_ns=5) for rank in (0, 1)]
    old, new = (
        summary(0, world_size=size, path=str(size), start_ns=start, base_time_ns=BASE)
        for size, start in ((4, 1), (8, 2))
    )
    assert "the one with the most ranks is shown (2 of 4 files)" in told(*pair, old, new)
    assert "the newest of 2 with as many ranks is shown (1 of 2 files)" in told(old, new)
    at_once = summary(0, world_size=16, path="16", start_ns=2, base_time_ns=BASE)
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


def at(rank: int, moment_ns: int, steps: tuple[int, ...] = (3,), **head: Any) -> RankSummary:
    """A rank's recording of 10 ms that began at a moment after BASE."""
    usual: dict[str, Any] = {"path": f"{moment_ns}/{rank}", "world_size": 8, "base_time_ns": BASE}
    return summary(rank, steps=steps, start_ns=moment_ns, end_ns=moment_ns + SECOND // 100, **usual | head)


def chosen_ranks(*files: RankSummary) -> list[int | None]:
    """The ranks chosen, the same for files in any order."""
    orders = [files, files[::-1], sorted(files, key=lambda one: one.head.path)]
    (ranks,) = {tuple(one.rank for one in choose_job(order).ranks) for order in orders}
    return list(ranks)


def codes(*files: RankSummary) -> list[str]:
    return [problem.code for problem in choose_job(files).problems]


def test_ranks_on_gpus_of_different_models_are_different_jobs() -> None:
    files = [at(rank, 0, devices=("H100",) if rank < 3 else ("V100",), base_time_ns=None) for rank in range(5)]
    assert chosen_ranks(*files) == [0, 1, 2]
    (problem,) = choose_job(files).problems
    assert "ranks 0-2 of 8, H100. Left out: ranks 3-4 of 8, V100" in problem.message
    assert left_out(choose_job(files))["0/3"] == "another job: V100, not H100"


def test_a_job_that_runs_on_two_models_at_once_stays_whole_and_the_doubt_is_told() -> None:
    files = [at(rank, rank, devices=(("A100 40GB", "A100 80GB")[rank % 2],)) for rank in range(4)]
    assert chosen_ranks(*files) == [0, 1, 2, 3]
    assert codes(*files) == ["job-doubtful"]


def test_ranks_on_two_versions_of_nccl_are_different_jobs() -> None:
    files = [at(rank, 0, nccl_version="2.20.5" if rank < 3 else "2.21.5") for rank in range(5)]
    assert chosen_ranks(*files, at(7, 0)) == [0, 1, 2, 7]  # one that does not tell its version stays


def test_the_same_step_days_apart_is_another_run() -> None:
    files = [at(0, 0), at(1, 0), at(2, 3 * DAY)]
    assert chosen_ranks(*files) == [0, 1]
    assert left_out(choose_job(files)) == {
        f"{3 * DAY}/2": "another run: recorded at 2025-07-04 23:00 UTC, not 2025-07-01 23:00 UTC"
    }


def test_clocks_that_differ_by_seconds_split_no_job() -> None:
    files = [at(rank, rank * 7 * SECOND) for rank in range(8)]
    assert chosen_ranks(*files) == list(range(8))
    assert codes(*files) == []


def test_the_same_step_minutes_apart_is_told_as_a_doubt() -> None:
    files = [at(0, 0), at(1, 600 * SECOND)]
    assert chosen_ranks(*files) == [0, 1]
    assert codes(*files) == ["job-doubtful"]


def test_windows_of_a_long_run_are_one_run_however_late_and_profilers_may_begin_late() -> None:
    # a step of 0.9 µs in the head, 100,000 of them between: minutes; both within a day
    files = [at(rank, n * SECOND, steps=(n,)) for n in (10, 1_000, 80_000) for rank in (0, 1)]
    assert chosen_ranks(*files) == [0, 0, 0, 1, 1, 1]
    late = [at(0, 0, steps=(3, 4, 5)), at(1, SECOND // 200, steps=(4, 5)), at(5, SECOND // 100, steps=(5,))]
    assert chosen_ranks(*late) == [0, 1, 5]
    assert codes(*late) == []


def test_later_steps_that_were_recorded_earlier_are_another_run() -> None:
    assert chosen_ranks(at(0, DAY), at(1, DAY), at(2, 0, steps=(13,))) == [0, 1]


def test_a_time_without_a_base_tells_no_date() -> None:
    files = [at(0, 0, base_time_ns=None), at(1, 5 * DAY, base_time_ns=None), at(2, 9 * DAY)]
    assert chosen_ranks(*files) == [0, 1, 2]


def test_the_newest_is_told_by_dates_also_where_one_trace_has_a_base_and_the_other_none() -> None:
    old = [at(rank, 1_694_128_201 * SECOND, base_time_ns=None, path=f"old{rank}") for rank in (0, 1)]  # 2023
    new = [at(rank, 0, path=f"new{rank}") for rank in (0, 1)]
    job = choose_job(old + new)
    assert paths(job.ranks) == ["new0", "new1"]
    (problem,) = job.problems
    assert "the newest of 2" in problem.message
    assert "ranks 0-1 of 8, 2025-07-01 23:00 UTC. Left out: ranks 0-1 of 8, 2023-09-07 23:10 UTC" in problem.message


def test_where_a_date_is_unknown_none_is_called_the_newest() -> None:
    (problem,) = choose_job([at(0, 0), at(0, 0, base_time_ns=None, path="undated", events=9)]).problems
    assert "the first of 2" in problem.message


WORLD = group("0", range(8), "default_pg")


def tp2_dp4(rank: int) -> list[Any]:
    pair, others = rank // 2 * 2, range(rank % 2, 8, 2)
    return [WORLD, group("3", (pair, pair + 1), "mesh_tp"), group("1", others, "mesh_dp")]


def pp4_dp2(rank: int) -> list[Any]:
    pair, others = rank // 2 * 2, range(rank % 2, 8, 2)
    return [WORLD, group("1", others, "mesh_pp"), group("3", (pair, pair + 1), "mesh_dp")]


def dp8(_rank: int) -> list[Any]:
    return [WORLD]


@pytest.mark.parametrize(("one", "other"), list(permutations((tp2_dp4, pp4_dp2, dp8), 2)))
def test_groups_that_their_members_do_not_all_list_are_of_another_job(one: Any, other: Any) -> None:
    whole = [at(rank, 0, groups=one(rank)) for rank in range(6)]
    for part in (range(4), (0,), (1, 4), (4, 5), (6, 7)):
        files = [*whole, *(at(rank, 0, groups=other(rank), path=f"x{rank}", events=7) for rank in part)]
        job = choose_job(files)
        assert paths(job.ranks) == [f"0/{rank}" for rank in range(6)]
        assert set(left_out(job)) == {f"x{rank}" for rank in part}


def test_ranks_of_one_job_list_different_groups_and_stay_together() -> None:
    assert chosen_ranks(*(at(rank, 0, groups=tp2_dp4(rank)) for rank in (0, 1, 3, 6, 7))) == [0, 1, 3, 6, 7]
    # of a pipeline only the first and the last stage have the group of the embeddings
    ends = [group("9", (0, 1, 6, 7), "embedding")]
    stages = [at(rank, 0, groups=[*pp4_dp2(rank), *(ends if rank in (0, 1, 6, 7) else [])]) for rank in range(8)]
    assert chosen_ranks(*stages) == list(range(8))
    assert codes(*stages) == []


def test_a_group_made_between_two_windows_splits_no_job() -> None:
    before, after = (at(0, 0, steps=(3,), groups=dp8(0)), at(1, SECOND, steps=(9,), groups=tp2_dp4(1)))
    assert chosen_ranks(before, after) == [0, 1]


def test_halves_whose_groups_never_meet_are_told_as_a_doubt() -> None:
    files = [at(0, 0, groups=tp2_dp4(0)[:2]), at(5, 0, groups=pp4_dp2(5)[:2])]  # {0, 1} and {1, 3, 5, 7}
    assert chosen_ranks(*files) == [0, 5]
    assert codes(*files) == ["job-doubtful"]


@cache
def read_all(folder: Path) -> list[RankSummary]:
    return [summarize(path) for path in sorted(folder.glob("*.json.gz"))]


def read(folder: Path, ranks: range = range(99)) -> list[RankSummary]:
    return [one for one in read_all(folder) if one.rank in ranks]


@real
@pytest.mark.parametrize(
    ("kept", "kept_ranks", "other", "other_ranks"),
    [
        ("nanogpt_sharded_dp8", 8, "framework/ddp8", range(8)),
        ("nanogpt_sharded_dp8", 4, "dlrm_8", range(4, 8)),
        ("nanogpt_sharded_dp8", 8, "dlrm_8", range(8)),
        (str(FSDP2_TP2), 8, "framework/pp4_1f1b_dp2", range(4)),
        (str(FSDP2_TP2), 8, "framework/ddp8", range(8)),
        (str(FSDP2_TP2), 2, "framework/ddp8", range(1)),
        ("framework/cp4_allgather_dp2", 5, "framework/pp4_1f1b_dp2", range(4, 8)),
        ("framework/pp4_interleaved_tp2", 5, "framework/cp4_allgather_dp2", range(2, 6)),
    ],
)
def test_files_of_two_real_jobs_in_one_folder_are_not_mixed(
    kept: str, kept_ranks: int, other: str, other_ranks: range
) -> None:
    mine, others = read(TRACES / kept, range(kept_ranks)), read(TRACES / other, other_ranks)
    job = choose_job([*others, *mine])
    assert paths(job.ranks) == paths(tuple(mine))
    assert set(left_out(job)) == {one.head.path for one in others}
    assert [problem.code for problem in job.problems] == ["several-jobs"]


@real
@pytest.mark.parametrize(
    "folder", sorted(path for path in [*TRACES.glob("*"), *TRACES.glob("framework/*")] if path.is_dir()), ids=str
)
def test_no_real_job_is_split(folder: Path) -> None:
    if folder.name in ("edge", "framework"):
        pytest.skip("many jobs")
    job = choose_job(read(folder))
    assert (job.left_out, job.problems) == ((), ())
