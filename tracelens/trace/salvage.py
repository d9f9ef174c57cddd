"""What can still be read of JSON that is broken: mended text, single events, the end of the list of events."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")

BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # a ValidationError is a DecodeError too
LONGEST_RUN = 16
"""Fragments that are tried together as one event, when they were cut at what only looked like a boundary."""

_NAN = re.compile(rb"(?<=[:\[,\s])-?(?:NaN|nan|Infinity|inf)(?=\s*[,\]}])")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrtu])')
_CONTROL = bytes(range(0x20))
_TO_SPACE = bytes.maketrans(_CONTROL, b" " * len(_CONTROL))
# A name reaches to the quote before the next key or the end of the object; other quotes inside it are its own.
_NAME = re.compile(rb'("name"\s*:\s*")(.{0,65536}?)("\s*(?:,\s*"[^"\\]{1,40}"\s*:|\}))', re.DOTALL)
_BARE_QUOTE = re.compile(rb'(?<!\\)"')


def without_nan(text: bytes) -> bytes:
    """NaN and infinity, which Python writes and JSON does not know, become null."""
    return _NAN.sub(b"null", text) if b"NaN" in text or b"nan" in text or b"nf" in text else text


def mend(text: bytes) -> bytes:
    """Undo the known ways in which writers break JSON: bare quotes, control characters, Windows paths, NaN."""
    text = text.decode("utf-8", "replace").encode() if not _is_utf8(text) else text
    text = without_nan(text.translate(_TO_SPACE))
    text = _BAD_ESCAPE.sub(rb"\\\\", text)
    return _NAME.sub(lambda m: m[1] + _BARE_QUOTE.sub(rb"\\\g<0>", m[2]) + m[3], text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def decode_singles(
    singles: Sequence[bytes], decode: Callable[[bytes], Sequence[T]], *, may_go_on: bool
) -> tuple[list[T], int, bytes]:
    """Find the broken ones among many events, and decode the others.

    Args:
        singles: the text of single events, or of fragments: an object in a list inside an event looks like one.
        decode: events joined by commas to typed events; raises one of `BROKEN`.
        may_go_on: whether the last event may be cut in the middle and go on in what follows.

    Returns:
        The events; how many were broken; and the text of the last ones, if they may go on.
    """
    good: list[T] = []
    lost = done = 0
    for broken in _find_broken(singles, decode):
        if broken < done:
            continue
        good.extend(decode(b",".join(singles[done:broken])))
        stop = _end_of_fragments(singles, broken, decode)
        if stop is None and may_go_on and len(singles) - broken <= LONGEST_RUN:
            return good, lost, b",".join(singles[broken:])
        if stop is None:
            lost += bool(singles[broken].strip())
        else:
            good.extend(decode(b",".join(singles[broken:stop])))
        done = stop or broken + 1
    good.extend(decode(b",".join(singles[done:])))
    return good, lost, b""


def _find_broken(singles: Sequence[bytes], decode: Callable[[bytes], Sequence[T]]) -> list[int]:
    """Places of those that can't be decoded, by halving."""
    found: list[int] = []
    todo = [range(len(singles))]
    while todo:
        part = todo.pop()
        try:
            decode(b",".join(singles[part.start : part.stop]))
        except BROKEN:
            if len(part) == 1:
                found.append(part.start)
            else:
                middle = len(part) // 2
                todo += [part[middle:], part[:middle]]
    return found


def _end_of_fragments(singles: Sequence[bytes], start: int, decode: Callable[[bytes], Sequence[T]]) -> int | None:
    """Where the event ends whose first fragment stands at `start`; None when it is no event."""
    for stop in range(start + 2, min(len(singles), start + LONGEST_RUN) + 1):
        try:
            decode(b",".join(singles[start:stop]))
        except BROKEN:
            continue
        return stop
    return None


_AFTER_LIST = re.compile(rb'\]\s*(?:(,)\s*"[^"\\]{1,64}"\s*:|\}\s*$)')
_KNOWN_KEY = re.compile(rb'\]\s*(,)\s*"(?:traceName|displayTimeUnit|baseTimeNanoseconds|schemaVersion)"\s*:')


def end_of_events(data: bytes) -> int | None:
    """Where the list of events is closed in the last part of a trace; None when it never is.

    It is the first `]` after which all that follows is the rest of one object. Should that rest be broken itself,
    a key that Kineto writes there tells the place.
    """
    text = bytearray(data)
    with memoryview(text) as view:
        for match in _AFTER_LIST.finditer(data):
            if data[max(match.start() - 64, 0) : match.start()].rstrip()[-1:] not in (b"}", b"[", b""):
                continue  # a list of other things than events
            if match[1] is None:
                return match.start()
            comma = match.start(1)
            text[comma] = ord("{")
            try:
                msgspec.json.decode(view[comma:], type=dict[str, msgspec.Raw])
            except BROKEN:
                text[comma] = ord(",")
            else:
                return match.start()
    known = _KNOWN_KEY.search(data)
    return None if known is None else known.start()
