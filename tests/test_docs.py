"""What the documents promise is there: the README's report, the numbers, the commands, the links."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.golden import assert_golden
from tests.json_reference import render_reference
from tracelens.cli.main import COMMANDS, cli, main
from tracelens.report.schema import document_schema

CHECKOUT = Path(__file__).resolve().parents[1]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{p.name}" for p in (CHECKOUT / "docs").glob("*.md")),
]


def _fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_the_report_of_the_readme_is_how_its_command_begins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    folder = _fenced("sh")[0].split()[-1]
    assert main(["analyze", folder]) == 0
    begins, found, _ = capsys.readouterr().out.partition("\n\nTime budget")
    assert found
    assert_golden(README.replace(_fenced("text")[0], f"{begins}\n"), CHECKOUT / "README.md")


def test_the_readme_has_exactly_two_commands() -> None:
    commands = _fenced("sh")
    assert [command.count("\n") for command in commands] == [1, 1]
    assert "tracelens analyze fixtures/" in commands[0]
    assert commands[1].endswith("-m pytest\n")


def test_the_reference_of_the_json_is_current() -> None:
    assert_golden(render_reference(document_schema()), CHECKOUT / "docs" / "json.md")


@pytest.mark.parametrize("name", ["Run", "Coverage", "Group", "Traffic", "GroupTime", "StepTime", "Overlap"])
def test_every_number_is_defined(name: str) -> None:
    text = (CHECKOUT / "docs" / "numbers.md").read_text(encoding="utf-8")
    assert set(document_schema()["$defs"][name]["properties"]) - set(re.findall(r"`([a-z_]+)`", text)) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    assert f"## `tracelens {name}" in (CHECKOUT / "docs" / "commands.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["analyze", "summarize", "schema"])
def test_every_option_is_documented(name: str) -> None:
    page = (CHECKOUT / "docs" / "commands.md").read_text(encoding="utf-8")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [option for param in command.params if isinstance(param, click.Option) for option in param.opts]
    assert [option for option in options if not re.search(rf"`{option}[` ]", page)] == []


def test_the_examples_in_python_run_and_print_what_the_trace_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (CHECKOUT / "docs" / "python.md").read_text(encoding="utf-8")
    (tmp_path / "fixtures").symlink_to(CHECKOUT / "fixtures")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert re.search(r"^reduce_scatter fp32 5\.0 \d+ \d+$", capsys.readouterr().out, flags=re.MULTILINE)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_somewhere(name: str) -> None:
    document = CHECKOUT / name
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    broken = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert broken == []
