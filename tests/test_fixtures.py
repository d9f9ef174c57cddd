"""The traces that the project made are what their sources write, and each says what is true of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
HANDWRITTEN = FIXTURES / "handwritten"
CASES = sorted(folder.name for folder in HANDWRITTEN.iterdir())


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("handwritten")
    subprocess.run([sys.executable, FIXTURES / "handwrite.py", "-o", folder], check=True)
    return folder


def test_every_handwritten_case_has_its_source(rewritten: Path) -> None:
    assert sorted(folder.name for folder in rewritten.iterdir()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_handwritten_traces_are_what_their_source_writes(case: str, rewritten: Path) -> None:
    written = {path.name: path.read_bytes() for path in (rewritten / case).iterdir()}
    kept = {p.name: p.read_bytes() for p in (HANDWRITTEN / case).iterdir() if p.name != "truth.toml"}
    assert kept == written


@pytest.mark.parametrize("case", CASES)
def test_every_file_has_numbers_or_an_expected_refusal(case: str) -> None:
    truth = tomllib.loads((HANDWRITTEN / case / "truth.toml").read_text())
    assert truth["what"]
    if truth.get("expect", {}).get("outcome") == "refused":
        assert truth["expect"]["exit_code"] == 2
        return
    traces = {path.name for path in (HANDWRITTEN / case).iterdir()} - {"truth.toml"}
    assert {file["name"] for file in truth["files"]} == traces


@pytest.mark.parametrize("case", [case for case in CASES if "fault_2" not in case])
def test_handwritten_traces_are_valid_json_unless_that_is_the_fault(case: str) -> None:
    for path in (HANDWRITTEN / case).glob("*.json"):
        assert json.loads(path.read_text())["traceEvents"]
