"""Brings the schemas of the client's tools into a form that every program and provider takes: valid under JSON Schema
2020-12, and at its root an object with properties, without alternatives or references. Because of one tool in another
form, many programs refuse the whole request, or hide that tool or all of them from the model. The client's calls are
checked by its own schemas. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.agents.shared.conversions import function_parameters
from codex_proxy.core.items import Tool
from codex_proxy.core.json_values import UNREADABLE, encode_json, value_at

Schema: TypeAlias = dict[str, Any]

MAX_PARTS: Final = 1000
"""Maximum alternatives and references at the root that are followed: some refer to themselves, or double at each level.
"""
MAX_DEPTH: Final = 16
"""Maximum levels of them."""
MAX_PATTERN: Final = 1000
"""Maximum characters of a regular expression that is compiled."""

MAX_KNOWN: Final = 8 << 10
"""Maximum bytes of a schema whose form is kept: a client sends the same tools with each request."""

_TYPES: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_PARTS: Final = ("$ref", "allOf", "anyOf", "oneOf")
_NOT_AT_THE_ROOT: Final = frozenset({*_PARTS, "enum", "const", "not"})
"""Keywords that providers refuse at the root."""
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
"""The integers that most programs can read; Codex refuses others."""
_LARGEST: Final = 1.7976931348623157e308
_PLAIN_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_SYNTAX: Final = re.compile(r"[\\^$.*+?()[\]{}|/]")
_ESCAPED: Final = r"\\\g<0>"
_ANCHOR: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")
_PYTHON_ONLY: Final = re.compile(r"\(\?[aiLmsuxP-]|\\[AZ]")
_DIALECT: Final = re.compile(r"https?://json-schema\.org/\S+")


def object_parameters(tool: Tool) -> Any:
    """Returns a tool's parameters in the form above."""
    given = function_parameters(tool)
    return _object_schema(given) if isinstance(given, msgspec.Raw) else given


def plain_parameters(tool: Tool) -> Any:
    """Returns `object_parameters` in which properties with unusual names are described by patterns: Anthropic's API
    refuses them, so Claude Code hides their tools.
    """
    return _with_plain_names(object_parameters(tool))


def plain_schema(given: msgspec.Raw) -> Any:
    """Returns a schema in the form of `plain_parameters`."""
    return _with_plain_names(_object_schema(given))


def declares(tool: Tool, name: str) -> bool:
    """Whether a tool's parameters have a property of this name."""
    return name in _decoded(object_parameters(tool))["properties"]


def _decoded(parameters: Any) -> Any:
    return msgspec.json.decode(parameters) if isinstance(parameters, msgspec.Raw) else parameters


def _object_schema(given: msgspec.Raw) -> msgspec.Raw:
    json = bytes(given)
    return _known_form(json) if len(json) <= MAX_KNOWN else _make_form(json)


def _make_form(given: bytes) -> msgspec.Raw:
    try:
        schema = msgspec.json.decode(given)
    except UNREADABLE:
        schema = None
    has_long = _LONG_NUMBER.search(given) is not None
    form = _form(_with_short_numbers(schema) if has_long else schema)
    return msgspec.Raw(given if form == schema and not has_long else encode_json(form))


_known_form: Final = lru_cache(maxsize=256)(_make_form)


def _with_plain_names(parameters: Any) -> Any:
    form = _decoded(parameters)
    plain, patterns = {}, dict(form.get("patternProperties", {}))
    for name, schema in form["properties"].items():
        if _PLAIN_NAME.fullmatch(name):
            plain[name] = schema
        else:
            patterns[f"^{_SYNTAX.sub(_ESCAPED, name)}$"] = schema
    if len(plain) == len(form["properties"]):
        return parameters
    return {**form, "properties": plain, "patternProperties": patterns}


