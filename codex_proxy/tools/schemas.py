"""JSON schemas: whether one is one, what breaks it, and which the agent's strict output takes.

The agent thins the schemas of tools and checks no arguments, so `strict` is kept here. It sends every output
schema as strict, which the provider refuses for schemas outside of OpenAI's subset; those are kept here too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry

LONGEST_VALUE = 200
"""Characters of an offending value that a message repeats: the model has to see what was wrong, not all of it."""

UNSUPPORTED = frozenset(
    {
        "allOf",
        "not",
        "dependentRequired",
        "dependentSchemas",
        "if",
        "then",
        "else",
        "patternProperties",
        "unevaluatedProperties",
        "unevaluatedItems",
        "propertyNames",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "prefixItems",
        "oneOf",
    }
)
"""Keywords that OpenAI's structured outputs do not take."""


class NotASchemaError(ValueError):
    """What was given as a JSON schema is none; the text says where and why."""


def check_schema(schema: bytes) -> None:
    """Raises `NotASchemaError` where `schema` (JSON) is no JSON schema."""
    _validator(schema)


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Draft202012Validator:
    try:
        value = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotASchemaError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise NotASchemaError("it is neither an object nor a boolean")
    try:
        Draft202012Validator.check_schema(value)
    except SchemaError as error:
        raise NotASchemaError(f"{_path(error.absolute_path)}: {_shortened(error.message)}") from error
    except RecursionError as error:
        raise NotASchemaError("it is nested too deeply") from error
    # An empty registry: a `$ref` to another address is not fetched, it is an error when it is met.
    return Draft202012Validator(value, registry=Registry())


def violation(schema: bytes, text: str) -> str | None:
    """What is wrong with `text` as JSON under `schema`, as a sentence for the model; None where nothing is."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return f"it is not valid JSON: {error}"
    try:
        broken = best_match(_validator(schema).iter_errors(value))
    except Exception as fault:  # noqa: BLE001 - an unresolvable $ref, a bad regular expression: the schema's
        return f"the schema cannot be applied: {_shortened(str(fault))}"
    if broken is None:
        return None
    return f"at {_path(broken.absolute_path)}: {_shortened(broken.message)}"


def _path(parts: Any) -> str:
    path = "$"
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "…"


def is_strict_schema(schema: bytes) -> bool:
    """Whether OpenAI's structured outputs take it: a closed object whose properties are all required."""
    value = msgspec.json.decode(schema)
    if not isinstance(value, dict) or value.get("type") != "object" or "anyOf" in value:
        return False
    return all(_fits(each) for each in _schemas_in(value))


def _fits(schema: dict[str, Any]) -> bool:
    if UNSUPPORTED & schema.keys():
        return False
    kinds = schema.get("type")
    if kinds == "object" or (isinstance(kinds, list) and "object" in kinds) or "properties" in schema:
        properties = schema.get("properties", {})
        if not isinstance(properties, dict) or schema.get("additionalProperties") is not False:
            return False
        return sorted(schema.get("required", ())) == sorted(properties)
    return True


def _schemas_in(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and every schema inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key in ("properties", "$defs", "definitions", "patternProperties"):
        inner = schema.get(key)
        if isinstance(inner, dict):
            for each in inner.values():
                yield from _schemas_in(each)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        inner = schema.get(key)
        if isinstance(inner, list):
            for each in inner:
                yield from _schemas_in(each)
    for key in ("items", "not", "if", "then", "else", "additionalProperties"):
        yield from _schemas_in(schema.get(key))
