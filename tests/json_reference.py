"""docs/json.md: every object and key of the JSON document, out of the schema."""

from __future__ import annotations

from typing import Any

HEAD = """# Every key of the JSON document

Made from the schema (`tracelens schema`) by `TRACELENS_UPDATE_GOLDEN=1 scripts/test tests/test_docs.py`.
[numbers.md](numbers.md) has the formulas. Every key is always there; `null` is unknown.
"""


def render_reference(schema: dict[str, Any]) -> str:
    """A section per object, the document first, a row per key."""
    names = sorted(schema["$defs"], key=lambda name: (name != "Document", name))
    return HEAD + "".join(_section(name, schema["$defs"][name]) for name in names)


def _section(name: str, definition: dict[str, Any]) -> str:
    text = f"\n## {name}\n\n{definition.get('description', '').strip()}\n\n".replace("\n\n\n\n", "\n\n")
    if "enum" in definition:
        return text + ", ".join(f"`{value}`" for value in definition["enum"]) + "\n"
    rows = [
        f"| `{key}` | {_kind(kind)} | {kind.get('description', '')} |" for key, kind in definition["properties"].items()
    ]
    return text + "\n".join(["| key | type | |", "|---|---|---|", *rows]) + "\n"


def _kind(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        return " or ".join(_kind(part) for part in kind["anyOf"])
    if "enum" in kind:
        return ", ".join(f"`{value}`" for value in kind["enum"])
    if kind.get("type") == "array":
        parts = kind.get("prefixItems") or [kind.get("items") or {}]
        return f"list of {' and '.join(_kind(part) for part in parts)}"
    return str(kind.get("type", "any"))
