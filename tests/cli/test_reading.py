"""Which files a command reads: all, a sample, or none twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.traces import write_trace
from tracelens.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four ranks, of which 0 and 1 form the only group that rank 0 knows; and a file that is no trace."""
    for rank in range(4):
        write_trace(tmp_path / "run" / f"rank{rank}.json", rank=rank)
    (tmp_path / "run" / "truth.json").write_text("{}")
    return tmp_path / "run"


def analyze(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["analyze", *arguments, "--format", "json"]) == 0
    run: dict[str, object] = json.loads(capsys.readouterr().out)["run"]
    return run


def test_a_sample_is_read_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = analyze(capsys, str(folder), "--ranks", "sample")
    assert run["ranks"] == [0, 1, 3]
    problems = {p["code"]: p["message"] for p in run["problems"]}  # type: ignore[attr-defined]
    assert problems["ranks-sampled"] == "3 of 4 ranks were read: 0-1,3 (--ranks sample)"
    assert [Path(file["path"]).name for file in run["skipped"]] == ["truth.json"]  # type: ignore[attr-defined]


def test_files_whose_names_tell_no_rank_are_all_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, name in enumerate(("alpha.json", "beta.json")):
        write_trace(tmp_path / name, rank=rank)
    run = analyze(capsys, str(tmp_path), "--ranks", "sample")
    assert run["ranks"] == [0, 1]
    assert "ranks-not-sampled" in {p["code"] for p in run["problems"]}  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_cache_is_filled_and_changes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    cache = tmp_path / "cache"
    plain = analyze(capsys, str(folder))
    if by == "variable":
        monkeypatch.setenv("TRACELENS_CACHE", str(cache))
    options = ["--cache", str(cache)] if by == "option" else []
    first, second = analyze(capsys, str(folder), *options), analyze(capsys, str(folder), *options)
    assert first == second == plain
    assert len(list(cache.rglob("*.tracelens"))) == 4


def test_a_cluster_that_does_not_answer_is_a_usage_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed", reason="needs the extra `cluster`")
    assert main(["analyze", str(folder), "--engine", "nowhere/scheduler.json"]) == 2
    assert "no such scheduler file" in capsys.readouterr().err
