"""`tracelens schema`: the contract, for programs."""

from __future__ import annotations

import click

from tracelens.cli.output import write_stdout
from tracelens.report.schema import render_schema


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of the JSON document."""
    write_stdout(render_schema())
