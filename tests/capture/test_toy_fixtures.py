"""`analyze` on the committed traces of the exercises, against the truth worked out by hand beside each."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli.main import main

TOYS = Path(__file__).resolve().parents[2] / "fixtures" / "toys"
EXERCISES = sorted(truth.parent.name for truth in TOYS.glob("*/truth.toml"))

Rows = dict[tuple[int, tuple[int, ...], str, str], tuple[float, int, int]]
"""(rank, ranks of the group, primitive, dtype) to (calls, payload bytes, wire bytes) per step."""


@pytest.mark.parametrize("exercise", EXERCISES)
def test_analyze_finds_what_the_exercise_sent(exercise: str, capsys: pytest.CaptureFixture[str]) -> None:
    truth = tomllib.loads((TOYS / exercise / "truth.toml").read_text(encoding="utf-8"))

    assert main(["analyze", str(TOYS / exercise), "--per-rank", "--format", "json", "--no-progress"]) == 0

    assert measured_rows(json.loads(capsys.readouterr().out)) == true_rows(truth)


def true_rows(truth: dict[str, Any]) -> Rows:
    return {
        (rank, tuple(row["group"]), row["primitive"], row["dtype"]): (
            row["calls_per_step"],
            row["payload_bytes_per_step"],
            row["wire_bytes_per_step"],
        )
        for row in truth["traffic"]
        for rank in row["ranks"]
    }


def measured_rows(document: dict[str, Any]) -> Rows:
    """Rows without the phase, which the truth leaves open."""
    groups = {group["id"]: tuple(group["ranks"]) for group in document["groups"]}
    rows: Rows = defaultdict(lambda: (0.0, 0, 0))
    for row in document["traffic"]:
        key = (row["ranks"][0], groups[row["group"]], row["primitive"], row["dtype"])
        calls, payload, wire = rows[key]
        rows[key] = (
            calls + row["calls_per_step"]["mean"],
            payload + row["payload_bytes_per_step"],
            wire + row["wire_bytes_per_step"],
        )
    return dict(rows)
