"""Bytes of a trace file, whatever compresses them: told by content, never by suffix."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import zstandard
from isal import igzip_lib, isal_zlib

from tracelens.errors import InputError
from tracelens.trace.remote import Location

CHUNK_BYTES = 1 << 21
"""Decompressed bytes that are handed on at once, or somewhat more."""
GZIP_FEED_BYTES = 1 << 16
ZSTD_FEED_BYTES = 1 << 13
"""Compressed bytes given to the decompressor at once: they bound what it can make of them (1000 and 30000 times)."""

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ARCHIVE_MAGIC = b"PK\x03\x04"

Progress = Callable[[int], None]


class DamageError(Exception):
    """The compressed stream ends or breaks too early; what came before it was good."""


def is_archive(path: Location) -> bool:
    """Whether the file is a saved summary rather than a trace.

    Raises:
        InputError: the file can't be opened.
    """
    with _open(path) as file:
        return file.read(4) == _ARCHIVE_MAGIC


def read_chunks(path: Location, progress: Progress | None = None) -> Iterator[bytes]:
    """Decompressed bytes of a file, in pieces.

    Args:
        path: a JSON file, plain or compressed with gzip or zstd.
        progress: called with the compressed bytes read so far.

    Raises:
        InputError: the file can't be opened or read.
        DamageError: the compressed stream is cut off or broken, after all good bytes were given.
    """
    with _open(path) as file:
        magic = file.peek(4)[:4] if hasattr(file, "peek") else b""
        if magic.startswith(_GZIP_MAGIC):
            yield from _joined(_inflate(file, _new_gzip, GZIP_FEED_BYTES, progress))
        elif magic.startswith(_ZSTD_MAGIC):
            yield from _joined(_inflate(file, _new_zstd, ZSTD_FEED_BYTES, progress))
        else:
            yield from _raw(file, progress)


def _open(path: Location) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"no such file: `{path}`", hint="check the path") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"can't read `{path}`: {reason}", hint="check the permissions") from error


def _raw(file: BinaryIO, progress: Progress | None) -> Iterator[bytes]:
    done = 0
    while chunk := file.read(CHUNK_BYTES):
        done += len(chunk)
        yield chunk
        if progress:
            progress(done)


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Small pieces as chunks; what was gathered comes out before an error does."""
    gathered: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            gathered.append(piece)
            size += len(piece)
            if size >= CHUNK_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
    except DamageError:
        yield b"".join(gathered)
        raise
    yield b"".join(gathered)


class _Gzip:
    """One gzip member."""

    def __init__(self) -> None:
        self._inner = isal_zlib.decompressobj(wbits=16 + isal_zlib.MAX_WBITS)

    def decompress(self, data: bytes) -> bytes:
        return bytes(self._inner.decompress(data))

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)


def _new_gzip() -> _Gzip:
    return _Gzip()


def _new_zstd() -> zstandard.ZstdDecompressionObj:
    return zstandard.ZstdDecompressor().decompressobj()


_STREAM_ERRORS: Any = (
    igzip_lib.IsalError,
    isal_zlib.error,
    zlib.error,
    zstandard.ZstdError,
    EOFError,
)


def _inflate(
    file: BinaryIO, new: Callable[[], _Gzip | zstandard.ZstdDecompressionObj], feed: int, progress: Progress | None
) -> Iterator[bytes]:
    stream, done, started = new(), 0, False
    while data := file.read(feed):
        done += len(data)
        while data:
            if stream.eof:
                stream, started = new(), False
            try:
                out = stream.decompress(data)
            except _STREAM_ERRORS as error:
                if not started and done > len(data) and not any(data):
                    return  # zero padding after the last member, as tar and some file systems leave it
                raise DamageError(f"the compressed data is broken near byte {done} of the file ({error})") from error
            started = True
            if out:
                yield out
            data = stream.unused_data if stream.eof else b""
        if progress:
            progress(done)
    if not stream.eof:
        raise DamageError(f"the compressed data ends too early, after byte {done} of the file")
