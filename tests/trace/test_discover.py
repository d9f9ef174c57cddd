"""Paths as people give them: files, folders, globs, with strangers among the traces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracelens.errors import InputError
from tracelens.trace.discover import discover, rank_from_name


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")


def names(paths: list[str | Path]) -> list[str]:
    return [source.path.name for source in discover(paths).sources]


def test_a_folder_is_searched_with_its_sub_folders_in_the_order_of_numbers(tmp_path: Path) -> None:
    touch(tmp_path, "it_20/rank0.json", "it_3/rank10.json", "it_3/rank2.json.gz", "it_3/rank1.json.zst")
    found = [str(Path(str(source.path)).relative_to(tmp_path)) for source in discover([tmp_path]).sources]
    assert found == ["it_3/rank1.json.zst", "it_3/rank2.json.gz", "it_3/rank10.json", "it_20/rank0.json"]


def test_a_glob_finds_what_it_matches(tmp_path: Path) -> None:
    touch(tmp_path, "a/rank0.json", "b/rank0.json", "b/rank1.json")
    assert names([str(tmp_path / "*" / "rank0.json")]) == ["rank0.json", "rank0.json"]


def test_a_name_with_brackets_is_a_file_before_it_is_a_glob(tmp_path: Path) -> None:
    touch(tmp_path, "exp[llama2-7b]-rank[3].json")
    assert names([tmp_path / "exp[llama2-7b]-rank[3].json"]) == ["exp[llama2-7b]-rank[3].json"]


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    touch(tmp_path, "rank0.json")
    assert names([tmp_path, tmp_path / "rank0.json"]) == ["rank0.json"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("merged-1700.trace.json.gz", "merged"),
        ("host_async_llm.json", "front-end"),
        ("chakra/rank-0.json.gz", "chakra"),
        ("rank0_et.json", "chakra"),
        ("rank0.json.tmp", "did not finish"),
        ("rank0_stacks.txt", "not a trace"),
        ("step_10/000001_step_10.pickle", "not a trace"),
    ],
)
def test_strangers_in_a_folder_are_left_out_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    touch(tmp_path, "rank0_trace.json", name)
    discovery = discover([tmp_path])
    assert [source.path.name for source in discovery.sources] == ["rank0_trace.json"]
    assert why in discovery.skipped[0].why


def test_a_file_named_by_the_user_is_read_whatever_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "merged.txt")
    assert names([tmp_path / "merged.txt"]) == ["merged.txt"]


def test_a_path_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        discover([tmp_path / "nowhere"])


def test_a_pipe_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(InputError, match=r"rank0\.json` is a pipe or a device"):
        discover([tmp_path / "rank0.json"])


def test_an_empty_path_is_an_error_and_not_this_folder() -> None:
    with pytest.raises(InputError, match="a path is empty"):
        discover([""])


def test_a_folder_without_traces_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")
    with pytest.raises(InputError, match="no traces in"):
        discover([tmp_path])


# Names as frameworks write them.
RANKS = {
    "rank3_trace.json.gz": 3,  # torchtitan
    "rank-12.json.gz": 12,  # Megatron-LM
    "profile_3.json": 3,  # accelerate
    "worker0_step_12.1694128201545.pt.trace.json.gz": 0,
    "dp0_pp0_tp1_dcp0_ep0_rank5.1700.pt.trace.json.gz": 5,  # vLLM
    "actor_step3_rank5-of-8_tp0-of-2_pid12_17.json.gz": 5,  # verl
    "rollout-replica0-globalrank4_1.json.gz": 4,
    "primus-megatron-exp[llama2-70b]-rank[3].json": 3,
    "trace-rank-0.json": 0,  # TensorRT-LLM
    "trace_node02_5.json": 5,
    "gpu-host_1234.1700000000.pt.trace.json": None,  # tensorboard handler: a process, not a rank
    "1700-TP-0.trace.json.gz": None,  # SGLang: a coordinate is no rank
    "iteration_10.json": None,
    "bare_list_2021.json": None,
    "crank5.json": None,
}


@pytest.mark.parametrize(("name", "rank"), RANKS.items())
def test_the_rank_in_a_name(name: str, rank: int | None) -> None:
    assert rank_from_name(name) == rank
