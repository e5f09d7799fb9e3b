"""The subset of JSON Schema that OpenAI's structured outputs accept, and the analysis of a client's schema for it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import msgspec

STRICT_KEYWORDS = frozenset({
    "$schema", "$id", "$defs", "definitions", "$ref", "$comment", "title", "description",
    "type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items",
    "pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minItems", "maxItems",
})  # fmt: skip
"""Keywords that OpenAI documents. With any other, this server enforces the schema instead of the provider."""

STRICT_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
STRICT_DEPTH, STRICT_PROPERTIES, STRICT_ENUM = 10, 5_000, 1_000
"""OpenAI's limits: nesting, and properties and enum values in all."""

DEFINITIONS = ("$defs", "definitions")


def is_strict(root: Any) -> bool:
    """Whether a schema is in the subset: closed objects, all properties required, known keywords, within OpenAI's
    limits.
    """
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
        waiting += [(inner, depth + deeper) for inner, deeper in _subschemas(each)]
    return properties <= STRICT_PROPERTIES and values <= STRICT_ENUM


def _fits(schema: dict[str, Any]) -> bool:
    """Whether one schema, without those inside it, is in the subset."""
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
    named = schema.get("type", ())
    return list(named) if isinstance(named, list | tuple) else [named]


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[Any, int]]:
    """Yields the schemas directly inside a schema, and how many levels deeper each is (0 for definitions and `anyOf`,
    else 1).
    """
    for key in ("properties", *DEFINITIONS):
        inner = schema.get(key, {})
        if isinstance(inner, dict):
            yield from ((each, int(key == "properties")) for each in inner.values())
    if isinstance(schema.get("anyOf"), list):
        yield from ((each, 0) for each in schema["anyOf"])
    if "items" in schema:
        yield schema["items"], 1


ANNOTATIONS: Final = frozenset({"default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Keywords that describe a value, reject none, and are not in the subset."""
_ALLOWED_BESIDE_REFERENCE: Final = ANNOTATIONS | {"title", "description", "$comment"}
"""Keywords that may stand beside a reference without changing which values are valid."""


class CannotFitError(Exception):
    """OpenAI's strict subset has no schema with the same meaning as the client's."""


class Absence(Enum):
    """How an answer represents an absent optional property."""

    AS_NULL = "null"
    """Null, which is not one of its own values."""
    WRAPPED = "wrapped"
    """Null, or an object with the value, which may be null itself."""
    NOT_NEEDED = "not needed"
    """The default value, which means the same."""


class SchemaDocument:
    """A client's schema, normalised, and the schemas that its references name."""

    def __init__(self, schema: bytes) -> None:
        """Decodes a schema. Raises `msgspec.DecodeError` or `RecursionError`."""
        self.root = _normalise(msgspec.json.decode(schema))
        self._nullable: dict[str, bool] = {}
        """Whether null is valid under the schema that a reference names."""

    def target(self, reference: str) -> Any:
        """Returns what a reference names; raises `CannotFitError` unless that is the whole schema or a definition."""
        if reference == "#":
            return self.root
        for key in DEFINITIONS:
            name = reference.removeprefix(f"#/{key}/")
            if name != reference and "/" not in name and "%" not in name:
                definitions = self.root.get(key)
                name = name.replace("~1", "/").replace("~0", "~")
                if isinstance(definitions, dict) and isinstance(definitions.get(name), dict):
                    return definitions[name]
        raise CannotFitError

    def absence(self, schema: Any) -> Absence:
        """Returns how an absent optional property is represented. Raises `CannotFitError`."""
        nullable = self._allows_null(schema)
        words = listed_words(schema)
        sole = [*([None] if nullable else []), *(words if len(words) == 1 else ())]
        if "default" in schema and schema["default"] in sole:
            return Absence.NOT_NEEDED
        return Absence.WRAPPED if nullable else Absence.AS_NULL

    def _allows_null(self, schema: Any) -> bool:
        """Whether null is valid under a schema. Raises `CannotFitError` if that cannot be found out."""
        if not isinstance(schema, dict):
            raise CannotFitError
        if "$ref" in schema:
            reference = str(schema["$ref"])
            if reference not in self._nullable:
                self._nullable[reference] = True  # until it is known: of one that leads to itself nothing is
                self._nullable[reference] = self._allows_null(self.target(reference))
            return self._nullable[reference]
        if "type" in schema and "null" not in kinds(schema):
            return False
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            return False
        if schema.get("const") is not None:
            return False
        branches = schema.get("anyOf")
        return not isinstance(branches, list) or any(self._allows_null(each) for each in branches)


def listed_words(schema: Any) -> frozenset[str]:
    """Returns the strings that `enum` or `const` allows; none if there are other values."""
    values = schema.get("enum", [schema.get("const")]) if isinstance(schema, dict) else ()
    is_words = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return frozenset(values) if is_words else frozenset()


def _normalise(schema: Any) -> Any:
    """Returns the schema with `anyOf` for an `allOf` of one schema and for a `$ref` with annotations."""
    if not isinstance(schema, dict):
        return schema
    form = dict(schema)
    for key, branches in (("allOf", form.get("allOf")), ("$ref", [{"$ref": form.get("$ref")}])):
        if (
            key in form
            and isinstance(branches, list)
            and len(branches) == 1
            and form.keys() - _ALLOWED_BESIDE_REFERENCE == {key}
        ):
            if key == "allOf" or len(form) > 1:
                del form[key]
                form["anyOf"] = branches
            break
    for key in ("properties", *DEFINITIONS):
        if isinstance(form.get(key), dict):
            form[key] = {name: _normalise(each) for name, each in form[key].items()}
    if isinstance(form.get("anyOf"), list):
        form["anyOf"] = [_normalise(each) for each in form["anyOf"]]
    if "items" in form:
        form["items"] = _normalise(form["items"])
    return form
