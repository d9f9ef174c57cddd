"""The command `tracelens`: the list of commands, and the one place where errors become exit codes.

0 fine; 1 findings over a limit, or a number that differs; 2 bad input, bad usage, or a fault of our own;
130 interrupted; 143 terminated. As of a shell: 128 and the number of the signal.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from tracelens import __version__
from tracelens.errors import TraceLensError, UsageError
from tracelens.interrupts import Terminated, heed_termination

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

# Each command is a module with a click command named `command`; it is imported when it runs, and no sooner.
COMMANDS: dict[str, tuple[str, str]] = {
    "analyze": ("tracelens.cli.analyze", "Read traces and report what was communicated."),
    "summarize": ("tracelens.cli.summarize", "Turn traces into small summary files."),
    "diff": ("tracelens.cli.diff", "Hold what was measured against a prediction, or against another run."),
    "check": ("tracelens.cli.check", "Hold a run against the limits of a policy, for a CI job."),
    "baseline": ("tracelens.cli.baseline", "Write, or update, the baseline that `check` holds runs against."),
    "annotate": ("tracelens.cli.annotate", "Copy a trace with a track per axis, for Perfetto."),
    "predict": ("tracelens.cli.predict", "Say what a model under a layout sends, holds and waits for, with no trace."),
    "crosscheck": (
        "tracelens.cli.crosscheck",
        "Compare our numbers with HolisticTraceAnalysis' on the same files.",
    ),
    "toys": ("tracelens.cli.toys", "Run parallel algorithms on four gloo processes and compare them."),
    "dry-run": ("tracelens.cli.dry_run", "Run a training script, unmodified, as ranks of a job that does not exist."),
    "schema": ("tracelens.cli.schema", "Print the JSON Schema of the JSON document."),
}


class _Stopped(BaseException):
    """Ctrl-C or SIGTERM, in a form that click leaves alone."""

    def __init__(self, *, by: KeyboardInterrupt) -> None:
        super().__init__()
        self.by = by


class LazyGroup(click.Group):
    """A group that knows its commands by name and help, and imports one only to run it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an interrupt comes out as `_Stopped`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise _Stopped(by=interrupt) from interrupt

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names.

        Raises:
            UsageError: for a name that is none, with the one that is near.
        """
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from tracelens.fields import nearest

            raise UsageError(f"no such command `{args[0]}`", hint=nearest(args[0], tuple(COMMANDS)))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands from our own one-liners."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tracelens")
def cli() -> None:
    """Say what every byte on the wire of a distributed PyTorch job is for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; errors go to stderr."""
    _tolerate_narrow_encodings()
    try:
        with heed_termination():
            return _run(arguments)
    except _Stopped as stopped:
        return _tell_end(stopped.by)
    except KeyboardInterrupt as interrupt:
        return _tell_end(interrupt)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = cli.main(arguments, prog_name="tracelens", standalone_mode=False)
    except TraceLensError as error:
        _tell(error.message, error.hint)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return EXIT_ERROR
    except click.UsageError as error:
        _tell(error.format_message().rstrip("."), _usage_hint(error))
        return EXIT_ERROR
    except click.ClickException as error:
        _tell(error.format_message(), None)
        return EXIT_ERROR
    except OSError as error:
        return _tell_full(error)
    except Exception as error:
        interrupt = _interrupt_behind(error)
        if interrupt is not None:
            raise interrupt from error
        return _report_crash()
    return result if isinstance(result, int) else 0


def _interrupt_behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt that an error was made of: Python wraps whatever is raised while a class is built (3.11)."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def _tolerate_narrow_encodings() -> None:
    """Let a terminal that can't show `µ` show an escape instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _tell_full(error: OSError) -> int:
    """Help and version are written by click, and a full disk is no fault of ours; any other error was ours to catch."""
    from tracelens.cli.output import NO_ROOM, cannot_write_stdout  # not before an error

    if error.errno not in NO_ROOM:
        return _report_crash()
    told = cannot_write_stdout(error)
    _tell(told.message, told.hint)
    return told.exit_code


def _tell_end(interrupt: KeyboardInterrupt) -> int:
    is_terminated = isinstance(interrupt, Terminated)
    with contextlib.suppress(OSError):
        # a terminal has just echoed ^C
        lead = "\n" if sys.stderr.isatty() and not is_terminated else ""
        click.echo(lead + ("terminated" if is_terminated else "interrupted"), err=True)
    return EXIT_TERMINATED if is_terminated else EXIT_INTERRUPTED


def _tell(message: str, hint: str | None) -> None:
    from tracelens.report.table import as_text  # not before an error: it loads rich

    told = f"error: {message}" + (f"\n\nhint: {hint}" if hint else "")
    # messages carry paths and names of traces
    with contextlib.suppress(OSError):  # where stderr can't be written, the exit code has to do
        click.echo("\n".join(as_text(line) for line in told.split("\n")), err=True)


def _usage_hint(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "tracelens"
    return f"{command} --help"


def _report_crash() -> int:
    traceback.print_exc()
    _tell(
        f"this is a fault of tracelens {__version__}, not of your input",
        "please report it with the lines above and the command that you ran",
    )
    return EXIT_ERROR
