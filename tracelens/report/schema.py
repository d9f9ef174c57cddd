"""The JSON Schema of the document, made from the result structs and what their docstrings say."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import msgspec

from tracelens.report.document import Document

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the document; fields are described by the strings that follow them."""
    (root,), definitions = msgspec.json.schema_components([Document], ref_template="#/$defs/{name}")
    for struct in _structs(Document, {}):
        properties = definitions[struct.__name__]["properties"]
        for own in reversed(struct.__mro__):
            docs = _field_docs(own) if own is not msgspec.Struct and issubclass(own, msgspec.Struct) else {}
            for name, description in docs.items():
                properties[name] = _described(properties[name], description)
    return {"$schema": SCHEMA_DIALECT, **root, "$defs": definitions}


def render_schema() -> str:
    """The JSON Schema as indented JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(document_schema()), indent=2).decode() + "\n"


def _structs(kind: Any, found: dict[type[msgspec.Struct], None]) -> dict[type[msgspec.Struct], None]:
    """All structs that a type holds, itself included, in the order in which they are met."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind not in found:
            found[kind] = None
            for field in msgspec.structs.fields(kind):
                _structs(field.type, found)
    else:
        for part in getattr(kind, "__args__", ()):
            _structs(part, found)
    return found


def _field_docs(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The string after each field, by the field's name in JSON."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(definition, ast.ClassDef)
    encoded = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
    docs = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[encoded[name]] = " ".join(text.split())
    return docs


def _described(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, **schema}
