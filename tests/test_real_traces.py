"""Real traces, recomputed from their raw JSON by a reader that shares no code with the package: equal to the ns."""

from __future__ import annotations

import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.recount import recount
from tests.witness import witness
from tracelens.measurement.measure import measure
from tracelens.summary import RankSummary
from tracelens.trace.summarize import summarize

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
RECORDED = ("nanogpt_sharded_dp8", "resnet_ddp2_a100", "resnet_ddp8_mi300x", "megatron_tp2", "moe_ep2_b200")


def _files(pattern: str) -> list[Path]:
    return sorted(TRACES.glob(f"{pattern}/*.json.gz"))


RECORDED_FILES = [path for folder in RECORDED for path in _files(folder)]
FRAMEWORK_FILES = _files("framework/*")


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"


def _parametrize(files: list[Path]) -> pytest.MarkDecorator:
    missing = pytest.mark.skip(reason="no real traces in ../shared/traces")
    if not files:
        return pytest.mark.parametrize("path", [pytest.param(TRACES, marks=missing)])
    return pytest.mark.parametrize("path", files, ids=map(_name, files))


both = _parametrize(RECORDED_FILES + FRAMEWORK_FILES)


@cache
def _summary(path: Path) -> RankSummary:
    return summarize(path)


@cache
def _witness(path: Path) -> dict[str, Any]:
    return witness(path)


@both
def test_calls_bytes_kernels_busy_and_exposed_time_per_group_and_primitive(path: Path) -> None:
    raw, ours = _witness(path), recount(_summary(path))
    assert ours["traffic"] == raw["traffic"]
    assert ours["shared"] == raw["shared"]
    assert ours["unattributed"] == raw["unattributed"]
    assert ours["coverage"] == raw["coverage"]


@both
def test_overlap_and_the_time_budget_of_every_step(path: Path) -> None:
    raw, ours = _witness(path), recount(_summary(path))
    assert {key: ours[key] for key in ("comm_ns", "overlap_ns", "time")} == {
        key: raw[key] for key in ("comm_ns", "overlap_ns", "time")
    }


@_parametrize(RECORDED_FILES + [path for path in FRAMEWORK_FILES if path.name == "rank0.json.gz"])
def test_what_is_measured_is_what_was_recomputed(path: Path) -> None:
    raw, measured = _witness(path), measure([_summary(path)], per_rank=True)
    assert [entry.comm_overlap_pct for entry in measured.overlap] == [raw["comm_overlap_pct"]]
    steps = {row.step: {key: getattr(row, key) for key in raw["time"][row.step]} for row in measured.time}
    assert steps == raw["time"]
    used = len(_summary(path).head.steps)
    calls: dict[tuple[str, str | None], int] = {}
    for row in measured.traffic:
        if row.calls_with_bytes is not None:
            key = (row.primitive.value, row.dtype)
            calls[key] = calls.get(key, 0) + round(row.calls_per_step.mean * used)
    expected: dict[tuple[str, str | None], int] = {}
    for (_, primitive, dtype), row in raw["traffic"].items():
        key = ("other" if primitive == "barrier" else primitive, dtype)
        expected[key] = expected.get(key, 0) + sum(row["calls_by_step"].values())
    assert calls == {key: count for key, count in expected.items() if count}


@_parametrize(FRAMEWORK_FILES)
def test_framework_traces_hold_what_the_framework_sent(path: Path) -> None:
    truth = json.loads((path.parent / "truth.json").read_text())
    rank = path.name.removeprefix("rank").removesuffix(".json.gz")
    expected = {
        (name, primitive): tuple(total[key] for key in ("calls", "payload_bytes", "sent_bytes_exact_splits"))
        for name, group in truth["ranks"][rank]["groups"].items()
        for primitive, total in group["totals"].items()
    }
    assert _per_step(_summary(path), truth["steps_in_trace"]) == {
        key: tuple(pytest.approx(value, rel=1e-9) for value in row) for key, row in expected.items()
    }


def _per_step(summary: RankSummary, steps: int) -> dict[tuple[str | None, str], tuple[float, ...]]:
    """Calls, payload and wire bytes per step, by the name of the process group and the primitive."""
    names = [None if index is None else summary.head.groups[index].name for index in summary.calls["group"]]
    sums = (
        summary.calls.with_columns(name=pl.Series(names, dtype=pl.String))
        .filter(pl.col("step").is_not_null())
        .group_by("name", "primitive")
        .agg(pl.len(), pl.col("payload_bytes").sum(), pl.col("wire_bytes").sum())
    )
    return {
        (name, primitive): tuple(float(Fraction(value) / steps) for value in row)
        for name, primitive, *row in sums.iter_rows()
    }


def test_all_framework_cases_are_there(shared_traces: Path) -> None:
    truths = sorted((shared_traces / "framework").glob("*/truth.json"))
    assert len(truths) == 14
    rows = [
        primitive
        for truth in truths
        for path in truth.parent.glob("rank*.json.gz")
        for group in json.loads(truth.read_text())["ranks"][path.name[4:-8]]["groups"].values()
        for primitive in group["totals"]
    ]
    assert len(rows) == 390
