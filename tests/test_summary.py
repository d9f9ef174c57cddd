"""A summary is written whole, read back equal, and refused when it is damaged or of another version."""

from __future__ import annotations

import zipfile
from pathlib import Path

import msgspec
import pytest

from tracelens.errors import InputError
from tracelens.measurement.measure import measure
from tracelens.summary import FRAMES, RankSummary
from tracelens.trace.summarize import summarize

TRACE = Path(__file__).resolve().parents[1] / "fixtures" / "handwritten" / "batched_p2p" / "rank0.json"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.tracelens"
    summarize(TRACE).save(path)
    return path


def test_a_saved_summary_gives_the_same_measurement(saved: Path) -> None:
    original, loaded = summarize(TRACE), RankSummary.load(saved)
    assert loaded.head == original.head
    for name in FRAMES:
        assert getattr(loaded, name).equals(getattr(original, name)), name
    assert measure([loaded]) == measure([original])


def test_a_summary_is_read_wherever_a_trace_is(saved: Path) -> None:
    assert summarize(saved).head == summarize(TRACE).head


def test_nothing_half_written_is_left_when_the_place_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't write"):
        summarize(TRACE).save(tmp_path / "missing" / "rank0.tracelens")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_summary_is_refused(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(InputError, match="damaged"):
        RankSummary.load(saved)


def test_an_archive_that_is_no_summary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(InputError, match="no summary"):
        summarize(path)


def test_a_summary_of_another_version_says_what_to_do(saved: Path) -> None:
    rewrite_head(saved, schema_version=99)
    with pytest.raises(InputError) as error:
        RankSummary.load(saved)
    assert "version 99" in error.value.message
    assert "tracelens summarize" in str(error.value.hint)


def rewrite_head(path: Path, **changes: object) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["head.json"] = msgspec.json.encode(msgspec.json.decode(parts["head.json"]) | changes)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
