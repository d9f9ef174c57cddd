"""Cut the bytes of a trace at event boundaries, so that no more than a piece of it is ever in memory.

Kineto writes each event beginning with "ph" or "name"; other writers repeat the key that the first event begins
with. `},` followed by `{"<that key>"` is taken for a boundary. A wrong cut (inside a nested list) leaves
unbalanced JSON on both sides, so the decoder always notices. A file in which no boundary is found is one piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*"([^"\\]{1,64})"')
_BLANKS = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_WINDOW_BYTES = 1 << 16
_LONGEST_BOUNDARY = 1 << 10
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
        self._searched = 0
        """Bytes of the buffer that hold nothing of what is looked for."""
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
        cut = self._last_boundary(boundary)
        if cut is not None:
            yield self._take(Part.events, cut.start() + 1, skip_to=cut.end(1))

    def tail(self) -> Piece:
        """What is left after the last chunk; the head itself when no event list was found."""
        return self._take(Part.tail if self.has_events else Part.head, len(self._buffer))

    def is_hopeless(self) -> bool:
        """Whether the file is no JSON, or so much was read without an event that none will come."""
        if self.has_events:
            return False
        begin = self._begin()
        is_json = begin < min(len(self._buffer), _WINDOW_BYTES) and self._buffer[begin] in b"{["
        return len(self._buffer) > HEAD_LIMIT_BYTES or not (is_json or begin == len(self._buffer))

    def _begin(self) -> int:
        """Where the first character stands that is neither blank nor a byte order mark."""
        start = bytes(self._buffer[:_WINDOW_BYTES])
        return len(start) - len(start.removeprefix(_BOM).lstrip(_BLANKS))

    def _cut_head(self) -> Piece | None:
        begin = self._begin()
        self.is_bare_list = self._buffer[begin : begin + 1] == b"["
        if self.is_bare_list:
            self.has_events = True
            return self._take(Part.head, begin, skip_to=begin + 1)
        match = _EVENTS_KEY.search(self._buffer, self._searched)
        if match is None:
            self._searched = max(len(self._buffer) - _LONGEST_BOUNDARY, 0)
            return None
        self.has_events = True
        return self._take(Part.head, match.start(), skip_to=match.end())

    def _learn_boundary(self) -> re.Pattern[bytes] | None:
        first = _FIRST_KEY.match(self._buffer)
        if first is not None or len(self._buffer) > _WINDOW_BYTES:
            self._boundary = _boundary_of(first)
        return self._boundary

    def _last_boundary(self, boundary: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """The last boundary in the buffer, looked for from its end and never twice in the same place."""
        window = _WINDOW_BYTES
        while True:
            start = max(len(self._buffer) - window, self._searched)
            last = None
            for last in boundary.finditer(self._buffer, start):  # noqa: B007 - the last one is wanted
                pass
            if last is not None or start == self._searched:
                break
            window *= 8
        if last is None:
            self._searched = max(len(self._buffer) - _LONGEST_BOUNDARY, 0)
        return last

    def _take(self, part: Part, end: int, skip_to: int | None = None) -> Piece:
        with memoryview(self._buffer) as view:
            piece = Piece(part, bytes(view[:end]), self._offset)
        stop = end if skip_to is None else skip_to
        del self._buffer[:stop]
        self._offset += stop
        self._searched = 0
        return piece


def split_events(data: bytes) -> list[bytes]:
    """The single events of a piece, cut at every boundary; for data that can't be decoded whole."""
    boundary = _boundary_of(_FIRST_KEY.match(data))
    places = [(match.start() + 1, match.end(1)) for match in boundary.finditer(data)]
    starts, ends = [0, *(end for _, end in places)], [*(start for start, _ in places), len(data)]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def _boundary_of(first: re.Match[bytes] | None) -> re.Pattern[bytes]:
    keys = b"|".join({b"ph", b"name"} | ({re.escape(first[1])} if first else set()))
    return re.compile(rb"\}(\s{0,64},\s{0,64})(?=\{\s{0,64}\"(?:" + keys + rb")\")")
