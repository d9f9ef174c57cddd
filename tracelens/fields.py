"""What is wrong with the fields of a file or an option, in a user's words: keys, what they take, what is near."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

_PLACE = re.compile(r" - at `\$\.?(?P<where>[^`]*)`$")
_NAMED = re.compile(r"(?P<what>unknown|missing required) field `(?P<key>[^`]*)`")
_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
_TYPE_WORDS: dict[type[msgspec.inspect.Type], str] = {
    msgspec.inspect.IntType: "a whole number",
    msgspec.inspect.FloatType: "a number",
    msgspec.inspect.BoolType: "true or false",
    msgspec.inspect.StrType: "a text",
    msgspec.inspect.StructType: "a table",
    msgspec.inspect.DictType: "a table",
    msgspec.inspect.ListType: "a list",
    msgspec.inspect.VarTupleType: "a list",
}
_MOST_SHOWN = 60


class Fault(NamedTuple):
    """A field that can't be taken: what to say of it, and what to do."""

    told: str
    hint: str | None


def explain_fault(error: msgspec.ValidationError, kind: type[msgspec.Struct], fields: Mapping[str, Any]) -> Fault:
    """What `msgspec.convert(fields, kind)` did not take.

    Args:
        error: what it raised.
        kind: the struct that the fields were to become.
        fields: what was given.
    """
    message = str(error)
    place = _PLACE.search(message)
    where = place["where"] if place else ""
    found = _type_at(kind, where)
    named = _NAMED.search(message)
    if named is not None:
        key = f"{where}.{named['key']}" if where else named["key"]
        known = tuple(field.encode_name for field in found.fields) if isinstance(found, _STRUCT) else ()
        if named["what"] == "unknown":
            return Fault(f"unknown key `{key}`", nearest(named["key"], known))
        return Fault(f"`{key}` is missing", f"known: {', '.join(known)}")
    given = _value_at(fields, where)
    shown = "" if given is _ABSENT else f", not {_show(given)}"
    return Fault(f"`{where}` must be {_words(found)}{shown}", None)


def nearest(word: str, known: Sequence[str]) -> str:
    """The known word that is closest, or all of them."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean `{close[0]}`?" if close else f"known: {', '.join(known)}"


_STRUCT = msgspec.inspect.StructType
_ABSENT = object()


def _steps(where: str) -> list[str]:
    return _STEP.findall(where)


def _type_at(kind: type[msgspec.Struct], where: str) -> msgspec.inspect.Type | None:
    """The type of the field at a path such as `limits.node_local[0]`."""
    found: msgspec.inspect.Type | None = msgspec.inspect.type_info(kind)
    for step in _steps(where):
        found = next((inner for part in _parts(found) if (inner := _inside(part, step)) is not None), None)
    parts = _parts(found)
    return parts[0] if len(parts) == 1 else found


def _parts(found: msgspec.inspect.Type | None) -> list[msgspec.inspect.Type]:
    """The types that a field can have, null left out: a file of TOML can't say it."""
    if found is None:
        return []
    several = found.types if isinstance(found, msgspec.inspect.UnionType) else (found,)
    return [part for part in several if not isinstance(part, msgspec.inspect.NoneType)]


def _inside(part: msgspec.inspect.Type, step: str) -> msgspec.inspect.Type | None:
    if isinstance(part, _STRUCT):
        return next((field.type for field in part.fields if field.encode_name == step), None)
    if isinstance(part, msgspec.inspect.DictType):
        return part.value_type
    if isinstance(part, msgspec.inspect.ListType | msgspec.inspect.VarTupleType):
        return part.item_type
    return None


def _words(found: msgspec.inspect.Type | None) -> str:
    words = dict.fromkeys(_words_of_one(part) for part in _parts(found))
    return " or ".join(words) or "something else"


def _words_of_one(part: msgspec.inspect.Type) -> str:
    values: Sequence[Any] = ()
    if isinstance(part, msgspec.inspect.EnumType):
        values = [member.value for member in part.cls]
    elif isinstance(part, msgspec.inspect.LiteralType):
        values = part.values
    if values:
        return f"one of {', '.join(map(str, values))}"
    return _TYPE_WORDS.get(type(part), "something else")


def _value_at(fields: Any, where: str) -> Any:
    for step in _steps(where):
        if isinstance(fields, Mapping) and step == "[...]":
            # a value of a table whose key is not told
            return _ABSENT
        key: Any = int(step[1:-1]) if step[1:-1].isdigit() and step[0] == "[" else step
        try:
            fields = fields[key]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return fields


def _show(value: Any) -> str:
    """The value as it stands in a file, cut where it is long."""
    text = json.dumps(value.value if isinstance(value, Enum) else value, ensure_ascii=False, default=str)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"
