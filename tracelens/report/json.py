"""The document as JSON."""

from __future__ import annotations

import msgspec

from tracelens.report.document import Document


def render_json(document: Document) -> str:
    """The document as indented JSON, every key present, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
