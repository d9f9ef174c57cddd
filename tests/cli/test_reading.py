"""Which files a command reads: all, a sample, or none twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tracelens
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


FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STRANGERS = (
    "toys/pp",  # four ranks on gloo
    "handwritten/symptom_U9_bubble_hides_in_send_recv",  # a pipeline of two
    "handwritten/uneven_all_to_all",  # ranks 1 and 3 of 8, expert groups
    "handwritten/fault_44_some_ranks_only",  # ranks 0 and 5 of 8, at the same step
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The eight ranks of one job alone, and the same with ranks of four others before and after them."""
    folder = tmp_path_factory.mktemp("jobs")
    for place, stranger in enumerate(STRANGERS):
        shutil.copytree(FIXTURES / stranger, folder / "all" / f"{place % 2 * 2}_{place}")
    for whole in ("alone", "all"):
        shutil.copytree(FIXTURES / "fsdp2_tp2", folder / whole / "1")
    return folder / "alone", folder / "all"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """A command's exit code and JSON, but for what it says of the files."""
    code = main([*arguments, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    for name in ("files", "problems", "skipped"):
        document["run"].pop(name)
    return code, document


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("analyze", []),
        ("analyze", ["--blind", "--per-rank"]),
        ("check", ["--policy", "{policy}"]),
        ("diff", ["--tp", "2", "--dp", "4"]),
    ],
    ids=["analyze", "blind", "check", "diff"],
)
def test_every_command_sees_the_one_job_that_is_measured(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, options: list[str]
) -> None:
    policy = tmp_path / "tracelens.toml"
    if command == "check":
        assert main(["check", str(folders[0]), "--write-policy", str(policy)]) == 0
    options = [option.format(policy=policy) for option in options]
    alone, among = (told(capsys, command, str(folder), *options) for folder in folders)
    assert among == alone


def test_a_page_shows_the_timeline_of_the_job_that_is_measured(folders: tuple[Path, Path], tmp_path: Path) -> None:
    def lanes(folder: Path) -> int:
        assert main(["analyze", str(folder), "--format", "html", "-o", str(tmp_path / f"{folder.name}.html")]) == 0
        return (tmp_path / f"{folder.name}.html").read_text().count("<svg")

    alone, among = map(lanes, folders)
    assert among == alone > 0


def test_python_infers_from_what_it_measures(folders: tuple[Path, Path]) -> None:
    alone, among = ([tracelens.summarize(p) for p in sorted(f.rglob("*.json*"))] for f in folders)
    found = tracelens.infer(among)
    assert "several-jobs" in [finding.code for finding in found.findings]
    assert (found.config, found.evidence) == (tracelens.infer(alone).config, tracelens.infer(alone).evidence)
    assert found.config.hidden == 4096  # truth.toml
    assert tracelens.measure(among).traffic == tracelens.measure(alone).traffic


def test_summaries_are_made_of_every_job(folders: tuple[Path, Path], tmp_path: Path) -> None:
    assert main(["summarize", str(folders[1]), "-o", str(tmp_path)]) == 0
    traces = list(folders[1].rglob("*.json*"))
    assert len(list(tmp_path.rglob("*.tracelens"))) == len(traces) > 8
