"""Cut the bytes of a trace at event boundaries, so that no more than a piece of it is ever in memory.

Kineto writes each event beginning with "ph" or "name"; other writers repeat the key that the first event begins
with. `},` followed by `{"<that key>"` is taken for a boundary. A wrong cut (inside a nested list) leaves
unbalanced JSON on both sides, so the decoder always notices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"\\]{1,64})"')
_LIST_START = re.compile(rb"\s*\[")
_WINDOW_BYTES = 1 << 16
HEAD_LIMIT_BYTES = 1 << 28
"""How far into a file the events may begin before we give up looking for them."""


class Part(Enum):
    """Where a piece comes from."""

    head = "head"
    events = "events"
    tail = "tail"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes cut out of a trace.

    `head` is everything before the first event without the opening of the list; `events` are whole events joined
    by commas; `tail` is the last events (maybe none) and all that follows them.
    """

    part: Part
    data: bytes
    offset: int
    """Where in the decompressed file the piece begins, bytes."""


class Cutter:
    """Turns chunks into pieces; feed it, then ask for the tail."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._offset = 0
        self._boundary: re.Pattern[bytes] | None = None
        self.is_bare_list = False
        self.has_events = False

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """Take a chunk in and give the pieces that are complete by now."""
        self._buffer += chunk
        if not self.has_events:
            head = self._cut_head()
            if head is None:
                return
            yield head
        boundary = self._boundary or self._learn_boundary()
        if boundary is None:
            return
        cut = _last_match(boundary, self._buffer)
        if cut is not None:
            yield self._take(Part.events, cut.start() + 1, skip_to=cut.end(1))

    def tail(self) -> Piece:
        """What is left after the last chunk; the head itself when no event list was found."""
        return self._take(Part.tail if self.has_events else Part.head, len(self._buffer))

    def _cut_head(self) -> Piece | None:
        start = _LIST_START.match(self._buffer)
        self.is_bare_list = start is not None
        match = start or _EVENTS_KEY.search(self._buffer)
        if match is None:
            return None
        self.has_events = True
        return self._take(Part.head, match.start(), skip_to=match.end())

    def _learn_boundary(self) -> re.Pattern[bytes] | None:
        first = _FIRST_KEY.match(self._buffer)
        if first is not None:
            keys = b"|".join({b"ph", b"name", re.escape(first[1])})
            self._boundary = re.compile(rb"\}(\s*,\s*)(?=\{\s*\"(?:" + keys + rb")\")")
        return self._boundary

    def _take(self, part: Part, end: int, skip_to: int | None = None) -> Piece:
        with memoryview(self._buffer) as view:
            piece = Piece(part, bytes(view[:end]), self._offset)
        stop = end if skip_to is None else skip_to
        del self._buffer[:stop]
        self._offset += stop
        return piece

    def is_hopeless(self) -> bool:
        """Whether so much was read without finding an event that none will come."""
        return not self.has_events and len(self._buffer) > HEAD_LIMIT_BYTES


def split_events(data: bytes) -> list[bytes]:
    """The single events of a piece, cut at every boundary; for data that can't be decoded whole."""
    first = _FIRST_KEY.match(data)
    keys = b"|".join({b"ph", b"name"} | ({re.escape(first[1])} if first else set()))
    return re.split(rb"(?<=\})\s*,\s*(?=\{\s*\"(?:" + keys + rb")\")", data)


def _last_match(pattern: re.Pattern[bytes], data: bytearray) -> re.Match[bytes] | None:
    window = _WINDOW_BYTES
    while True:
        start = max(len(data) - window, 0)
        last = None
        for last in pattern.finditer(data, start):  # noqa: B007 - the last one is wanted
            pass
        if last is not None or start == 0:
            return last
        window *= 8
