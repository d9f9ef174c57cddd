"""The document as JSON."""

from __future__ import annotations

import msgspec

from tracelens.report.document import Document

# What JSON lets stand in a string, and a terminal obeys or turns text around for.
_STEERING = (*range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {code: f"\\u{code:04x}" for code in _STEERING}


def render_json(document: Document) -> str:
    """The document as indented JSON, every key present, ending in a newline.

    Names are written such that neither a terminal nor a CI runner (`##[`) takes part of them for a command; whoever
    reads the JSON gets them as they are.
    """
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    return text.translate(_ESCAPES).replace("##[", r"\u0023#[") + "\n"
