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
    singles: Sequence[bytes], decode: Callable[[bytes], Sequence[T]]
) -> tuple[list[T], list[bytes], list[bytes]]:
    """Find the broken ones among many events, and decode the others.

    Args:
        singles: the text of single events, or fragments of events that were cut in the middle.
        decode: events joined by commas to typed events; raises one of `BROKEN`.

    Returns:
        The events; the fragments that are no event even together with their neighbours; and such fragments at the
        end, which may go on in what follows.
    """
    good: list[T] = []
    lost: list[bytes] = []
    run: list[bytes] = []
    for part in _bisect(singles, decode):
        if isinstance(part, bytes):
            run.append(part)
            continue
        _close_run(run, decode, good, lost)
        run = []
        good.extend(part)
    while len(run) > LONGEST_RUN:
        lost.append(run.pop(0))
    return good, lost, run


def _bisect(singles: Sequence[bytes], decode: Callable[[bytes], Sequence[T]]) -> list[Sequence[T] | bytes]:
    """In order, either decoded events or the text of one that can't be decoded."""
    found: list[Sequence[T] | bytes] = []
    todo = [singles]
    while todo:
        part = todo.pop()
        try:
            found.append(decode(b",".join(part)))
        except BROKEN:
            if len(part) == 1:
                found.append(part[0])
            else:
                middle = len(part) // 2
                todo += [part[middle:], part[:middle]]
    return found


def _close_run(run: Sequence[bytes], decode: Callable[[bytes], Sequence[T]], good: list[T], lost: list[bytes]) -> None:
    """Events that were cut in two or more fragments to `good`, what is no event to `lost`."""
    start = 0
    while start < len(run):
        for stop in range(start + 2, min(len(run), start + LONGEST_RUN) + 1):
            try:
                good.extend(decode(b",".join(run[start:stop])))
            except BROKEN:
                continue
            start = stop
            break
        else:
            lost.append(run[start])
            start += 1


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
