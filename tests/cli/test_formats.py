"""Every format from the command line: by suffix and by name, and refused where a command has no document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.traces import write_trace
from tests.report.judged import HOSTILE
from tracelens.cli.main import main

FORMATS = {"text": ".txt", "json": ".json", "html": ".html", "markdown": ".md", "junit": ".xml"}
BEGINS = {
    "text": "run ",
    "json": "{\n",
    "html": "<!doctype html>",
    "markdown": "## TraceLens",
    "junit": "<?xml",
    "github": "::",
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "traces" / "rank0.json", rank=0)


@pytest.mark.parametrize("kind", BEGINS)
def test_a_format_is_chosen_by_name(kind: str, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(trace), "--format", kind, "--no-progress"]) == 0
    assert capsys.readouterr().out.lstrip().startswith(BEGINS[kind])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format_is_chosen_by_suffix_and_no_file_is_lost(
    kind: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / f"report{FORMATS[kind]}"
    arguments = ["analyze", str(trace), "-o", str(report), "--no-progress"]
    assert main(arguments) == 0
    assert report.read_text().startswith(BEGINS[kind])
    report.write_text("mine")
    assert main(arguments) == 2
    assert "will not overwrite" in capsys.readouterr().err
    assert report.read_text() == "mine"
    assert main([*arguments[:3], str(tmp_path / "nowhere" / report.name)]) == 2
    assert "make the folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["crosscheck", "x"], ["toys", "tp"], ["dry-run", "x.py", "--world-size", "2"]])
def test_a_command_without_a_document_writes_no_page(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "-o", str(tmp_path / "report.html")]) == 2
    assert "use .txt or .json" in capsys.readouterr().err
    assert main([*command, "--format", "html"]) == 2
    assert "'text', 'json'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", BEGINS)
def test_names_of_a_trace_reach_every_format_as_text(
    kind: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a trace whose kernel, group and GPU are called by what every format would obey
    name = HOSTILE.replace("\ud800", "")
    content = json.loads(trace.read_text())
    content["distributedInfo"]["pg_config"][0]["pg_desc"] = name
    content["deviceProperties"][0]["name"] = name
    content["traceEvents"].append(
        {**content["traceEvents"][-1], "name": f"ncclDevKernel_{name}", "args": {"device": 0}}
    )
    trace.write_text(json.dumps(content))

    # THEN nothing of it is a control character, a command of a CI runner, or a tag
    assert main(["analyze", str(trace), "--format", kind, "--no-progress", "--explain"]) == 0
    out = capsys.readouterr().out
    assert [char for char in out if not char.isprintable() and char not in "\n\u2060"] == []
    assert "<script>alert" not in out or kind in ("text", "json", "github")
    if kind == "json":
        assert name in json.loads(out)["groups"][0]["descriptions"]
    if kind != "github":
        assert [line for line in out.splitlines() if line.lstrip().startswith("::") or "##[" in line] == []
