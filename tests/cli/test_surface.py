"""The commands and their options, frozen: scripts and CI jobs rely on them.

A new name is added here on purpose, with a line in the changelog; a name that goes, or changes, breaks someone.
"""

from __future__ import annotations

import importlib.util

import click
import pytest

from tracelens.cli.main import COMMANDS, cli

READING = {"PATHS", "--jobs", "--no-progress", "--kernels", "--ranks", "--engine", "--cache"}
MEASURING = {"--steps", "--per-rank", "--gpus-per-node", "--link", "--link-across"}
OUTPUT = {"--format", "-o", "--output", "--force"}

LAYOUT = {
    "--tp", "--pp", "--dp", "--cp", "--ep", "--etp", "--zero", "--hsdp-shard", "--no-reshard", "--reshard",
    "--no-sequence-parallel", "--cp-kind", "--vp", "--schedule", "--micro-batch", "--microbatches", "--seq-len",
    "--recompute", "--grad-dtype", "--param-dtype", "--precision", "--optimizer", "--capacity-factor",
    "--layers-per-stage", "--framework", "--option", "--no-flash-attention",
}  # fmt: skip

SURFACE: dict[str, set[str]] = {
    "analyze": READING | MEASURING | OUTPUT | {"--explain", "--blind"},
    "summarize": READING | {"-o", "--output", "--force"},
    "diff": LAYOUT
    | READING
    | MEASURING
    | OUTPUT
    | {"--model", "--world-size", "--against", "--tolerance", "--explain", "--blind"},
    "check": READING | MEASURING | OUTPUT | {"--policy", "--baseline", "--write-policy", "--explain", "--blind"},
    "baseline": READING | MEASURING | {"ACTION", "-o", "--output", "--force"},
    "annotate": {"PATH", "-o", "--output", "--force", "--kernels", "--no-progress"},
    "predict": LAYOUT | OUTPUT | {"--model", "--gpus-per-node", "--world-size", "--stage", "--cluster", "--explain"},
    "crosscheck": READING | OUTPUT,
    "toys": OUTPUT | {"EXERCISE", "--trace"},
    "dry-run": OUTPUT
    | {"SCRIPT", "ARGUMENTS", "--world-size", "--ranks", "--steps", "--gpus-per-node", "--real-tensors"},
    "schema": set(),
}


def _command(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def _names(command: click.Command) -> set[str]:
    names: set[str] = set()
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            names.update([*parameter.opts, *parameter.secondary_opts])
        else:
            names.add((parameter.name or "").upper())
    return names


def test_the_commands_are_these() -> None:
    assert set(COMMANDS) == set(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_the_options_of_a_command_are_these(name: str) -> None:
    assert _names(_command(name)) == SURFACE[name]


@pytest.mark.parametrize("name", SURFACE)
def test_a_command_goes_by_the_name_it_is_listed_under(name: str) -> None:
    assert _command(name).name == name


@pytest.mark.parametrize("name", SURFACE)
def test_every_option_has_a_help_text_and_every_command_says_in_the_list_what_its_own_help_says(
    name: str,
) -> None:
    command = _command(name)
    silent = [
        parameter.name for parameter in command.params if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert silent == []
    assert (command.help or "").startswith(COMMANDS[name][1].rstrip("."))
    # a raw docstring hides click's mark for text that is not to be wrapped, and the help shows it
    assert "\\b" not in (command.help or "")


@pytest.mark.parametrize(("name", "module"), [(name, module) for name, (module, _) in COMMANDS.items()])
def test_a_listed_command_has_a_module(name: str, module: str) -> None:
    assert importlib.util.find_spec(module) is not None