def _with_short_numbers(value: Any) -> Any:
    """Returns JSON in which integers of more than 64 bits are written with an exponent."""
    if isinstance(value, dict):
        return {name: _with_short_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return list(map(_with_short_numbers, value))
    if not isinstance(value, int) or value in _INTEGERS:
        return value
    return float(max(-_LARGEST, min(value, _LARGEST)))


def _form(schema: Any) -> Schema:
    reader = _Keywords()
    root = reader.schema(schema if isinstance(schema, dict) else {})
    form = {name: value for name, value in root.items() if name not in _NOT_AT_THE_ROOT}
    form |= {"type": "object", "properties": root.get("properties", {})}
    if any(name in root for name in _PARTS):
        form |= _Root(root).joined(root)
    for each in reader.references:
        if each["$ref"][1:] not in reader.anchors and _target(each["$ref"], form) is None:
            del each["$ref"]  # programs look for no other documents
    return form


# --- keywords -------------------------------------------------------------------------------------


class _Keywords:
    """Removes keywords whose values are not those of JSON Schema."""

    def __init__(self) -> None:
        self.references: list[Schema] = []
        """The schemas with a `$ref`."""
        self.anchors: set[str] = set()

    def schema(self, given: Any) -> Schema:
        """Returns a schema that is an object; one that allows all values in place of what is none."""
        if not isinstance(given, dict):
            return {"not": {}} if given is False else {}
        form: Schema = {}
        for name, value in given.items():
            kept = self._value(name, value)
            if kept is not None or (value is None and name in _ANY):
                form[name] = kept
        if isinstance(tuple_items := given.get("items"), list) and "prefixItems" not in form:
            form |= {"prefixItems": list(map(self.schema, tuple_items))} if tuple_items else {}
        if "$ref" in form:
            self.references.append(form)
        if "$anchor" in form:
            self.anchors.add(form["$anchor"])
        return form

    def _value(self, name: str, value: Any) -> Any:
        """Returns a keyword's value; None to remove the keyword."""
        if name in _PLAIN:
            return _PLAIN[name](value)
        if name in _SCHEMAS and isinstance(value, dict | bool):
            # Closed objects are usual, other booleans are not: some programs take only objects.
            return value if isinstance(value, bool) and name in _MAY_BE_BOOLEAN else self.schema(value)
        if name in _LISTS and isinstance(value, list):
            return [self.schema(each) for each in value if isinstance(each, dict | bool)] or None
        if name in _MAPS and isinstance(value, dict):
            return {key: self.schema(each) for key, each in value.items()}
        if name == "dependencies" and isinstance(value, dict):
            return {
                key: _names(each) if isinstance(each, list) else self.schema(each)
                for key, each in value.items()
            }
        return None if name in _KNOWN else value


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _text_like(pattern: re.Pattern[str]) -> Callable[[Any], Any]:
    return lambda value: value if isinstance(value, str) and pattern.fullmatch(value) else None


def _pattern(value: Any) -> Any:
    """Returns a regular expression that is one in most languages, or too long to look at."""
    if not isinstance(value, str) or len(value) > MAX_PATTERN:
        return _text(value)
    if _PYTHON_ONLY.search(value):
        return None
    try:
        re.compile(value)  # without flags, of which one would make it slow
    except (re.error, OverflowError, RecursionError):
        return None
    return value


def _flag(value: Any) -> Any:
    return value if isinstance(value, bool) else None


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(value: Any) -> Any:
    return value if _number(value) is not None and value >= 0 and value == int(value) else None


def _divisor(value: Any) -> Any:
    return value if _number(value) is not None and value > 0 else None


def _list(value: Any) -> Any:
    return value if isinstance(value, list) else None


def _names(value: Any) -> Any:
    return (
        list(dict.fromkeys(name for name in value if isinstance(name, str)))
        if isinstance(value, list)
        else None
    )


def _named_names(value: Any) -> Any:
    if not isinstance(value, dict):
        return None
    return {name: _names(each) for name, each in value.items() if isinstance(each, list)}


def _types(value: Any) -> Any:
    """Returns names of types, also of those that are written `STRING`."""
    if isinstance(value, list):
        found = (_types(each) for each in value if isinstance(each, str))
        return list(dict.fromkeys(each for each in found if each)) or None
    kind = value.lower() if isinstance(value, str) else ""
    return kind if kind in _TYPES else None


_ANY: Final = frozenset({"const", "default"})
"""Keywords whose value may be null."""
_SCHEMAS: Final = frozenset(
    {
        "additionalProperties",
        "unevaluatedProperties",
        "items",
        "unevaluatedItems",
        "contains",
        "propertyNames",
    }
    | {"not", "if", "then", "else", "contentSchema"}
)
_MAY_BE_BOOLEAN: Final = frozenset({"additionalProperties", "unevaluatedProperties", "unevaluatedItems"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "type": _types,
    "required": _names,
    "enum": _list,
    "examples": _list,
    "dependentRequired": _named_names,
    "multipleOf": _divisor,
    "pattern": _pattern,
    "$anchor": _text_like(_ANCHOR),
    "$dynamicAnchor": _text_like(_ANCHOR),
    "$schema": _text_like(_DIALECT),
    **dict.fromkeys(("title", "description", "$comment", "format", "$ref", "$dynamicRef"), _text),
    **dict.fromkeys(("contentMediaType", "contentEncoding"), _text),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _flag),
    **dict.fromkeys(("$id", "$vocabulary"), lambda value: None),
}
_KNOWN: Final = _SCHEMAS | _LISTS | _MAPS | {"dependencies"}


# --- the root -------------------------------------------------------------------------------------


class _Root:
    """Joins the parts of a root: what it refers to, and its alternatives."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = MAX_PARTS

    def joined(self, schema: Schema, depth: int = 0) -> Schema:
        """Returns the properties of all parts, which of them every object has, and whether there are no others."""
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            return {"properties": {}}
        parts = [schema]
        target = _target(schema.get("$ref", ""), self._root)
        every = [*([] if target is None else [target]), *schema.get("allOf", ())]
        parts += [self.joined(each, depth + 1) for each in every]
        for name in ("anyOf", "oneOf"):
            if found := [
                self.joined(each, depth + 1) for each in schema.get(name, ()) if _allows_objects(each)
            ]:
                required = set.intersection(*(set(each.get("required", ())) for each in found))
                either = _together(found, "anyOf", required, closed=all(map(_is_closed, found)))
                parts.append(either)
        named = [name for each in parts for name in each.get("required", ())]
        return _together(parts, "allOf", named, closed=any(map(_is_closed, parts)))


def _together(parts: Sequence[Schema], conflict: str, required: Iterable[str], *, closed: bool) -> Schema:
    """`conflict`: joins the schemas of a property that several parts have."""
    found: dict[str, dict[bytes, Any]] = {}
    for part in parts:
        for name, schema in part.get("properties", {}).items():
            found.setdefault(name, {})[encode_json(schema)] = schema
    properties = {
        name: next(iter(schemas.values())) if len(schemas) == 1 else {conflict: [*schemas.values()]}
        for name, schemas in found.items()
    }
    names = {"required": names} if (names := sorted(set(required))) else {}
    return {"properties": properties, **names, **({"additionalProperties": False} if closed else {})}


def _is_closed(schema: Schema) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def _allows_objects(schema: Schema) -> bool:
    kind = schema.get("type", "object")
    return "object" in (kind if isinstance(kind, list) else [kind])


def _target(reference: str, root: Schema) -> Schema | None:
    """Returns the schema at a path in `root`, if there is one."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if re.fullmatch("[0-9]{1,7}", name) and int(name) < len(found) else None
        else:
            found = value_at(found, name)
    return found if isinstance(found, dict) else None
