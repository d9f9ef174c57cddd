"""`tracelens crosscheck`: the table, the document, the exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.crosscheck.conftest import hta
from tests.crosscheck.traces import ALL_REDUCE, GEMM, kernel, launch, step, write_trace
from tracelens.cli.main import main

Captured = pytest.CaptureFixture[str]
__all__ = ["hta"]


def write_two_steps(path: Path) -> Path:
    """An all-reduce half hidden in step 3, and wholly hidden in step 4, which HTA drops."""
    return write_trace(
        path,
        *(step(3, 0, 1000), step(4, 1000, 1000)),
        *(launch(1, 10), launch(2, 20), launch(3, 1010), launch(4, 1020)),
        *(kernel(GEMM, 100, 100, 1), kernel(ALL_REDUCE, 150, 100, 2, stream=20)),
        *(kernel(GEMM, 1100, 200, 3), kernel(ALL_REDUCE, 1100, 100, 4, stream=20)),
    )


def test_without_the_extra_it_says_which(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hta", None)
    monkeypatch.delitem(sys.modules, "hta.trace_analysis", raising=False)
    assert main(["crosscheck", str(write_two_steps(tmp_path / "a.json"))]) == 2
    expected = 'error: crosscheck needs the extra `hta`\n\nhint: in the clone: pip install ".[hta]"\n'
    assert capsys.readouterr() == ("", expected)


@pytest.mark.hta
@pytest.mark.usefixtures("hta")
class TestCrosscheck:
    def test_the_table_shows_both_numbers_and_what_lies_between_them(self, tmp_path: Path, capsys: Captured) -> None:
        path = write_two_steps(tmp_path / "a.json")
        assert main(["crosscheck", str(path), "--jobs", "1"]) == 0
        out, err = capsys.readouterr()
        lines = [" ".join(line.split()) for line in out.splitlines()]
        assert err == ""
        assert lines[2] == f"{path}, rank 0"
        assert "communication overlapped % 75.00 50.00 explained last-step 50.00" in lines
        assert "last-step: HTA drops what the last profiler step launched, unless told to keep it" in lines
        assert lines[-1].endswith("0 unexplained")
        assert max(map(len, out.splitlines())) <= 100

    def test_a_trace_on_which_hta_fails_is_said_to_be_one(self, tmp_path: Path, capsys: Captured) -> None:
        path = write_trace(tmp_path / "a.json", step(3, 0, 100), launch(1, 10))
        assert main(["crosscheck", str(path), "--jobs", "1"]) == 0
        out = capsys.readouterr().out
        assert "HTA fails on this file: " in out
        assert out.endswith("0 numbers of 1 file: 0 equal, 0 explained, 0 unexplained; HTA fails on 1\n")

    def test_the_document_holds_every_figure(self, tmp_path: Path, capsys: Captured) -> None:
        path = write_two_steps(tmp_path / "a.json")
        assert main(["crosscheck", str(path), "--jobs", "1", "--format", "json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["schema_version"], document["unexplained"]) == (1, 0)
        [file] = document["files"]
        assert (file["path"], file["rank"], file["hta_error"]) == (str(path), 0, None)
        assert file["rows"][0] == {
            "figure": "communication overlapped %",
            "ours": 75.0,
            "hta": 50.0,
            "verdict": "explained",
            "steps": [{"fault": "last-step", "value": 50.0}],
        }
        assert "last-step" in document["faults"]

    def test_kernels_that_the_user_names_communicate_for_us_and_compute_for_hta(
        self, tmp_path: Path, capsys: Captured
    ) -> None:
        table = tmp_path / "kernels.toml"
        table.write_text('[[kernel]]\npattern = "my_exchange"\nlibrary = "ours"\n')
        path = write_trace(
            tmp_path / "a.json",
            *(launch(1, 10), launch(2, 20), kernel("my_exchange", 100, 200, 1), kernel(GEMM, 200, 100, 2)),
        )
        assert main(["crosscheck", str(path), "--kernels", str(table)]) == 0
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert "communication overlapped % 50.00 - explained names-only -" in lines

    def test_a_summary_will_do_while_its_trace_is_there(self, tmp_path: Path, capsys: Captured) -> None:
        path = write_two_steps(tmp_path / "a.json")
        assert main(["summarize", str(path), "-o", str(tmp_path / "out"), "--jobs", "1"]) == 0
        summary = str(tmp_path / "out" / "a.tracelens")
        assert main(["crosscheck", summary]) == 0
        path.unlink()
        capsys.readouterr()
        assert main(["crosscheck", summary]) == 2
        assert "no such file" in capsys.readouterr().err

    def test_an_unexplained_difference_is_exit_code_1(
        self, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tracelens.crosscheck import faults

        monkeypatch.delitem(faults._FAULTS, faults.Fault.last_step)
        assert main(["crosscheck", str(write_two_steps(tmp_path / "a.json"))]) == 1
        assert "UNEXPLAINED" in capsys.readouterr().out
