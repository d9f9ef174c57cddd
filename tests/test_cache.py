"""The cache of summaries: by content, whole or absent, whoever writes it and whoever is killed."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.cli.traces import write_trace
from tracelens.cache import SummaryCache
from tracelens.summary import FRAMES, SUFFIX, RankSummary
from tracelens.trace import summarize as module
from tracelens.trace.kernels import Family
from tracelens.trace.summarize import summarize


def entries(cache: SummaryCache) -> list[Path]:
    return sorted(cache.folder.rglob(f"*{SUFFIX}"))


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("the trace was read again")

    monkeypatch.setattr(module, "Reader", read)


def assert_equal(one: RankSummary, other: RankSummary) -> None:
    assert one.head == other.head
    assert all(getattr(one, name).equals(getattr(other, name)) for name in FRAMES)


def test_a_trace_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, trace = SummaryCache(tmp_path / "cache"), write_trace(tmp_path / "rank0.json", rank=0)
    first = cache.summarize(trace)
    forbid_reading(monkeypatch)
    assert_equal(cache.summarize(trace), first)
    assert len(entries(cache)) == 1


def test_a_moved_trace_is_the_same_under_its_new_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, trace = SummaryCache(tmp_path / "cache"), write_trace(tmp_path / "rank0.json", rank=0)
    cache.summarize(trace)
    moved = tmp_path / "elsewhere" / "rank0.json"
    moved.parent.mkdir()
    trace.rename(moved)
    expected = summarize(moved)
    forbid_reading(monkeypatch)
    assert_equal(cache.summarize(moved), expected)


def test_another_content_another_rank_in_the_name_and_other_kernels_are_another_entry(tmp_path: Path) -> None:
    cache = SummaryCache(tmp_path / "cache")
    trace = write_trace(tmp_path / "rank0.json", rank=0)
    cache.summarize(trace)
    write_trace(trace, rank=1)
    assert cache.summarize(trace).rank == 1
    again = tmp_path / "rank7.json"
    again.write_bytes(trace.read_bytes())
    cache.summarize(again)
    cache.summarize(trace, kernels=(Family("mine", re.compile("nvjet"), None),))
    assert len(entries(cache)) == 4


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 and then nothing", b"no archive"])
def test_a_damaged_entry_counts_as_absent_and_is_made_again(tmp_path: Path, damage: bytes) -> None:
    cache, trace = SummaryCache(tmp_path / "cache"), write_trace(tmp_path / "rank0.json", rank=0)
    expected = cache.summarize(trace)
    [entry] = entries(cache)
    entry.write_bytes(damage)
    assert_equal(cache.summarize(trace), expected)
    assert_equal(RankSummary.load(entry), expected)


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    cache, trace = SummaryCache(tmp_path / "cache"), write_trace(tmp_path / "rank0.json", rank=0)
    assert cache.summarize(trace).rank == 0


def fill_again_and_again(folder: Path, trace: Path) -> None:
    """Remove the entry and make it anew without end."""
    cache = SummaryCache(folder)
    while True:
        cache.summarize(trace)
        for entry in entries(cache):
            entry.unlink(missing_ok=True)


def test_writers_at_once_and_killed_ones_leave_whole_entries_only(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "rank0.json", rank=0)
    folder = tmp_path / "cache"
    expected = summarize(trace)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=fill_again_and_again, args=(folder, trace), daemon=True) for _ in range(2)]
    for writer in writers:
        writer.start()
    seen = 0
    deadline = time.monotonic() + 60
    while seen < 30 and time.monotonic() < deadline:
        for entry in folder.rglob(f"*{SUFFIX}"):
            try:
                data = entry.read_bytes()
            except FileNotFoundError:
                continue
            assert_equal(RankSummary.from_bytes(data), expected)
            seen += 1
    for writer in writers:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    assert seen, "no entry was ever seen"
    assert_equal(SummaryCache(folder).summarize(trace), expected)


def test_what_killed_writers_left_is_swept_once_it_is_old(tmp_path: Path) -> None:
    cache, trace = SummaryCache(tmp_path / "cache"), write_trace(tmp_path / "rank0.json", rank=0)
    cache.summarize(trace)
    [entry] = entries(cache)
    old, young = entry.with_name(".a.1.x.tmp"), entry.with_name(".b.2.y.tmp")
    for draft in (old, young):
        draft.write_bytes(b"half")
    os.utime(old, (0, 0))
    entry.unlink()
    cache.summarize(trace)
    assert (old.exists(), young.exists(), entry.exists()) == (False, True, True)
