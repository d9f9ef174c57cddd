"""A result that was saved as JSON, read again: small enough to keep in git, and as good as the traces to compare."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tracelens.errors import InputError
from tracelens.report.document import SCHEMA_VERSION, Document
from tracelens.results import Measurement

_HEAD_BYTES = 4096
_AGAIN = "write it again with `tracelens analyze PATH -o FILE.json`"


class _Head(msgspec.Struct):
    schema_version: int | None = None


def is_saved(path: str | Path) -> bool:
    """Whether a file is a document of ours, by its first keys."""
    file = Path(path)
    if file.suffix != ".json" or not file.is_file():
        return False
    try:
        with file.open("rb") as stream:
            return b'"tracelens_version"' in stream.read(_HEAD_BYTES)
    except OSError:
        return False


def load_document(path: str | Path) -> Document:
    """The document that `--format json` wrote.

    Raises:
        InputError: the file can't be read, is broken, or is of another schema version.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read `{path}`: {error.strerror or error}") from error
    try:
        version = msgspec.json.decode(data, type=_Head).schema_version
        if version != SCHEMA_VERSION:
            raise InputError(f"`{path}` is of schema version {version}, this is version {SCHEMA_VERSION}", hint=_AGAIN)
        return msgspec.json.decode(data, type=Document)
    except msgspec.DecodeError as error:
        raise InputError(f"`{path}` is no result of tracelens, or a damaged one: {error}", hint=_AGAIN) from error


def measurement_of(document: Document) -> Measurement:
    """What was measured, out of a document."""
    return Measurement(**{name: getattr(document, name) for name in Measurement.__struct_fields__})
