"""Pieces of a trace to typed events, and what is broken in them to problems."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from tracelens.errors import InputError, Problem, Severity
from tracelens.trace.cut import Cutter, Part, Piece, split_events
from tracelens.trace.remote import Location
from tracelens.trace.salvage import BROKEN, decode_singles, end_of_events, mend, without_nan
from tracelens.trace.schema import Event, ExactEvent, TraceHead
from tracelens.trace.source import DamageError, Progress, read_chunks
from tracelens.units import plural

AnyEvent = Event | ExactEvent
E = TypeVar("E", Event, ExactEvent)


_HEAD = msgspec.json.Decoder(TraceHead)
_PADDING = b" \t\r\n\0"  # zeros are left by file systems that allot space before it is written

# A float of 53 bits holds microseconds with three decimals up to here (half a spacing stays under half a ns).
EXACT_FLOAT_US = float(1 << 43)


class _Decoders(Generic[E]):
    def __init__(self, event: type[E]) -> None:
        self.many = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]


_FAST = _Decoders(Event)
_EXACT = _Decoders(ExactEvent)


@dataclass(slots=True)
class Decoded:
    """What a stream of events leaves behind once it is read."""

    heads: list[TraceHead] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    lost_events: int = 0
    lost_at: int | None = None
    """Offset of the first byte that could not be decoded."""
    events: int = 0


class Reader:
    """Reads the events of one file; `decoded` is complete when the iteration is over."""

    def __init__(self, path: Location, progress: Progress | None = None) -> None:
        self.path = path
        self.decoded = Decoded()
        self._progress = progress
        self._cutter = Cutter()
        self._exact = False
        self._unfinished = b""
        """Fragments of an event that was cut in the middle; the next piece has the rest."""

    def __iter__(self) -> Iterator[Sequence[AnyEvent]]:
        """Batches of events in file order; those of a batch are of one type.

        Raises:
            InputError: the file is empty, no JSON, or holds no events.
        """
        damage: DamageError | None = None
        chunks = read_chunks(self.path, self._progress)
        while True:
            try:
                chunk = next(chunks, None)
            except DamageError as error:
                damage, chunk = error, None
            if chunk is None:
                break
            for piece in self._cutter.feed(chunk):
                yield self._count(self._decode(piece))
            if self._cutter.is_hopeless():
                break
        yield self._count(self._decode_tail(self._cutter.tail(), damage))
        if damage is not None:
            self._problem("file-damaged", f"{damage}; {plural(self.decoded.events, 'event was', 'events were')} read")
        self._tell_lost()

    def _count(self, events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        self.decoded.events += len(events)
        return events

    def _decode(self, piece: Piece) -> Sequence[AnyEvent]:
        if piece.part is Part.head:
            self._decode_head(piece)
            return ()
        if not self._unfinished:
            try:
                return self._decode_many(piece.data)
            except BROKEN:
                pass
        return self._salvage(piece, is_last=piece.part is Part.tail)

    def _decode_many(self, data: bytes) -> Sequence[AnyEvent]:
        body = b"".join((b"[", data, b"]"))
        if self._exact:
            return _EXACT.many.decode(body)
        events = _FAST.many.decode(body)
        if _needs_exact(events, body):
            self._exact = True
            return _EXACT.many.decode(body)
        return events

    def _decode_head(self, piece: Piece) -> None:
        if not self._cutter.is_bare_list:
            text = piece.data.removeprefix(b"\xef\xbb\xbf").rstrip().removesuffix(b",") + b"}"
            self._keep_head(text, piece.offset)

    def _keep_head(self, text: bytes, offset: int) -> None:
        try:
            self.decoded.heads.append(_HEAD.decode(without_nan(text)))
        except BROKEN as error:
            self._refuse_second_trace(Piece(Part.head, text, offset))
            self._problem("head-unreadable", f"keys beside the events can't be read (byte {offset}): {error}")
            self.decoded.heads.append(_decode_by_key(mend(text)))

    def _refuse_second_trace(self, piece: Piece) -> None:
        """Two processes that write one path leave their bytes in turn; nothing in such a file can be trusted."""
        found = _TRACE_HEAD.finditer(piece.data)
        if piece.part is Part.head:
            next(found, None)  # its own
        again = next(found, None)
        if again is not None:
            raise InputError(
                f"`{self.path}` holds the traces of two ranks, written over one another "
                f"(byte {piece.offset + again.start()})",
                hint="let every rank write a file of its own, and record again",
            )

    def _decode_tail(self, piece: Piece, damage: DamageError | None) -> Sequence[AnyEvent]:
        """The last events, and the keys that follow them."""
        data = piece.data.rstrip(_PADDING)
        if piece.part is Part.head:
            raise _no_events(self.path, data, damage)
        if b'"traceEvents"' in data:
            self._refuse_second_trace(piece)
        end = len(data) - 1 if self._cutter.is_bare_list and data.endswith(b"]") else end_of_events(data)
        if end is None:
            events = self._salvage(Piece(Part.events, data.rstrip(b" ,\r\n"), piece.offset), is_last=True)
            at = piece.offset + len(data)
            self._problem("file-cut-off", f"the file ends in the middle, at byte {at}; what is whole was read")
            return events
        if not self._cutter.is_bare_list:
            rest = data[end + 1 :].lstrip().removeprefix(b",")
            self._keep_head(b"{" + rest, piece.offset + end + 1)
        return self._decode(Piece(Part.tail, data[:end], piece.offset))

    def _salvage(self, piece: Piece, *, is_last: bool = False) -> Sequence[AnyEvent]:
        """Decode what can be decoded of a broken piece: mend it, else find the broken events and leave them out."""
        self._refuse_second_trace(piece)
        data = b",".join(part for part in (self._unfinished, piece.data) if part)
        self._unfinished = b""
        try:
            return self._decode_many(data)
        except BROKEN:
            mended = mend(data)
        try:
            events = self._decode_many(mended)
        except BROKEN:
            singles, was_exact = split_events(mended), self._exact
            good, lost, rest = decode_singles(singles, self._decode_many, may_go_on=not is_last)
            if self._exact and not was_exact:  # once more, so that all are of one type
                good, lost, rest = decode_singles(singles, self._decode_many, may_go_on=not is_last)
            if lost and self.decoded.lost_at is None:
                self.decoded.lost_at = piece.offset
            self.decoded.lost_events += lost
            self._unfinished = rest
            return good
        if mended != data:
            self._problem("json-repaired", f"invalid JSON repaired near byte {piece.offset}", once=True)
        return events

    def _tell_lost(self) -> None:
        decoded = self.decoded
        if decoded.lost_events:
            self._problem(
                "events-unreadable",
                f"{_broken(decoded.lost_events)} left out, the first near byte {decoded.lost_at}",
            )

    def _problem(self, code: str, message: str, *, once: bool = False) -> None:
        if once and any(problem.code == code for problem in self.decoded.problems):
            return
        self.decoded.problems.append(
            Problem(code=code, severity=Severity.warning, message=message, file=str(self.path))
        )


def _decode_by_key(text: bytes) -> TraceHead:
    """The keys of a head that can be read, without those that can't."""
    head: dict[str, object] = {}
    try:
        values = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except BROKEN:
        return TraceHead()
    for field_ in msgspec.structs.fields(TraceHead):
        if field_.encode_name in values:
            with suppress(*BROKEN):
                head[field_.name] = msgspec.json.decode(values[field_.encode_name], type=field_.type)
    return TraceHead(**head)  # type: ignore[arg-type]


