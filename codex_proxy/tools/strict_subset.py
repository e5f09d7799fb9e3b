"""The subset of JSON Schema that OpenAI's structured outputs accept.

The agent sends each output schema as strict, and the provider refuses one outside the subset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

STRICT_KEYWORDS = frozenset(
    {
        *("$schema", "$id", "$defs", "definitions", "$ref", "$comment", "title", "description"),
        *("type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items"),
        *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minItems", "maxItems"),
    }
)
"""The keywords that OpenAI documents for structured outputs. A list of refused keywords would have to be complete; a
keyword that is missing here only means that this server enforces the schema."""

STRICT_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
STRICT_DEPTH, STRICT_PROPERTIES, STRICT_ENUM = 10, 5_000, 1_000
"""OpenAI's limits: levels of nesting, and properties and enum values in the whole schema."""

DEFINITIONS = ("$defs", "definitions")


def is_strict(root: Any) -> bool:
    """Whether OpenAI's structured outputs accept a schema: closed objects whose properties are all required."""
    if not isinstance(root, dict) or root.get("type") != "object" or "anyOf" in root:
        return False
    properties = values = 0
    waiting: list[tuple[Any, int]] = [(root, 1)]
    while waiting:
        each, depth = waiting.pop()
        if not isinstance(each, dict) or depth > STRICT_DEPTH or not _fits(each):
            return False
        properties += len(each.get("properties", ()))
        values += len(each.get("enum", ()))
        waiting += [(inner, depth + deeper) for inner, deeper in _inside(each)]
    return properties <= STRICT_PROPERTIES and values <= STRICT_ENUM


def _fits(schema: dict[str, Any]) -> bool:
    """Whether one schema, without the schemas inside it, is in the subset."""
    if not schema.keys() <= STRICT_KEYWORDS or str(schema.get("format", "date")) not in STRICT_FORMATS:
        return False
    if not isinstance(schema.get("enum", []), list):
        return False
    if "$ref" in schema:
        return len(schema) == 1 and str(schema["$ref"]).startswith("#")
    if not schema.keys() & {"type", "enum", "const", "anyOf"}:
        return False
    types = kinds(schema)
    if "array" in types and "items" not in schema:
        return False
    if "object" not in types and "properties" not in schema:
        return True
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    names = {name for name in required if isinstance(name, str)}
    closed = schema.get("additionalProperties") is False
    return closed and len(required) == len(properties) and names == properties.keys()


def kinds(schema: dict[str, Any]) -> list[Any]:
    """Returns the types that `type` allows; none where it is missing."""
    named = schema.get("type", ())
    return list(named) if isinstance(named, list | tuple) else [named]


def _inside(schema: dict[str, Any]) -> Iterator[tuple[Any, int]]:
    """Yields the schemas directly inside a schema, and how many levels deeper each is nested."""
    for key in ("properties", *DEFINITIONS):
        inner = schema.get(key, {})
        if isinstance(inner, dict):
            yield from ((each, int(key == "properties")) for each in inner.values())
    if isinstance(schema.get("anyOf"), list):
        yield from ((each, 0) for each in schema["anyOf"])
    if "items" in schema:
        yield schema["items"], 1
