"""A trace copied event by event, with events of ours in front; never more than a piece of it in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import zstandard
from isal import igzip

from tracelens.annotate.events import CATEGORY
from tracelens.errors import Problem, UsageError
from tracelens.trace.decode import Reader
from tracelens.trace.remote import Location
from tracelens.trace.salvage import BROKEN, mend, without_nan

_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"\\]{1,64})"')
_OURS = re.compile(rb'"cat"\s*:\s*"' + CATEGORY.encode() + rb'"')
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])

SUFFIXES = (".json", ".json.gz", ".json.zst")


class _TextReader(Reader):
    """The reader with its ways of dealing with damage, but events and heads stay the text that they are."""

    def __init__(self, path: Location) -> None:
        super().__init__(path)
        self.head_texts: list[bytes] = []

    @property
    def is_bare_list(self) -> bool:
        """Whether the file is a list of events without an object around it."""
        return self._cutter.is_bare_list

    def _decode_many(self, data: bytes) -> Sequence[msgspec.Raw]:  # type: ignore[override]
        return _EVENTS.decode(b"".join((b"[", data, b"]")))

    def _keep_head(self, text: bytes, offset: int) -> None:
        super()._keep_head(text, offset)
        self.head_texts.append(_valid_object(text))


def _valid_object(text: bytes) -> bytes:
    """The inside of an object, mended where it is broken; nothing where it can't be."""
    for candidate in (text, without_nan(text), mend(text)):
        try:
            _OBJECT.decode(candidate)
        except BROKEN:
            continue
        return candidate.strip()[1:-1].strip()
    return b""


def copy_trace(
    path: Location, out: BinaryIO, make_events: Callable[[str], Iterable[bytes]]
) -> tuple[int, tuple[Problem, ...]]:
    """Copy a trace with more events in front of its own.

    Args:
        path: a trace, plain or compressed, also a damaged one: what the reader can read of it is copied.
        out: takes the JSON text.
        make_events: the events to add, given the key that the trace's own events begin with.

    Returns:
        How many events were copied, and what was odd or lost.

    Raises:
        InputError: the file can't be read as a trace.
        UsageError: it was annotated before.
    """
    reader = _TextReader(path)
    separator: bytes | None = None
    for batch in reader:
        if not batch:
            continue
        text = b",\n".join(batch)  # type: ignore[arg-type]
        if separator is None:
            _refuse_annotated(path, text)
            separator = _open(out, reader, make_events(_first_key(text)))
        out.write(separator + text)
        separator = b",\n"
    if separator is None:
        _open(out, reader, make_events("ph"))
    _close(out, reader)
    return reader.decoded.events, tuple(reader.decoded.problems)


def _first_key(text: bytes) -> str:
    found = _FIRST_KEY.match(text)
    return "ph" if found is None else found[1].decode(errors="replace")


def _refuse_annotated(path: Location, text: bytes) -> None:
    if _OURS.search(text, 0, 4096):
        raise UsageError(f"`{path}` is annotated already", hint="annotate the original trace")


def _open(out: BinaryIO, reader: _TextReader, events: Iterable[bytes]) -> bytes:
    """Write all that stands in front of the trace's own events; returns what separates them from it."""
    if reader.is_bare_list:
        out.write(b"[\n")
    else:
        inside = reader.head_texts[0] if reader.head_texts else b""
        out.write(b"{" + inside + (b"," if inside else b"") + b'\n"traceEvents": [\n')
    separator = b""
    for event in events:
        out.write(separator + event)
        separator = b",\n"
    return separator


def _close(out: BinaryIO, reader: _TextReader) -> None:
    if reader.is_bare_list:
        out.write(b"\n]\n")
        return
    after = reader.head_texts[1] if len(reader.head_texts) > 1 else b""
    out.write(b"\n]" + (b",\n" + after if after else b"") + b"}\n")


@contextmanager
def compressed(path: Path, name: str) -> Iterator[BinaryIO]:
    """A file to write JSON text to, compressed as `name` says by its end."""
    if name.endswith(".gz"):
        with igzip.open(path, "wb", compresslevel=2) as file:
            yield file
    elif name.endswith(".zst"):
        with path.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as stream:
            yield stream
    else:
        with path.open("wb") as file:
            yield file
