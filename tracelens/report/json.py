"""The document as JSON, and the JSON Schema that it follows."""

from __future__ import annotations

from typing import Any

import msgspec

from tracelens.report.document import Document

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render_json(document: Document) -> str:
    """The document as indented JSON, every key present, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def document_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the document, made from the result structs themselves."""
    return {"$schema": SCHEMA_DIALECT, **msgspec.json.schema(Document)}


def render_schema() -> str:
    """The JSON Schema as indented JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(document_schema()), indent=2).decode() + "\n"
