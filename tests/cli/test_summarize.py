"""`tracelens summarize`: a summary file per trace, named so that none is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.traces import write_trace
from tracelens.cli.main import main
from tracelens.cli.summarize import plan_targets
from tracelens.summary import RankSummary

Captured = pytest.CaptureFixture[str]


def test_a_summary_is_written_for_each_trace_and_its_name_printed(tmp_path: Path, capsys: Captured) -> None:
    # GIVEN two ranks
    traces = [write_trace(tmp_path / "traces" / f"rank{rank}.json", rank=rank) for rank in (0, 1)]
    out = tmp_path / "summaries"

    # WHEN their folder is summarised
    assert main(["summarize", str(traces[0].parent), "-o", str(out), "--jobs", "1"]) == 0

    # THEN two summaries stand in the new folder, and nothing else
    targets = [out / "rank0.tracelens", out / "rank1.tracelens"]
    assert sorted(out.iterdir()) == targets
    assert capsys.readouterr().out.splitlines() == [str(target) for target in targets]
    assert [RankSummary.load(target).rank for target in targets] == [0, 1]


def test_a_name_that_is_an_escape_is_text_on_stderr(tmp_path: Path, capsys: Captured) -> None:
    write_trace(tmp_path / "rank0.json", rank=0)
    (tmp_path / "\x1b[2Jrank1.json").write_text("{")
    assert main(["summarize", str(tmp_path), "-o", str(tmp_path / "out"), "--jobs", "1"]) == 0
    err = capsys.readouterr().err
    assert "[2Jrank1.json" in err
    assert "\x1b" not in err


def test_an_existing_summary_is_refused_before_any_work(tmp_path: Path, capsys: Captured) -> None:
    trace = write_trace(tmp_path / "rank0.json", rank=0)
    target = tmp_path / "rank0.tracelens"
    target.write_text("mine")
    assert main(["summarize", str(trace), "-o", str(tmp_path)]) == 2
    assert "will not overwrite" in capsys.readouterr().err
    assert target.read_text() == "mine"
    assert main(["summarize", str(trace), "-o", str(tmp_path), "--force"]) == 0
    assert RankSummary.load(target).rank == 0


def test_what_can_not_be_read_is_named_on_stderr_and_the_rest_is_written(tmp_path: Path, capsys: Captured) -> None:
    write_trace(tmp_path / "traces" / "rank0.json", rank=0)
    (tmp_path / "traces" / "notes.json").write_text('{"title": "no trace"}')
    assert main(["summarize", str(tmp_path / "traces"), "-o", str(tmp_path / "out"), "--jobs", "1"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'out' / 'rank0.tracelens'}\n"
    assert "skipped: " in err
    assert "notes.json" in err


def test_a_sample_of_the_ranks_is_written_under_the_names_of_its_own_traces(tmp_path: Path, capsys: Captured) -> None:
    # GIVEN ranks whose files stand in another order than the sample reads them in
    folder = tmp_path / "traces"
    for rank, name in ((0, "z_rank0.json"), (1, "a_rank1.json")):
        write_trace(folder / name, rank=rank)
    assert main(["summarize", str(folder), "-o", str(tmp_path / "out"), "--ranks", "sample", "--jobs", "1"]) == 0

    # THEN every summary is of the rank that its name says
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert written
    assert all(RankSummary.load(path).rank == int(path.stem[-1]) for path in written)


def test_a_path_that_is_a_file_can_not_be_the_folder(tmp_path: Path, capsys: Captured) -> None:
    trace = write_trace(tmp_path / "rank0.json", rank=0)
    assert main(["summarize", str(trace), "-o", str(trace)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_folders_of_iterations_are_kept_apart() -> None:
    paths = [Path(f"/run/iteration_{step}/rank0_trace.json.gz") for step in (10, 20)]
    assert plan_targets(paths, Path("out")) == [
        Path("out/iteration_10/rank0_trace.tracelens"),
        Path("out/iteration_20/rank0_trace.tracelens"),
    ]


def test_one_folder_needs_no_folder_below() -> None:
    paths = [Path("/run/rank0.json"), Path("/run/host_12.3456.pt.trace.json.gz"), Path("/run/a.tracelens")]
    assert [path.name for path in plan_targets(paths, Path("out"))] == [
        "rank0.tracelens",
        "host_12.3456.tracelens",
        "a.tracelens",
    ]


def test_files_that_differ_in_their_suffix_only_keep_it() -> None:
    paths = [Path("/run/rank0.json"), Path("/run/rank0.json.gz")]
    assert plan_targets(paths, Path("out")) == [
        Path("out/rank0.json.tracelens"),
        Path("out/rank0.json.gz.tracelens"),
    ]
