"""Whatever stands in a run, no line of a report for the terminal is wider than a hundred columns."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from rich.cells import cell_len

from tracelens.cli.main import main
from tracelens.ledger.layout import Framework
from tracelens.report.table import WIDTH

Captured = pytest.CaptureFixture[str]
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
HANDWRITTEN = sorted(path for path in (FIXTURES / "handwritten").iterdir() if not path.name.startswith("broken_"))
LAYOUTS = ("mg_pp4_1f1b_tp2", "mg_tp4sp_dp2", "hsdp_4x16", "fsdp2_8", "ep8_dropless", "cp4_allgather_dp2")


def too_wide(capsys: Captured, *arguments: str | Path) -> list[str]:
    capsys.readouterr()
    main([*map(str, arguments), *(() if arguments[0] == "predict" else ("--no-progress",))])
    return [line for line in capsys.readouterr().out.splitlines() if cell_len(line) > WIDTH]


@pytest.mark.parametrize("case", HANDWRITTEN, ids=lambda path: path.name)
def test_the_report_of_every_run_fits(case: Path, capsys: Captured) -> None:
    assert too_wide(capsys, "analyze", case, "--explain", "--per-rank", "--jobs", "1") == []


def test_every_run_beside_every_other_fits(shared_traces: Path, tmp_path: Path, capsys: Captured) -> None:
    traces = [*(shared_traces / "framework" / name for name in LAYOUTS), shared_traces / "nanogpt_sharded_dp8"]
    saved = []
    for path in [*traces, FIXTURES / "fsdp2_tp2"]:
        saved.append(tmp_path / f"{path.name}.json")
        main(["analyze", str(path), "-o", str(saved[-1]), "--no-progress"])
        assert too_wide(capsys, "analyze", saved[-1], "--explain", "--per-rank") == []
    for base, candidate in permutations(saved, 2):
        assert too_wide(capsys, "diff", base, "--against", candidate, "--per-rank") == []


@pytest.mark.parametrize("framework", [*Framework])
@pytest.mark.parametrize("model", ["llama3-405b", "gpt2", "deepseek-v3", "qwen3-235b-a22b"])
@pytest.mark.parametrize(
    "layout",
    [
        ["--tp", "2", "--dp", "2", "--pp", "2"],
        ["--tp", "4", "--dp", "64", "--pp", "4", "--cp", "2"],
        ["--dp", "16", "--hsdp-shard", "4"],
        ["--dp", "64", "--ep", "8"],
    ],
    ids="".join,
)
def test_the_ledger_of_every_layout_fits(framework: str, model: str, layout: list[str], capsys: Captured) -> None:
    """Those that the framework can't have are refused; what is said then fits no matter what."""
    assert too_wide(capsys, "predict", "--model", model, "--framework", framework, *layout) == []
