"""`tracelens dry-run`: what a training script would send, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from tracelens.cli.options import StepRange, output_options
from tracelens.cli.output import Format, Output
from tracelens.report.document import make_document
from tracelens.report.table import Column, lay_out
from tracelens.results import Group, Traffic
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, format_bytes, plural

if TYPE_CHECKING:
    from tracelens.capture.traffic import DryRun

_COLUMNS = (
    Column("group", is_name=True),
    Column("primitive", is_name=True),
    Column("dtype", is_name=True),
    Column("phase", is_name=True),
    Column("calls"),
    Column("payload"),
    Column("wire"),
)


class RankList(click.ParamType[tuple[int, ...]]):
    """`0,8,63`."""

    name = "R,R,.."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Text to ranks, in ascending order, each once."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(sorted({int(rank) for rank in value.split(",")}))
        except ValueError:
            self.fail(f"`{value}` is no list of ranks; write 0,8,63", param, ctx)


@click.command("dry-run")
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS...]")
@click.option("--world-size", type=click.IntRange(min=1), required=True, help="Ranks of the pretended job.")
@click.option("--ranks", type=RankList(), default="0", show_default=True, help="The ranks to be, such as 0,8,63.")
@click.option(
    "--steps",
    type=StepRange(needs_last=True),
    default="2",
    show_default=True,
    help="Steps that count, from 0, both ends included; the script ends after the last.",
)
@click.option("--gpus-per-node", type=click.IntRange(min=1), default=8, show_default=True, help="For LOCAL_RANK.")
@click.option(
    "--real-tensors", is_flag=True, help="Compute with values, for small models whose traffic depends on them."
)
@output_options
def command(  # noqa: PLR0913 - click hands over one argument per option
    *,
    script: str,
    arguments: tuple[str, ...],
    world_size: int,
    ranks: tuple[int, ...],
    steps: tuple[int, int],
    gpus_per_node: int,
    real_tensors: bool,
    output: Output,
) -> None:
    """Run a training script, unmodified, as ranks of a job that does not exist, and list what it would send.

    Process groups are fake, CUDA means the CPU, and tensors have neither memory nor values, so that a large
    model at any world size fits a laptop. Needs the extra `torch`.

    Exit codes: 0 fine, 2 the script failed.
    """
    from tracelens.capture.fakeworld import FakeWorld
    from tracelens.capture.script import Script, dry_run_script

    world = FakeWorld(world_size=world_size, rank=0, gpus_per_node=gpus_per_node, fake_tensors=not real_tensors)
    result = dry_run_script(Script(path=script, arguments=arguments, steps=steps), world, ranks)
    for problem in result.measurement.run.problems:
        click.echo(f"{problem.severity}: {problem.message}", err=True)
    output.write(_render_json(result) if output.format is Format.json else _render_text(result))


def _render_json(result: DryRun) -> str:
    """The document of `analyze`, and every single call."""
    document = msgspec.to_builtins(make_document(result.measurement)) | {"calls": result.call_rows()}
    return msgspec.json.format(msgspec.json.encode(document)).decode() + "\n"


def _render_text(result: DryRun) -> str:
    groups = {group.id: group for group in result.groups}
    lines = [f"{plural(result.world_size, 'rank')}, per step:"]
    for rank in result.ranks:
        rows = [row for row in result.traffic if row.ranks == (rank.rank,)]
        lines += ["", f"rank {rank.rank}", *(_table(rows, groups) if rows else ["  nothing is sent"])]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Traffic], groups: dict[str, Group]) -> list[str]:
    return lay_out(_COLUMNS, [_cells(row, groups) for row in rows])


def _cells(row: Traffic, groups: dict[str, Group]) -> list[str]:
    group = groups[row.group or ""]
    label = f"{format_ranks(group.ranks or ())} {'/'.join(group.descriptions)}"
    return [
        label,
        row.primitive,
        row.dtype or UNKNOWN,
        row.phase or UNKNOWN,
        f"{row.calls_per_step.mean:g}",
        format_bytes(row.payload_bytes_per_step),
        format_bytes(row.wire_bytes_per_step),
    ]
