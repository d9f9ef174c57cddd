"""`tracelens diff`, from files on disk to exit codes."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.traces import write_trace
from tracelens.cli.main import main

Captured = pytest.CaptureFixture[str]
FIXTURE = Path(__file__).resolve().parents[2] / "fixtures" / "fsdp2_tp2"
MODEL = """\
layers = 3
hidden = 4096
heads = 32
kv_heads = 8
ffn = 14336
vocab = 32000
seq_len = 8192
"""
LAYOUT = ["--framework", "torchtitan", "--tp", "2", "--dp", "4", "--option", "loss_chunks=0"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks of the fixture: enough to compare, quick to read."""
    folder = tmp_path_factory.mktemp("traces")
    for rank in (0, 1):
        shutil.copy(FIXTURE / f"rank{rank}_trace.json.gz", folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.toml"
    path.write_text(MODEL, encoding="utf-8")
    return path


def diff(capsys: Captured, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    code = main(["diff", *map(str, arguments), "--jobs", "1", "--no-progress", "--format", "json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document["comparison"]


def test_a_prediction_that_holds_exits_with_zero(traces: Path, model: Path, capsys: Captured) -> None:
    code, comparison = diff(capsys, traces, "--model", model, *LAYOUT, "--option", "trainer_scalars=false")
    assert code == 0
    assert comparison["against"] == "ledger"
    assert (comparison["sizes_from"], comparison["layout_from"]) == ("given", "given")
    assert (comparison["explained_bytes_fraction"], comparison["absent_bytes_fraction"]) == (1.0, 0.0)
    assert comparison["unsized_time_fraction"] == 0.0


def test_a_prediction_that_fails_exits_with_one_and_says_why(traces: Path, model: Path, capsys: Captured) -> None:
    code, comparison = diff(capsys, traces, "--model", model, *LAYOUT, "--grad-dtype", "bf16")
    assert code == 1
    row = comparison["rows"][0]
    assert (row["primitive"], row["dtype"], row["verdict"], row["ratio"]) == ("reduce_scatter", "fp32", "more", 2.0)
    assert row["why"] == "gradients are reduced in fp32, not bf16"
    assert row["example"]["rank"] == 0


def test_with_nothing_given_model_and_layout_are_inferred(traces: Path, capsys: Captured) -> None:
    code, comparison = diff(capsys, traces)
    assert code == 0
    assert (comparison["sizes_from"], comparison["layout_from"]) == ("inferred", "inferred")


def test_two_runs_are_compared_and_one_may_be_a_saved_result(traces: Path, tmp_path: Path, capsys: Captured) -> None:
    saved = tmp_path / "base.json"
    assert main(["analyze", str(traces), "-o", str(saved), "--jobs", "1", "--no-progress"]) == 0
    capsys.readouterr()
    code, comparison = diff(capsys, saved, "--against", traces)
    assert code == 0
    assert comparison["against"] == "run"
    assert {row["verdict"] for row in comparison["rows"]} == {"match"}
    assert saved.stat().st_size < 200_000


def test_text_begins_with_the_fractions_and_shows_reasons(traces: Path, model: Path, capsys: Captured) -> None:
    arguments = ["diff", str(traces), "--model", str(model), *LAYOUT, "--grad-dtype", "bf16"]
    assert main([*arguments, "--jobs", "1", "--no-progress"]) == 1
    text = capsys.readouterr().out
    assert "Predicted against measured\n  explained 61.71 %" in text
    assert "why: gradients are reduced in fp32, not bf16" in text
    assert "look at rank 0, step 3" in text
    assert text.index("Unexplained") < text.index("As predicted")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"schema_version": 99, "tracelens_version": "1"}', "of schema version 99, this is version 1"),
        ('{"schema_version": 1, "tracelens_version": "1"}', "a damaged one"),
        ('{"schema_version": 1, "tracelens_version": "1"', "a damaged one"),
    ],
)
def test_a_saved_result_that_is_broken_is_an_error(
    content: str, told: str, tmp_path: Path, traces: Path, capsys: Captured
) -> None:
    saved = tmp_path / "base.json"
    saved.write_text(content, encoding="utf-8")
    assert main(["diff", str(saved), "--against", str(traces), "--no-progress"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--against", "x.json", "--tp", "2"], "a layout have no part in it"),
        (["--model", "llama3-8c"], "no model preset `llama3-8c`"),
        (["--tp", "4", "--dp", "4"], "= 16, and the trace is of a job of 8 ranks"),
    ],
)
def test_bad_usage_is_told(arguments: list[str], told: str, traces: Path, capsys: Captured) -> None:
    assert main(["diff", str(traces), *arguments, "--jobs", "1", "--no-progress"]) == 2
    assert told in capsys.readouterr().err


def test_a_trace_that_tells_no_sizes_asks_for_a_model(tmp_path: Path, capsys: Captured) -> None:
    trace = write_trace(tmp_path / "rank0.json", rank=0)
    assert main(["diff", str(trace), "--no-progress"]) == 2
    assert "give --model" in capsys.readouterr().err


def test_a_trace_that_tells_its_model_and_layout_needs_no_options_unless_blind(
    tmp_path: Path, capsys: Captured
) -> None:
    # GIVEN a trace whose metadata tells a wrong gradient type: the prediction follows it, and differs
    told = {
        "schema": 1,
        "model": {
            "layers": 3,
            "hidden": 4096,
            "heads": 32,
            "kv_heads": 8,
            "ffn": 14336,
            "vocab": 32000,
            "seq_len": 8192,
        },
        "layout": {"tp": 2, "dp_shard": 4, "framework": "torchtitan", "grad_dtype": "bf16"},
    }
    for rank in (0, 1):
        with gzip.open(FIXTURE / f"rank{rank}_trace.json.gz", "rt") as source:
            trace = json.load(source)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"tracelens": told, **trace}), encoding="utf-8")

    code, comparison = diff(capsys, tmp_path)
    assert (code, comparison["sizes_from"], comparison["layout_from"]) == (1, "metadata", "metadata")
    assert comparison["rows"][0]["why"] == "gradients are reduced in fp32, not bf16"

    code, comparison = diff(capsys, tmp_path, "--blind")
    assert (code, comparison["sizes_from"], comparison["layout_from"]) == (0, "inferred", "inferred")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("5", "5 is 500 %; for 5 % write 0.05"),
        ("1.5", "1.5 is 150 %; for 1.5 % write 0.015"),
        ("-0.1", "-0.1 is no fraction; give one from 0 to 1"),
        ("nan", "nan is no fraction"),
        ("500", "500 is no fraction"),
        ("some", "`some` is no number"),
    ],
)
def test_a_tolerance_is_a_fraction(given: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "any.json", "--tolerance", given]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("given", ["0", "1", "0.05"])
def test_nothing_and_all_are_tolerances(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "any.json", "--tolerance", given]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--tp", "4"), "you gave tp 4, the traffic shows tp 2"),
        (("--pp", "2"), "you gave pp 2, the traffic shows pp 1"),
        (("--dp", "8"), "you gave dp 8, the traffic shows dp 4"),
        (("--framework", "ddp"), "you gave framework ddp, which shards nothing, the traffic shows zero 3"),
        (("--framework", "megatron"), "explains none of the traffic, with framework megatron"),
    ],
)
def test_a_layout_that_fits_no_model_is_held_against_the_traffic(
    given: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(FIXTURE), *given, "--no-progress"]) == 2
    assert told in capsys.readouterr().err


def test_a_wrong_model_stands_beside_what_the_trace_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(FIXTURE), "--model", "llama3-8b", "--no-progress"]) == 1
    first = capsys.readouterr().out.partition("\nrun ")[0].replace("\n  ", " ")
    assert first.startswith("failed: ")
    assert "(the trace shows hidden 4096, 3 layers; llama3-8b has hidden 4096, 32 layers)" in first


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("diff",), "is a saved result, which does not keep the shapes that tell the model"),
        (("summarize", "-o", "out"), "is a saved result, not a trace"),
        (("annotate", "-o", "out.json"), "is a saved result, not a trace"),
    ],
)
def test_what_needs_traces_says_that_a_saved_result_is_none(
    command: tuple[str, ...],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = write_trace(tmp_path / "rank0.json", rank=0)
    assert main(["analyze", str(trace), "-o", "saved.json", "--no-progress"]) == 0
    capsys.readouterr()
    assert main([*command, "saved.json"]) == 2
    error = capsys.readouterr().err
    assert f"`saved.json` {told}" in error
    assert ("--model" in error) is (command[0] == "diff")
