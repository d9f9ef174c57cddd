"""What docs/agents.md tells a program is there: commands, options, keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

from tracelens.cli.main import COMMANDS, cli
from tracelens.report.schema import document_schema

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "agents.md").read_text(encoding="utf-8")
CALLS = sorted(
    set(re.findall(r"`tracelens ([a-z-]+)([^`\n]*)`", PAGE)) | set(re.findall(r"(?m)^tracelens ([a-z-]+)(.*)$", PAGE))
)
SCHEMA = document_schema()
KEYS = re.findall(r"(?m)^\| (`[a-z_.\[\]]+`(?:, `[a-z_.\[\]]+`)*) \|", PAGE.partition("## Keys of the JSON")[2])


@pytest.mark.parametrize(("name", "rest"), CALLS)
def test_commands_and_options_are_there(name: str, rest: str) -> None:
    assert name in COMMANDS
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest)) <= known


def _resolve(node: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that a part of the schema may be, through references, lists and alternatives."""
    if "$ref" in node:
        return _resolve(SCHEMA["$defs"][node["$ref"].rpartition("/")[2]])
    if "items" in node:
        return _resolve(node["items"])
    return [found for option in node["anyOf"] for found in _resolve(option)] if "anyOf" in node else [node]


@pytest.mark.parametrize("key", [key for cell in KEYS for key in re.findall(r"`([^`]+)`", cell)])
def test_keys_are_in_the_schema(key: str) -> None:
    nodes: list[dict[str, Any]] = _resolve(SCHEMA)
    for part in key.replace("[]", "").split("."):
        nodes = [
            found
            for node in nodes
            if part in node.get("properties", {})
            for found in _resolve(node["properties"][part])
        ]
    assert nodes


def test_the_page_names_every_exit_code_and_at_least_these_keys() -> None:
    assert re.findall(r"(?m)^\| (\d) \|", PAGE) == ["0", "1", "2"]
    assert len(KEYS) >= 10
    assert len(CALLS) >= 8
