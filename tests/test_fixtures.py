"""The traces that the project made are what their sources write, and what each says of itself is true."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.witness import witness

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
HANDWRITTEN = FIXTURES / "handwritten"
CASES = sorted(folder.name for folder in HANDWRITTEN.iterdir())


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("handwritten")
    subprocess.run([sys.executable, FIXTURES / "handwrite.py", "-o", folder], check=True)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "truth.toml")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_every_handwritten_case_has_its_source(rewritten: Path) -> None:
    assert sorted(folder.name for folder in rewritten.iterdir()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_handwritten_traces_are_what_their_source_writes(case: str, rewritten: Path) -> None:
    assert contents(HANDWRITTEN / case) == contents(rewritten / case)


@pytest.mark.parametrize("case", CASES)
def test_every_file_has_numbers_or_an_expected_refusal(case: str) -> None:
    truth = tomllib.loads((HANDWRITTEN / case / "truth.toml").read_text())
    assert truth["what"]
    if truth.get("expect", {}).get("outcome") == "refused":
        assert truth["expect"]["exit_code"] == 2
        return
    skipped = set(truth.get("expect", {}).get("skipped", []))
    assert {file["name"] for file in truth["files"]} | skipped == contents(HANDWRITTEN / case).keys()


BROKEN = ("fault_20", "fault_21", "fault_22", "broken_")


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith(BROKEN)])
def test_handwritten_traces_are_valid_json_unless_that_is_the_fault(case: str) -> None:
    for path in (HANDWRITTEN / case).glob("**/*trace.json"):
        assert json.loads(path.read_text())["traceEvents"]


GENERATED = {
    "fsdp8": ["--layers", "2", "--hidden", "1024", "--ffn", "2816"],
    "ddp8": ["--layers", "2", "--hidden", "1024", "--bucket-mb", "10", "--torch", "2.4"],
    "hsdp": ["--layers", "2", "--torch", "2.6", "--ranks", "0,9"],
    "fsdp_tp": ["--layers", "2", "--older", "2", "--clock-offset", "400"],
    "tp4_sp_dp2": ["--layers", "1", "--micro-batches", "2", "--torch", "2.13"],
    "pp4_1f1b": ["--layers", "4", "--micro-batches", "6", "--compression", "none", "--ranks", "0,3,6"],
    "ep8_moe": ["--layers", "2", "--torch", "2.12"],
    "cp4_ring": ["--layers", "2", "--first-step", "7"],
}
ROW = ("calls", "kernels", "payload_bytes", "wire_bytes", "busy_ns", "exposed_ns")


def generate(case: str, folder: Path, *options: str) -> dict[str, Any]:
    subprocess.run([sys.executable, FIXTURES / "generate.py", case, "-o", folder, *options], check=True)
    return tomllib.loads((folder / "truth.toml").read_text())


def assert_witness_agrees(folder: Path, file: dict[str, Any]) -> None:
    found = witness(folder / file["name"])
    rows = {(row["group"], row["primitive"], row["dtype"]): row for row in file["traffic"]}
    assert {key: [found["traffic"][key][word] for word in ROW] for key in found["traffic"]} == {
        key: [row[word] for word in ROW] for key, row in rows.items()
    }
    times = {row["step"]: {word: row[word] for word in row if word != "step"} for row in file["time"]}
    assert found["time"] == times
    assert sum(row["busy_ns"] for row in file.get("shared", [])) == sum(
        row["busy_ns"] for row in found["shared"].values()
    )
    assert {word: found[word] for word in ("comm_ns", "overlap_ns", "unattributed")} == {
        word: file[word] for word in ("comm_ns", "overlap_ns", "unattributed")
    }


@pytest.mark.parametrize("case", GENERATED)
def test_generated_traces_hold_what_their_schedule_says(case: str, tmp_path: Path) -> None:
    truth = generate(case, tmp_path, *GENERATED[case])
    for file in truth["files"]:
        assert_witness_agrees(tmp_path, file)


def test_the_committed_run_holds_what_its_schedule_says() -> None:
    folder = FIXTURES / "fsdp2_tp2"
    for file in tomllib.loads((folder / "truth.toml").read_text())["files"]:
        assert_witness_agrees(folder, file)
        assert (folder / file["name"]).stat().st_size < 60_000


def test_counts_follow_from_the_layout(tmp_path: Path) -> None:
    """FSDP2 gathers L + 2 units forward, L + 1 backward; Megatron's layer has 6 gathers and 4 scatters."""
    layers, micro_batches, steps = 3, 2, 2
    options = ["--layers", str(layers), "--micro-batches", str(micro_batches), "--ranks", "0"]
    fsdp = generate("fsdp8", tmp_path / "fsdp", *options)["files"][0]
    megatron = generate("tp4_sp_dp2", tmp_path / "megatron", *options)["files"][0]

    def calls(file: dict[str, Any], primitive: str, description: str) -> int:
        rows = [r for r in file["traffic"] if r["primitive"] == primitive and r["description"] == description]
        return sum(row["calls"] for row in rows)

    assert calls(fsdp, "all_gather", "default_pg") == steps * (2 * layers + 3)
    assert calls(fsdp, "reduce_scatter", "default_pg") == steps * (layers + 2)
    tp = "TENSOR_MODEL_PARALLEL_GROUP"
    assert calls(megatron, "all_gather", tp) == steps * micro_batches * (6 * layers + 3)
    assert calls(megatron, "reduce_scatter", tp) == steps * micro_batches * (4 * layers + 2)


def test_a_big_trace_is_its_step_again_and_again(tmp_path: Path) -> None:
    truth = generate("big", tmp_path, "--layers", "2", "--size-mb", "2")
    file = truth["files"][0]
    found = witness(tmp_path / file["name"])
    for row in file["traffic"]:
        mine = found["traffic"][(row["group"], row["primitive"], row["dtype"])]
        assert [mine[word] for word in ROW] == [row[word] for word in ROW]
    assert len(found["time"]) == truth["steps"] > 2
    assert all(found["time"][step] == file["every_step"] for step in range(truth["steps"] - 1))
