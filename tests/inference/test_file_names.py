"""Coordinates in file names are hints: they are held against the traffic, which is believed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tracelens.inference.file_names import coordinates_in
from tracelens.inference.infer import infer
from tracelens.trace.summarize import summarize

# tp 2 (innermost) and dp_shard 4
RUN = Path(__file__).resolve().parents[2] / "fixtures" / "fsdp2_tp2"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dp0_pp0_tp1_dcp3_ep0_rank1.1700.pt.trace.json.gz", {"dp": 0, "pp": 0, "tp": 1, "ep": 0}),
        ("1700-TP-0-DP-1-PP-0-EP-3.trace.json.gz", {"tp": 0, "dp": 1, "pp": 0, "ep": 3}),
        ("rank3_trace.json.gz", {}),
        ("http2_step4.json", {}),
    ],
)
def test_coordinates_are_read_as_frameworks_write_them(name: str, told: dict[str, int]) -> None:
    assert coordinates_in(name) == {axis: (place, None) for axis, place in told.items()}


def test_a_size_beside_a_coordinate_is_read_too() -> None:
    assert coordinates_in("actor_rank5-of-8_tp1-of-2_pid12.json.gz") == {"tp": (1, 2)}


def contradictions(tmp_path: Path, names: dict[int, str], *, blind: bool = False) -> list[str]:
    for rank, name in names.items():
        shutil.copy(RUN / f"rank{rank}_trace.json.gz", tmp_path / name)
    found = infer([summarize(tmp_path / name) for name in names.values()], blind=blind)
    assert (found.config.tp, found.config.dp) == (2, 4)
    return [finding.message for finding in found.findings if finding.code == "file-name-contradicted"]


def test_names_that_agree_with_the_traffic_say_nothing(tmp_path: Path) -> None:
    names = {rank: f"dp{rank // 2}_pp0_tp{rank % 2}_rank{rank}.json.gz" for rank in (0, 3)}
    assert contradictions(tmp_path, names) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tp0_rank3.json.gz", "rank 3 is place 1 of tp"),
        ("tp1-of-4_rank3.json.gz", "tp is 2 by the traffic"),
        ("pp1_rank3.json.gz", "pp has 1 place by the traffic"),
    ],
)
def test_names_that_contradict_the_traffic_are_told_and_not_believed(tmp_path: Path, name: str, why: str) -> None:
    (message,) = contradictions(tmp_path, {3: name})
    assert f"`{name}`" in message
    assert why in message
    blind = tmp_path / "blind"
    blind.mkdir()
    assert contradictions(blind, {3: name}, blind=True) == []
