"""The naive reader against truth worked out by hand: a disagreement says that one of the two is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.witness import witness

HANDWRITTEN = Path(__file__).resolve().parents[1] / "fixtures" / "handwritten"


def files_with_numbers() -> list[tuple[Path, dict[str, Any]]]:
    found = []
    for truth_file in sorted(HANDWRITTEN.glob("*/truth.toml")):
        truth = tomllib.loads(truth_file.read_text())
        found += [(truth_file.parent / f["name"], f) for f in truth.get("files", []) if f.get("witness", True)]
    return found


CASES = files_with_numbers()
pytestmark = pytest.mark.parametrize(("path", "truth"), CASES, ids=[f"{p.parent.name}/{p.name}" for p, _ in CASES])
TIMES = ("kernels", "busy_ns", "exposed_ns")


def test_rows_are_those_of_the_truth(path: Path, truth: dict[str, Any]) -> None:
    found = witness(path)["traffic"]
    expected = {(row.get("group"), row["primitive"], row["dtype"]): row for row in truth.get("traffic", [])}
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        given = {word for word in row if word in found[key]}
        expected_row = {word: row[word] for word in given - {"ranks", "peers", "calls_by_step"}}
        assert {word: found[key][word] for word in expected_row} == expected_row, key


def test_ranks_peers_and_steps_are_those_of_the_truth(path: Path, truth: dict[str, Any]) -> None:
    found = witness(path)["traffic"]
    for row in truth.get("traffic", []):
        mine = found[(row.get("group"), row["primitive"], row["dtype"])]
        if "ranks" in row:
            assert mine["ranks"] == tuple(row["ranks"])
        if "rank_range" in row:
            start, stride, size = row["rank_range"]
            assert mine["ranks"] == tuple(range(start, start + stride * size, stride))
        if "peers" in row:
            assert mine["peers"] == set(row["peers"])
        if "calls_by_step" in row:
            assert mine["calls_by_step"] == {int(step): calls for step, calls in row["calls_by_step"].items()}


def test_kernels_of_several_calls_and_of_none(path: Path, truth: dict[str, Any]) -> None:
    found = witness(path)
    shared = {
        (row.get("group"), tuple(sorted(row["primitives"]))): {word: row[word] for word in TIMES}
        for row in truth.get("shared", [])
    }
    assert found["shared"] == shared
    none = {"kernels": 0, "busy_ns": 0, "exposed_ns": 0}
    assert found["unattributed"] == truth.get("unattributed", none)
    if "coverage" in truth:
        assert found["coverage"] == truth["coverage"]


def test_time_budget_and_overlap(path: Path, truth: dict[str, Any]) -> None:
    found = witness(path)
    assert (found["comm_ns"], found["overlap_ns"]) == (truth["comm_ns"], truth["overlap_ns"])
    assert found["comm_overlap_pct"] == truth.get("comm_overlap_pct")
    expected = {row.get("step"): {word: row[word] for word in row if word != "step"} for row in truth["time"]}
    assert found["time"] == expected
    for row in truth["time"]:
        parts = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
        assert row["span_ns"] == sum(row[part] for part in parts)
