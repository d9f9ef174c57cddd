"""Which ranks a sample reads."""

from __future__ import annotations

from pathlib import Path

from tests.measurement.build import call, group, summary
from tracelens.sampling import choose_ranks, sources_by_rank
from tracelens.trace.discover import Discovery, Source


def sources(*ranks: int) -> dict[int, Source]:
    return {rank: Source(Path(f"rank{rank}.json"), 1) for rank in ranks}


def test_the_neighbour_and_the_far_end_of_every_group_are_read() -> None:
    # GIVEN rank 0 of 64: TP over 0..7, DP over 0, 8, .., 56, and a group of all that carries nothing
    first = summary(
        0,
        calls=[call(0, group=0), call(1, group=1)],
        groups=[group("1", range(8)), group("2", range(0, 64, 8)), group("0", range(64))],
        world_size=64,
    )
    # THEN 1 and 7 tell TP, 8 and 56 tell DP, and 63 is the last
    assert choose_ranks(first, sources(*range(64))) == [0, 1, 7, 8, 56, 63]


def test_every_stage_of_a_pipeline_is_read() -> None:
    sends = call(0, primitive="send", group=0, peer=4)
    first = summary(0, calls=[sends], groups=[group("1", range(0, 16, 4))], world_size=16)
    assert choose_ranks(first, sources(*range(16))) == [0, 4, 8, 12, 15]


def test_ranks_that_are_not_there_are_not_asked_for() -> None:
    first = summary(0, calls=[call(0, group=0)], groups=[group("1", range(8))], world_size=8)
    assert choose_ranks(first, sources(0, 1, 2)) == [0, 1, 2]


def test_ranks_are_told_by_names_and_the_first_file_of_a_rank_counts() -> None:
    files = tuple(Source(Path(name), 1) for name in ("rank3.json", "rank3.json.gz", "notes.json", "rank10.json"))
    found = sources_by_rank(Discovery(files, ()))
    assert {rank: source.path.name for rank, source in found.items()} == {3: "rank3.json", 10: "rank10.json"}
