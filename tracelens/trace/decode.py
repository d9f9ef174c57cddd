"""Pieces of a trace to typed events, and what is broken in them to problems."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tracelens.errors import InputError, Problem, Severity
from tracelens.trace.cut import Cutter, Part, Piece, split_events
from tracelens.trace.schema import Event, ExactEvent, TraceHead
from tracelens.trace.source import DamageError, Progress, read_chunks

AnyEvent = Event | ExactEvent
E = TypeVar("E", Event, ExactEvent)


class _Tail(TraceHead, Generic[E]):
    """The end of a file: last events and the keys that follow them."""

    traceEvents: list[E] = []  # noqa: N815, RUF012 - the file's own key; msgspec copies the default


_HEAD = msgspec.json.Decoder(TraceHead)
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError)  # a ValidationError is a DecodeError too

# A float of 53 bits holds microseconds with three decimals up to here (half a spacing stays under half a ns).
EXACT_FLOAT_US = float(1 << 43)


class _Decoders(Generic[E]):
    def __init__(self, event: type[E]) -> None:
        self.many = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self.tail = msgspec.json.Decoder(_Tail[event])  # type: ignore[valid-type]


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

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.decoded = Decoded()
        self._progress = progress
        self._cutter = Cutter()
        self._exact = False

    def __iter__(self) -> Iterator[Sequence[AnyEvent]]:
        """Batches of events in file order.

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
            if chunk is None or self._cutter.is_hopeless():
                break
            for piece in self._cutter.feed(chunk):
                yield from self._decode(piece)
        yield from self._decode_tail(self._cutter.tail(), damage)
        self._finish()

    def _decode(self, piece: Piece) -> Iterator[Sequence[AnyEvent]]:
        if piece.part is Part.head:
            self._decode_head(piece)
            return
        try:
            events = self._decode_many(piece.data)
        except _BROKEN:
            events = self._salvage(piece)
        self.decoded.events += len(events)
        yield events

    def _decode_many(self, data: bytes) -> Sequence[AnyEvent]:
        body = b"".join((b"[", data, b"]"))
        if self._exact:
            return _EXACT.many.decode(body)
        events = _FAST.many.decode(body)
        if _needs_exact(events):
            self._exact = True
            return _EXACT.many.decode(body)
        return events

    def _decode_head(self, piece: Piece) -> None:
        if self._cutter.is_bare_list:
            return
        text = piece.data.rstrip().removesuffix(b",") + b"}"
        self._keep_head(text, piece.offset)

    def _keep_head(self, text: bytes, offset: int) -> None:
        try:
            self.decoded.heads.append(_HEAD.decode(_without_nan(text)))
        except _BROKEN as error:
            self._refuse_second_trace(Piece(Part.head, text, offset))
            self._problem("head-unreadable", f"the keys beside the events can't be read (byte {offset}): {error}")

    def _refuse_second_trace(self, piece: Piece) -> None:
        """Two processes that write one path leave their bytes in turn; nothing in such a file can be trusted."""
        again = _TRACE_HEAD.search(piece.data, 1 if piece.offset == 0 else 0)
        if again is not None:
            raise InputError(
                f"`{self.path}` holds the traces of two ranks, written over one another "
                f"(byte {piece.offset + again.start()})",
                hint="let every rank write a file of its own, and record again",
            )

    def _decode_tail(self, piece: Piece, damage: DamageError | None) -> Iterator[Sequence[AnyEvent]]:
        if piece.part is Part.head:
            raise _no_events(self.path, piece.data, damage)
        prefix = b"[" if self._cutter.is_bare_list else b'{"traceEvents":['
        decoders: _Decoders[Event] | _Decoders[ExactEvent] = _EXACT if self._exact else _FAST
        try:
            if self._cutter.is_bare_list:
                events: Sequence[AnyEvent] = decoders.many.decode(prefix + piece.data)
            else:
                tail = decoders.tail.decode(_without_nan(prefix + piece.data))
                self.decoded.heads.append(tail)
                events = tail.traceEvents
            if not self._exact and _needs_exact(events):
                self._exact = True
                yield from self._decode_tail(piece, damage)
                return
        except _BROKEN:
            events = self._salvage_tail(piece)
        if damage is not None:
            self._problem("file-damaged", f"{damage}; {self.decoded.events + len(events)} events were read")
        self.decoded.events += len(events)
        yield events

    def _salvage_tail(self, piece: Piece) -> Sequence[AnyEvent]:
        """Events of a tail that is no whole JSON: those before `]` where there is one, else before the cut."""
        end = _end_of_events(piece.data)
        if end is None:
            whole = split_events(piece.data)
            body = b",".join(whole[:-1])
            events = list(self._salvage(Piece(Part.events, body, piece.offset))) if body else []
            last = self._salvage(Piece(Part.events, whole[-1], piece.offset + len(body)), report=False)
            events.extend(last)
            at = piece.offset + len(piece.data)
            self._problem("file-cut-off", f"the file ends in the middle, at byte {at}; what is whole was read")
            return events
        body, rest = piece.data[:end], piece.data[end + 1 :].lstrip().removeprefix(b",")
        self._keep_head(b"{" + rest, piece.offset + end + 1)
        return self._salvage(Piece(Part.events, body, piece.offset)) if body.strip() else []

    def _salvage(self, piece: Piece, *, report: bool = True) -> Sequence[AnyEvent]:
        """Decode what can be decoded of a broken piece: mend it, else find the broken events and leave them out."""
        self._refuse_second_trace(piece)
        mended = _mend(piece.data)
        try:
            events = self._decode_many(mended)
        except _BROKEN:
            singles = split_events(mended)
            events, lost = self._bisect(singles)
            if report and lost:
                self.decoded.lost_events += lost
                if self.decoded.lost_at is None:
                    self.decoded.lost_at = piece.offset
            return events
        if report and mended != piece.data:
            self._problem("json-repaired", f"invalid JSON repaired near byte {piece.offset}", once=True)
        return events

    def _bisect(self, singles: Sequence[bytes]) -> tuple[list[AnyEvent], int]:
        good: list[AnyEvent] = []
        lost, todo = 0, [singles]
        while todo:
            part = todo.pop()
            try:
                good.extend(self._decode_many(b",".join(part)))
            except _BROKEN:
                if len(part) == 1:
                    lost += 1
                else:
                    middle = len(part) // 2
                    todo += [part[middle:], part[:middle]]
        return good, lost

    def _finish(self) -> None:
        decoded = self.decoded
        if decoded.lost_events:
            self._problem(
                "events-unreadable",
                f"{decoded.lost_events} events are broken and were left out, the first near byte {decoded.lost_at}",
            )

    def _problem(self, code: str, message: str, *, once: bool = False) -> None:
        if once and any(problem.code == code for problem in self.decoded.problems):
            return
        self.decoded.problems.append(
            Problem(code=code, severity=Severity.warning, message=message, file=str(self.path))
        )