def _needs_exact(events: Sequence[AnyEvent], text: bytes) -> bool:
    """Whether timestamps are so large that a float can't hold their fraction; a look at some of them suffices."""
    step = max(len(events) // 64, 1)
    is_large = any(isinstance(event.ts, float) and event.ts > EXACT_FLOAT_US for event in events[::step])
    return is_large and _LONG_TIME.search(text, 0, 1 << 16) is not None


_LONG_TIME = re.compile(rb'"ts"\s*:\s*\d{13,}\.0*[1-9]')
_TRACE_HEAD = re.compile(rb'(?:"schemaVersion"|"traceEvents")\s*:')


def _no_events(path: Location, data: bytes, damage: DamageError | None) -> InputError:
    text = data.lstrip(b" \t\r\n\xef\xbb\xbf")
    if damage is not None:
        return InputError(f"`{path}` can't be decompressed: {damage}", hint="copy or record the file again")
    if not text:
        return InputError(f"`{path}` is empty", hint="record the trace again")
    if text[:1] not in b"{[":
        return InputError(
            f"`{path}` is not JSON: it begins with {text[:20]!r}",
            hint="give a trace written by torch.profiler (.json, .json.gz or .json.zst)",
        )
    return InputError(
        f"`{path}` is not a profiler trace: it has no `traceEvents`",
        hint="give a trace written by torch.profiler's export_chrome_trace or tensorboard_trace_handler",
    )


def _broken(events: int) -> str:
    return plural(events, "event is broken and was", "events are broken and were")
