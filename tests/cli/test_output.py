"""Where results go: whole or not at all, and never over a file that nobody gave up."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tracelens.cli.output import Format, cannot_write, replacing, resolve_output
from tracelens.errors import InputError, UsageError


@pytest.mark.parametrize(
    ("name", "format_name", "expected"),
    [
        ("report.json", None, Format.json),
        ("report.TXT", None, Format.text),
        ("report.json", "text", Format.text),
        ("report.out", "json", Format.json),
    ],
)
def test_the_format_follows_the_suffix_unless_it_is_given(
    name: str, format_name: str | None, expected: Format, tmp_path: Path
) -> None:
    assert resolve_output(str(tmp_path / name), format_name, force=False).format is expected


@pytest.mark.parametrize("path", [None, "-"])
def test_stdout_gets_text_unless_a_format_is_given(path: str | None) -> None:
    assert resolve_output(path, None, force=False).format is Format.text
    assert resolve_output(path, "json", force=False).format is Format.json
    assert resolve_output(path, None, force=False).path is None


def test_a_suffix_that_tells_no_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"report\.xml") as caught:
        resolve_output(str(tmp_path / "report.xml"), None, force=False)
    assert caught.value.hint == "use .txt or .json, or give --format"


def test_an_existing_file_is_refused_before_any_work_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("mine")
    with pytest.raises(UsageError, match="will not overwrite") as caught:
        resolve_output(str(file), None, force=False)
    assert caught.value.hint == "--force overwrites it"
    assert file.read_text() == "mine"


def test_force_overwrites_and_says_where_the_result_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    file.write_text("mine")
    resolve_output(str(file), None, force=True).write("theirs")
    assert file.read_text() == "theirs"
    assert capsys.readouterr() == ("", f"Wrote {file}\n")
    assert list(tmp_path.iterdir()) == [file]


def _write_half(file: Path, error: type[BaseException]) -> None:
    with replacing(file, force=True) as temporary:
        temporary.write_text("ne")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_write_that_is_cut_off_leaves_the_old_file_and_no_other(error: type[BaseException], tmp_path: Path) -> None:
    # GIVEN a file and a write that is cut off half way
    file = tmp_path / "report.json"
    file.write_text("old")
    with pytest.raises(error):
        _write_half(file, error)

    # THEN the old file stands, alone
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_folder_is_named_with_the_way_out(tmp_path: Path) -> None:
    target = tmp_path / "absent" / "report.json"
    with pytest.raises(InputError, match="cannot write") as caught:
        resolve_output(str(target), None, force=False).write("text")
    assert caught.value.hint == f"make the folder `{target.parent}` first"


@pytest.mark.parametrize("format_name", ["json", None])
def test_a_folder_is_no_file_to_write(format_name: str | None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        resolve_output(str(tmp_path), format_name, force=True)


def test_a_device_is_written_in_place() -> None:
    resolve_output("/dev/null", "text", force=False).write("gone")
    assert not Path("/dev/null").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_takes_no_more_is_told_as_a_file_is() -> None:
    with pytest.raises(InputError, match="cannot write `/dev/full`: No space left on device") as caught:
        resolve_output("/dev/full", "text", force=False).write("gone")
    assert caught.value.hint == "make room there, or give another place"
    assert Path("/dev/full").exists()


def test_a_link_stays_a_link_to_the_written_file(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    resolve_output(str(link), None, force=True).write("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_place_that_can_not_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    denied = cannot_write(tmp_path / "report.json", PermissionError(errno.EACCES, "Permission denied"))
    assert (denied.message, denied.hint) == (
        f"cannot write `{tmp_path / 'report.json'}`: Permission denied",
        "give a place that you may write to",
    )