def _needs_exact(events: Sequence[AnyEvent]) -> bool:
    """Whether timestamps are so large that a float can't hold their fraction; one look at a sample suffices."""
    step = max(len(events) // 64, 1)
    return any(
        isinstance(event.ts, float) and event.ts > EXACT_FLOAT_US and event.ts % 1 != 0 for event in events[::step]
    )


_TRACE_HEAD = re.compile(rb'(?<!^)(?<!^.)(?:"schemaVersion"|"traceEvents")\s*:')
_NAN = re.compile(rb"(?<=[:\[,\s])-?(?:NaN|nan|Infinity|inf)(?=\s*[,\]}])")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrtu])')
_CONTROL = bytes(range(0x20))
_TO_SPACE = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
# A name reaches to the quote before the next key or the end of the object; other quotes inside it are its own.
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)("\s*(?:,\s*"[^"\\]{1,40}"\s*:|\}))', re.DOTALL)
_BARE_QUOTE = re.compile(rb'(?<!\\)"')


def _without_nan(text: bytes) -> bytes:
    return _NAN.sub(b"null", text) if b"NaN" in text or b"nan" in text or b"nf" in text else text


def _mend(text: bytes) -> bytes:
    """Undo the known ways in which writers break JSON (kineto-format faults 20 and 21)."""
    text = text.decode("utf-8", "replace").encode() if not _is_utf8(text) else text
    text = _without_nan(text.translate(_TO_SPACE))
    text = _BAD_ESCAPE.sub(rb"\\\\", text)
    return _NAME.sub(lambda m: m[1] + _BARE_QUOTE.sub(rb"\\\g<0>", m[2]) + m[3], text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


_EVENTS_END = re.compile(rb'\}?\s*(\])\s*(?:,\s*"[A-Za-z_]+"\s*:|\}\s*$|$)')


def _end_of_events(data: bytes) -> int | None:
    """Where the list of events is closed in a tail; None when it never is."""
    match = None
    for match in _EVENTS_END.finditer(data):
        if data[match.end() - 1 :].lstrip(b" \n").startswith((b"}", b":")) or match.end() == len(data):
            break
    return None if match is None else match.start(1)


def _no_events(path: Path, data: bytes, damage: DamageError | None) -> InputError:
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
