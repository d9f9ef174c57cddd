"""Traces opened in HTA for its own analyses."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import zstandard

from tests.crosscheck.traces import ALL_REDUCE, GEMM, kernel, launch, step, write_trace
from tracelens.crosscheck import open_hta
from tracelens.errors import InputError, MissingExtraError, UsageError
from tracelens.trace.summarize import summarize


def write_rank(path: Path, rank: int | None) -> Path:
    return write_trace(
        path,
        *(step(3, 0, 1000), launch(1, 10), launch(2, 20)),
        *(kernel(GEMM, 100, 200, 1), kernel(ALL_REDUCE, 200, 200, 2, stream=20)),
        rank=rank,
    )


def test_without_the_extra_the_message_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hta", None)
    monkeypatch.delitem(sys.modules, "hta.trace_analysis", raising=False)
    with pytest.raises(MissingExtraError, match="extra `hta`") as caught:
        open_hta([write_rank(tmp_path / "a.json", 0)])
    assert caught.value.hint == 'in the clone: pip install ".[hta]"'


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    write_rank(tmp_path / "a.json", 4)
    write_rank(tmp_path / "b.json", 4)
    with pytest.raises(UsageError, match="both of rank 4"):
        open_hta([tmp_path])


@pytest.mark.hta
@pytest.mark.usefixtures("hta")
class TestOpened:
    def test_files_stand_under_the_ranks_that_they_tell(self, tmp_path: Path) -> None:
        write_rank(tmp_path / "a.json", 4)
        write_rank(tmp_path / "b.json", None)  # tells none: the lowest free number
        write_rank(tmp_path / "c.json", 0)
        analysis = open_hta([tmp_path])
        assert {rank: Path(file).name for rank, file in analysis.t.trace_files.items()} == {
            0: "c.json",
            1: "b.json",
            4: "a.json",
        }

    def test_its_other_analyses_run_on_them(self, tmp_path: Path) -> None:
        analysis = open_hta([write_rank(tmp_path / "a.json", 0)])
        idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
        assert set(idle["stream"]) == {7, 20}

    def test_a_file_that_hta_would_not_accept_is_copied_for_as_long_as_it_is_open(self, tmp_path: Path) -> None:
        # GIVEN a trace compressed with zstd
        plain = write_rank(tmp_path / "plain.json", 0)
        packed = tmp_path / "rank0.json.zst"
        packed.write_bytes(zstandard.compress(plain.read_bytes()))

        # WHEN it is opened
        analysis = open_hta([packed])

        # THEN HTA has a copy, which goes with it
        copy = Path(analysis.t.trace_files[0])
        assert copy.read_bytes() == plain.read_bytes()
        del analysis
        gc.collect()
        assert not copy.exists()

    def test_the_last_step_is_kept_where_that_is_asked_for(self, tmp_path: Path) -> None:
        path = write_trace(
            tmp_path / "a.json",
            *(step(3, 0, 1000), step(4, 1000, 1000), launch(1, 10), launch(2, 1010)),
            *(kernel(GEMM, 100, 200, 1), kernel(GEMM, 1100, 200, 2)),
        )
        kept = open_hta([path], include_last_profiler_step=True).get_temporal_breakdown(visualize=False)
        dropped = open_hta([path]).get_temporal_breakdown(visualize=False)
        assert (kept["compute_time(us)"].tolist(), dropped["compute_time(us)"].tolist()) == ([400], [200])

    def test_it_writes_nothing_to_the_terminal(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        open_hta([write_rank(tmp_path / "a.json", 0), write_rank(tmp_path / "b.json", 1)])
        assert capfd.readouterr() == ("", "")

    def test_a_summary_is_refused(self, tmp_path: Path) -> None:
        summarize(write_rank(tmp_path / "a.json", 0)).save(tmp_path / "a.tracelens")
        with pytest.raises(InputError, match="HTA reads traces only"):
            open_hta([tmp_path / "a.tracelens"])
