"""Schemas of tools in every form that a client may send: each keyword with each odd value, at the root and within."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

KEYWORDS: Final = (
    *("type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum", "const"),
    *(
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "if",
        "then",
        "else",
        "$ref",
        "$defs",
        "definitions",
        "$id",
        "$anchor",
    ),
    *("$schema", "$comment", "title", "description", "default", "examples", "format", "pattern", "nullable"),
    *(
        "patternProperties",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "minimum",
    ),
    *("exclusiveMinimum", "multipleOf", "maxLength", "uniqueItems", "unevaluatedProperties", "contains"),
)
_BRANCH: Final = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 1.5, 1 << 64, -(1 << 63) - 1, 10**400, "", "x", "object", "OBJECT", "any"),
    *("(", "#", "#a b", "#/$defs/missing", "#/properties/city", "http://json-schema.org/draft-04/schema#"),
    *([], [None], [1], ["a"], ["a", "a"], ["object", "null"], ["null"], [{}], [True], [[]], [{"$ref": "#"}]),
    *({}, {"a": None}, {"a": True}, {"a": {}}, {"a": ["b", None]}, {"$ref": "#"}, {"type": "null"}),
    *([_BRANCH], [_BRANCH, {"type": "null"}], {"a": _BRANCH}, _BRANCH),
)
CITY: Final = {"type": "object", "properties": {"city": {"type": "string"}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"n": schema}}
    return schema


WHOLE: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"properties": {}},
    {"$ref": "#"},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"next": {"$ref": "#/$defs/A"}}, "required": ["next"]}}},
    {"allOf": [{"$ref": "#/definitions/A"}, _BRANCH], "definitions": {"A": CITY}},
    {"oneOf": [CITY, _BRANCH], "additionalProperties": None, "required": None},
    {"type": "object", "properties": {name: {} for name in ("", "a b", "$filter", "ü", "x" * 65, "__proto__")}},
    {"type": "object", "properties": {name: {"type": "string"} for name in ("type", "$ref", "properties")}},
    {"type": "object", "properties": {"a": {"enum": [None, "a", 1, {}]}}, "required": ["unknown"]},
    nested(40),
)  # fmt: skip


def schemas() -> Iterator[dict[str, Any]]:
    """Yields all of them."""
    yield from WHOLE
    for keyword in KEYWORDS:
        for odd in ODD:
            yield {keyword: odd}
            yield {**CITY, keyword: odd}
            yield {"type": "object", "properties": {"city": {keyword: odd}}}
            yield {"type": "object", "properties": {"city": {"type": "array", "items": {keyword: odd}}}}
