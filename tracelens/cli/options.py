"""Options that commands share, each group of them handed to the command as one struct."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import click
import msgspec

from tracelens.cli.output import LEDGER, PLAIN, Format, resolve_output
from tracelens.units import refuse_fraction

F = TypeVar("F", bound=Callable[..., Any])


class StepRange(click.ParamType[tuple[int, int | None]]):
    """`3:5`, both ends included; `3:` and `:5`, open at an end; or one step `3`."""

    name = "FIRST:LAST"

    def __init__(self, *, needs_last: bool = False) -> None:
        self.needs_last = needs_last

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int | None]:
        """Text to (first, last); None as last where it is open."""
        if isinstance(value, tuple):
            return value
        first, colon, last = value.partition(":")
        try:
            steps = (int(first or 0), int(last) if last else None if colon else int(first))
        except ValueError:
            steps = (-1, None)
        if steps[0] < 0 or value == ":":
            self.fail(f"`{value}` is no range of steps; write 3:5, 3: or :5, or 3 for one step", param, ctx)
        if steps[1] is not None and steps[1] < steps[0]:
            self.fail(f"`{value}` ends before it begins", param, ctx)
        if steps[1] is None and self.needs_last:
            self.fail(f"`{value}` does not say the last step", param, ctx)
        return steps


class Fraction(click.ParamType[float]):
    """A part of a whole, from 0 to 1."""

    name = "FRACTION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Text to a number."""
        try:
            number = float(value)
        except ValueError:
            self.fail(f"`{value}` is no number", param, ctx)
        why = refuse_fraction(number)
        if why is not None:
            self.fail(why, param, ctx)
        return number


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, and how."""

    paths: tuple[str, ...]
    jobs: int
    progress: bool
    kernels: str | None = None
    """File with communication kernels that the user knows."""
    ranks: Literal["all", "sample"] = "all"
    engine: str | None = None
    """Address or scheduler file of a cluster; None for this machine."""
    cache: str | None = None
    """Folder in which summaries are kept."""


class Measuring(msgspec.Struct, frozen=True, kw_only=True):
    """What of it to measure."""

    steps: tuple[int, int | None] | None
    per_rank: bool
    gpus_per_node: int | None
    links: dict[str, float] = {}
    """Line rates `inside` and `across` nodes, bytes/s per GPU and direction, where they are given."""


def reading_options(function: F) -> F:
    """Add PATH..., --jobs, --no-progress, --kernels, --ranks, --engine and --cache, as the argument `reading`."""

    @click.argument("paths", nargs=-1, required=True, metavar="PATH...")
    @click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=usable_cores,
        show_default="the cores of this machine",
        help="Files to read at the same time.",
    )
    @click.option("--no-progress", is_flag=True, help="Draw no progress bar.")
    @click.option("--kernels", metavar="FILE.toml", help="Communication kernels of yours, beside the known ones.")
    @click.option(
        "--ranks",
        type=click.Choice(["all", "sample"]),
        default="all",
        show_default=True,
        help="Read all ranks, or as few as tell the layout.",
    )
    @click.option(
        "--engine",
        metavar="ADDRESS",
        help="Read on a Dask cluster: tcp://host:8786 or its scheduler.json (extra `cluster`).",
    )
    @click.option(
        "--cache",
        metavar="DIR",
        envvar="TRACELENS_CACHE",
        help="Keep summaries here, and read none twice (or TRACELENS_CACHE).",
    )
    @functools.wraps(function)
    def wrapper(*, no_progress: bool, **options: Any) -> Any:
        mine = {name: options.pop(name) for name in ("paths", "jobs", "kernels", "ranks", "engine", "cache")}
        return function(reading=Reading(progress=not no_progress, **mine), **options)

    return wrapper  # type: ignore[return-value]


def usable_cores() -> int:
    """Cores that this process may use, which a container or a Slurm job makes fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measuring_options(function: F) -> F:
    """Add --steps, --per-rank, --gpus-per-node, --link and --link-across, as the argument `measuring`."""

    @click.option("--steps", type=StepRange(), help="Only these steps, both ends included: 3:5, 3: or :5.")
    @click.option("--per-rank", is_flag=True, help="One row per rank, and every row shown.")
    @click.option(
        "--gpus-per-node",
        type=click.IntRange(min=1),
        show_default="from host names, else 8",
        help="GPUs in a node, to tell which groups cross nodes.",
    )
    @click.option(
        "--link",
        "inside",
        type=click.FloatRange(min=0, min_open=True),
        metavar="GB/S",
        show_default="as the GPU is sold",
        help="Line rate inside a node, per GPU and direction, 10^9 bytes a second.",
    )
    @click.option(
        "--link-across",
        "across",
        type=click.FloatRange(min=0, min_open=True),
        metavar="GB/S",
        help="The same between nodes: 50 for one 400 Gb/s card per GPU.",
    )
    @functools.wraps(function)
    def wrapper(*, inside: float | None, across: float | None, **options: Any) -> Any:
        mine = {name: options.pop(name) for name in ("steps", "per_rank", "gpus_per_node")}
        given = {"inside": inside, "across": across}
        links = {place: rate * 1e9 for place, rate in given.items() if rate is not None}
        return function(measuring=Measuring(links=links, **mine), **options)

    return wrapper  # type: ignore[return-value]


def output_options(function: F) -> F:
    """Add --format, -o/--output and --force, as the argument `output`: text or JSON."""
    return _output_options(function, PLAIN)


def ledger_options(function: F) -> F:
    """Add the same for a command that ends in a ledger: also a page and a comment."""
    return _output_options(function, LEDGER)


def report_options(function: F) -> F:
    """Add the same for a command that ends in a document: all formats."""
    return _output_options(function, tuple(Format))


def _output_options(function: F, formats: Sequence[Format]) -> F:
    @click.option(
        "--format",
        "format_name",
        type=click.Choice([str(member) for member in formats]),
        show_default="by the suffix of the output file, else text",
        help="What to write.",
    )
    @click.option("-o", "--output", "output_path", metavar="FILE", help="Write here instead of to stdout.")
    @click.option("--force", is_flag=True, help="Overwrite an existing file.")
    @functools.wraps(function)
    def wrapper(*, format_name: str | None, output_path: str | None, force: bool, **rest: Any) -> Any:
        return function(output=resolve_output(output_path, format_name, force=force, formats=formats), **rest)

    return wrapper  # type: ignore[return-value]


explain_option = click.option("--explain", is_flag=True, help="Show what every number rests on, and every row.")

blind_option = click.option(
    "--blind", is_flag=True, help="Let no name of a group, label or annotation count when the layout is worked out."
)
