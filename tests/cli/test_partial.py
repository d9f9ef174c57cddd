"""Runs that are known in part: bytes and times of some calls are missing, and every report says so.

Each step has one all-reduce of 1,000,000 bf16 elements in a group of two: a rank sends 2 (n-1)/n = 1 times 2,000,000
bytes, in 200 us of which 100 are exposed (`traces`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.traces import write_steps
from tracelens.cli.main import cli

SENT, BUSY, EXPOSED = 2_000_000, 200_000, 100_000


def run(*args: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*map(str, args), "--no-progress"])
    assert result.exit_code == code, result.output
    return result.stdout


def analyzed(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run("analyze", path, "--format", "json"))
    return document


@pytest.fixture
def unsized(tmp_path: Path) -> Path:
    """Bytes of two steps of three."""
    return write_steps(tmp_path / "unsized" / "rank0.json", steps=3, unsized=[4])


@pytest.fixture
def untimed(tmp_path: Path) -> Path:
    """Times of three steps of six."""
    return write_steps(tmp_path / "untimed" / "rank0.json", steps=6, untimed=[6, 7, 8])


def test_bytes_of_some_calls_are_a_lower_bound_and_so_said_to_a_program(unsized: Path) -> None:
    document = analyzed(unsized)
    (row,), (total,) = document["traffic"], document["group_time"]
    assert (row["calls"], row["calls_with_payload"], row["calls_with_bytes"], row["calls_with_time"]) == (3, 2, 2, 3)
    assert row["payload_bytes_per_step"] == row["wire_bytes_per_step"] == round(2 * SENT / 3)
    assert (row["busy_ns_per_step"], row["sized_busy_ns_per_step"]) == (BUSY, round(2 * BUSY / 3))
    assert (total["calls"], total["calls_with_bytes"], total["calls_with_time"]) == (3, 2, 3)
    assert [(size["from_bytes"], size["calls"], size["calls_with_bytes"]) for size in document["sizes"]] == [
        (SENT, 2, 2),
        (None, 1, 0),
    ]


def test_a_rate_rests_on_the_calls_whose_bytes_are_known(unsized: Path) -> None:
    (row,) = analyzed(unsized)["traffic"]
    assert row["algbw_bytes_per_s"] == row["busbw_bytes_per_s"] == pytest.approx(SENT / (BUSY * 1e-9))


def test_bytes_of_some_calls_are_marked_in_every_report(unsized: Path) -> None:
    bound = "≥ 1.27 MiB"  # 1,333,333 bytes
    text = run("analyze", unsized)
    assert text.count(bound) == 3  # the group, and payload and wire of its row
    markdown, html = (run("analyze", unsized, "--format", name) for name in ("markdown", "html"))
    assert f"**{bound}**" in markdown
    assert "| 1.27 MiB |" not in markdown
    assert f"<strong>{bound}</strong>" in html
    assert html.count(f">{bound}<") == 3  # the tile, and payload and wire of the row


def test_time_without_bytes_is_a_finding_even_where_others_have_some(unsized: Path) -> None:
    (found,) = [one for one in analyzed(unsized)["findings"] if one["code"] == "TL101"]
    assert found["measured"] == pytest.approx(1 / 3, abs=1e-5)


def test_times_of_some_calls_are_a_lower_bound(untimed: Path) -> None:
    document = analyzed(untimed)
    (row,) = document["traffic"]
    assert (row["calls"], row["calls_with_bytes"], row["calls_with_time"]) == (6, 6, 3)
    assert (row["busy_ns_per_step"], row["exposed_ns_per_step"]) == (BUSY // 2, EXPOSED // 2)
    assert [(time["step"], time["comm_ns"], time["untimed_calls"]) for time in document["time"]] == [
        (3, BUSY, 0), (4, BUSY, 0), (5, BUSY, 0), (6, 0, 1), (7, 0, 1), (8, 0, 1)
    ]  # fmt: skip


def test_times_of_some_calls_are_marked_in_every_report(untimed: Path) -> None:
    text = run("analyze", untimed)
    assert "comm ≥ 100 µs" in text
    assert text.count("≥ 0 ns") == 9  # comm, exposed comm and overlap of three steps
    assert "3 calls without a kernel" in " ".join(text.split())
    (group,) = [line for line in text.splitlines() if line.startswith("dp_replicate") or line.startswith("world")]
    assert group.endswith("≥ 100 µs  ≥ 50.0 µs")
    markdown, html = (run("analyze", untimed, "--format", name) for name in ("markdown", "html"))
    assert "| ≥ 100 µs | ≥ 50.0 µs |" in markdown
    assert html.count(">≥ 100 µs<") == 2  # the row of traffic, and that of its size
    assert "of ≥ 100 µs" in html  # the tile of hidden communication


def test_a_rank_without_times_makes_the_mean_over_ranks_a_lower_bound(tmp_path: Path) -> None:
    write_steps(tmp_path / "rank0.json", rank=0, steps=3, untimed=[3, 4, 5])
    write_steps(tmp_path / "rank1.json", rank=1, steps=3)
    (row,) = analyzed(tmp_path)["traffic"]
    assert (row["ranks"], row["calls"], row["calls_with_time"]) == ([0, 1], 6, 3)
    assert row["busy_ns_per_step"] == BUSY // 2
    assert "≥ 100 µs" in run("analyze", tmp_path)


def test_nothing_is_marked_where_all_is_known(tmp_path: Path) -> None:
    path = write_steps(tmp_path / "rank0.json", steps=3)
    assert all("≥" not in run("analyze", path, "--format", name) for name in ("text", "markdown", "html"))


def test_the_known_half_of_the_time_is_not_faster(tmp_path: Path, untimed: Path) -> None:
    whole = write_steps(tmp_path / "whole" / "rank0.json", steps=6)
    comparison = json.loads(run("diff", whole, "--against", untimed, "--format", "json"))["comparison"]
    assert {row["time_verdict"] for row in comparison["rows"]} == {"not_enough_data"}
    assert {row["candidate_lacks_time"] for row in comparison["rows"]} == {True}
    verdicts = {metric["name"]: metric["verdict"] for metric in comparison["metrics"]}
    assert (verdicts["comm"], verdicts["exposed_comm"], verdicts["idle"]) == ("not_enough_data",) * 3
    text = run("diff", whole, "--against", untimed)
    assert "200 µs → ≥ 100 µs" in text
    assert "faster" not in text


def test_bytes_that_one_run_does_not_tell_are_not_less(tmp_path: Path, unsized: Path) -> None:
    whole = write_steps(tmp_path / "whole" / "rank0.json", steps=3)
    for base, candidate in ((whole, unsized), (unsized, whole)):
        comparison = json.loads(run("diff", base, "--against", candidate, "--format", "json"))["comparison"]
        (row,) = comparison["rows"]  # and none by size: calls that tell none may be of any
        assert (row["verdict"], row["ratio"]) == ("match", None)
        assert row["base_lacks_bytes"] is (base == unsized)
        assert "1 of 3 calls" in "".join(comparison["notes"])
    text = run("diff", whole, "--against", unsized)
    assert "1.91 MiB → ≥ 1.27 MiB" in text
    assert "unchanged 100.00 % of the bytes that are known" in text
    markdown = run("diff", whole, "--against", unsized, "--format", "markdown")
    assert "100.00 % of the bytes that are known unchanged" in markdown
    assert "1.91 MiB → ≥ 1.27 MiB" in markdown


def test_a_limit_on_what_is_known_in_part_is_not_checked(tmp_path: Path, unsized: Path, untimed: Path) -> None:
    policy, limits = tmp_path / "policy.toml", {}
    for name, path, steps in (("bytes", unsized, 3), ("time", untimed, 6)):
        whole = write_steps(tmp_path / f"whole-{name}" / "rank0.json", steps=steps)
        run("baseline", "write", whole, "-o", tmp_path / f"{name}.json")
        policy.write_text(
            f'schema_version = 1\n[reference]\nbaseline = "{name}.json"\n[limits]\nexposed_comm_fraction = 0.9\n'
        )
        told = json.loads(run("check", path, "--policy", policy, "--format", "json"))["limits"]
        limits[name] = {one["name"].split(":")[0]: one["verdict"] for one in told}
    assert (limits["bytes"]["calls"], limits["bytes"]["bytes"]) == ("kept", "not_checked")
    assert (limits["time"]["bytes"], limits["time"]["limits.exposed_comm_fraction"]) == ("kept", "not_checked")
