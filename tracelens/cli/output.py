"""Where a result goes: stdout or a file, whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

import click
import msgspec

from tracelens.errors import InputError, TraceLensError, UsageError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a disk that is full or broken answers."""


class Format(StrEnum):
    """What a result is written as."""

    text = "text"
    json = "json"
    html = "html"
    markdown = "markdown"
    junit = "junit"
    github = "github"


PLAIN = (Format.text, Format.json)
"""What every command can write; those that end in a document can write all."""

LEDGER = (*PLAIN, Format.html, Format.markdown)
"""What a ledger can be written as: it has no tests that fail and no lines of a change to point at."""

SUFFIXES = {
    ".txt": Format.text,
    ".json": Format.json,
    ".html": Format.html,
    ".md": Format.markdown,
    ".xml": Format.junit,
}


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Where to write and as what; None as path is stdout."""

    path: Path | None
    format: Format
    force: bool

    @property
    def wants_colour(self) -> bool:
        """Colour is for people at a terminal who did not set NO_COLOR (https://no-color.org)."""
        return self.path is None and is_terminal() and not os.environ.get("NO_COLOR")

    def write(self, text: str) -> None:
        """Write the result, and say on stderr where a file went."""
        if self.path is None:
            write_stdout(text)
            return
        with replacing(self.path, force=self.force) as temporary:
            temporary.write_text(text, encoding="utf-8")
        click.echo(f"Wrote {self.path}", err=True)


def resolve_output(
    path: str | None, format_name: str | None, *, force: bool, formats: Sequence[Format] = PLAIN
) -> Output:
    """Settle path and format before any work is done.

    Args:
        path: the file to write; None or `-` is stdout.
        format_name: what the user asked for, if anything.
        force: whether an existing file may be overwritten.
        formats: what the command can write.

    Raises:
        UsageError: it is a folder, the file exists and `--force` is not given, or its suffix tells no format.
    """
    if path is None or path == "-":
        return Output(path=None, format=Format(format_name or Format.text), force=force)
    file = Path(path)
    refuse_overwrite(file, force=force)
    suffixes = {suffix: kind for suffix, kind in SUFFIXES.items() if kind in formats}
    chosen = Format(format_name) if format_name else suffixes.get(file.suffix.lower())
    if chosen is None:
        hint = f"use {' or '.join(suffixes)}, or give --format"
        other = SUFFIXES.get(file.suffix.lower())
        if other is not None:
            raise UsageError(f"`{file}` would be {other.value}, which this command does not write", hint=hint)
        raise UsageError(f"cannot tell the format of `{file}` by its suffix", hint=hint)
    return Output(path=file, format=chosen, force=force)


def refuse_overwrite(path: Path, *, force: bool) -> None:
    """Refuse an existing regular file unless forced; a device such as /dev/null may always be written.

    Raises:
        UsageError: the file exists, or it is a folder.
    """
    if path.is_dir():
        raise UsageError(f"`{path}` is a folder", hint="name a file")
    if path.is_file() and not force:
        raise UsageError(f"will not overwrite `{path}`", hint="--force overwrites it")


@contextmanager
def replacing(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield a file to write beside `path`, and put it in its place when the block succeeds.

    Whatever happens, nothing half-written stands at `path`, and no other file is left.

    Raises:
        InputError: the folder is missing, or can't be written.
        UsageError: `path` exists and `force` is not given.
    """
    refuse_overwrite(path, force=force)
    target = path.resolve()
    is_device = path.exists() and not path.is_file()
    temporary = path if is_device else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        if not is_device:
            temporary.replace(target)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        if not is_device:
            with suppress(OSError):
                temporary.unlink()


def cannot_write(path: Path, error: OSError) -> TraceLensError:
    """The one message for a place that can't be written."""
    if error.errno == errno.ENOENT and not path.parent.is_dir():
        hint = f"make the folder `{path.parent}` first"
    elif error.errno in NO_ROOM:
        hint = "make room there, or give another place"
    else:
        hint = "give a place that you may write to"
    return InputError(f"cannot write `{path}`: {error.strerror}", hint=hint)


def is_terminal() -> bool:
    """Whether people read stdout as it is written."""
    return sys.stdout is not None and sys.stdout.isatty()


def write_stdout(text: str) -> None:
    """Write to stdout; a reader that closed early, such as `head`, is no error.

    Raises:
        InputError: stdout is closed, or its disk is full or broken.
    """
    if sys.stdout is None:
        raise InputError("cannot write to stdout: it is closed", hint="give -o FILE")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
    except OSError as error:
        raise cannot_write_stdout(error) from error


def cannot_write_stdout(error: OSError) -> TraceLensError:
    """The one message for a stdout that takes no more; nothing is written to it from now on."""
    drop_stdout()
    return InputError(f"cannot write to stdout: {error.strerror}", hint="make room there, or send it elsewhere")


def drop_stdout() -> None:
    """Let what Python flushes at exit go nowhere (Python's `signal` documentation, note on SIGPIPE)."""
    with suppress(OSError, ValueError):  # a stdout without a file, as in a test, has nothing to drop
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
