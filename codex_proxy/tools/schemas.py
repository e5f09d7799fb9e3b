"""JSON schemas: whether one is one, what breaks it, and which the agent's strict output takes.

The agent thins the schemas of tools and checks no arguments, so `strict` is kept here. It sends every output
schema as strict, which the provider refuses for schemas outside of OpenAI's subset; those are kept here too.

A schema is the client's and a text the model's, and both are checked on the event loop that serves everybody:
nothing is fetched, and size and work are bounded (`tools/keywords.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

from codex_proxy.tools.keywords import Work, bounded

LONGEST_VALUE = 200
"""Characters of an offending value that a message repeats: the model has to see what was wrong, not all of it."""

LARGEST_SCHEMA = 128 * 1024
"""Bytes of a schema: to see that one is a schema takes up to 7 µs per byte, in which nobody else is served.
OpenAI takes 120,000 characters of names."""

MOST_SCHEMAS = 64
"""Schemas that are kept ready for the next request: some 80 MiB if all of them were as large as can be."""

LONGEST_TEXT = 1024 * 1024
"""Characters of a text that is checked: nobody else is served while it is parsed. The files that a model writes
in a call are a tenth of it."""

MOST_ERRORS = 50
"""Of a text, of which the most telling one is told: a long list can have one in each of its members."""


class NotASchemaError(ValueError):
    """What was given as a JSON schema is none; the text says where and why."""


class _Ready(msgspec.Struct, frozen=True):
    validator: Validator
    work: Work


@lru_cache(maxsize=MOST_SCHEMAS)
def _ready(schema: bytes) -> _Ready:
    if len(schema) > LARGEST_SCHEMA:
        raise NotASchemaError(f"it is larger than {LARGEST_SCHEMA >> 10} KiB")
    try:
        value = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotASchemaError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise NotASchemaError("it is neither an object nor a boolean")
    if isinstance(value, dict) and not isinstance(value.get("$schema", ""), str):
        raise NotASchemaError("$.$schema: it is no string")
    draft: Any = validator_for(value, default=Draft202012Validator)
    try:
        # No formats: what Python takes for a regular expression is not what JSON schema takes for one.
        draft.check_schema(value, format_checker=None)
        _refuse_distant_references(value)
    except SchemaError as error:
        raise NotASchemaError(f"{_path(error.absolute_path)}: {_shortened(error.message)}") from error
    except RecursionError as error:
        raise NotASchemaError("it is nested too deeply") from error
    work = Work()
    # An empty registry: nothing is ever fetched.
    validator: Any = extend(draft, bounded(draft.VALIDATORS, value, work))  # type: ignore[no-untyped-call]
    return _Ready(validator(value, registry=Registry()), work)


def _refuse_distant_references(value: Any) -> None:
    """Raises `NotASchemaError` for a reference that leads out of the schema, or nowhere in it."""
    if not isinstance(value, dict):
        return
    specification = specification_with(value.get("$schema", ""), default=DRAFT202012)
    root = specification.create_resource(value)
    waiting = [(root, Registry().resolver_with_root(root))]
    while waiting:
        resource, resolver = waiting.pop()
        if not isinstance(resource.contents, dict):
            continue
        for keyword in ("$ref", "$dynamicRef"):
            reference = resource.contents.get(keyword)
            if not isinstance(reference, str):
                continue
            try:
                resolver.lookup(reference)
            except Unresolvable as error:
                shown = _shortened(repr(reference))
                raise NotASchemaError(
                    f"the {keyword} {shown} is not in it, and nothing is fetched"
                ) from error
        waiting += [(inner, resolver.in_subresource(inner)) for inner in resource.subresources()]


def check_schema(schema: bytes) -> None:
    """Raises `NotASchemaError` where `schema` (JSON) is no JSON schema.

    Its draft is the one that its `$schema` names, else 2020-12. Every `$ref` has to lead to a place inside of it.
    """
    _ready(schema)


def violation(schema: bytes, text: str) -> str | None:
    """What is wrong with `text` as JSON under `schema`, as a sentence for the model; None where nothing is.

    A text that is too long to be checked is wrong as well, and so is one that the schema cannot be applied to.
    """
    if len(text) > LONGEST_TEXT:
        return f"it is longer than {LONGEST_TEXT:,} characters"
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return f"it is not valid JSON: {error}"
    try:
        ready = _ready(schema)
        ready.work.start()
        broken = best_match(islice(ready.validator.iter_errors(value), MOST_ERRORS))
    except Exception as fault:  # noqa: BLE001 - whatever a client's schema can make a validator raise
        return f"the schema cannot be applied: {_shortened(str(fault))}"
    if broken is None:
        return None
    return f"at {_path(broken.absolute_path)}: {_shortened(broken.message)}"


def _path(parts: Any) -> str:
    path = "$"
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return _shortened(path)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + "…"


# --- OpenAI's subset ------------------------------------------------------------------------------

STRICT_KEYWORDS = frozenset(
    {
        *("$schema", "$id", "$defs", "definitions", "$ref", "$comment", "title", "description"),
        *("type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items"),
        *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minItems", "maxItems"),
    }
)
"""What OpenAI's structured outputs are documented to take. A list of what they refuse would have to be complete;
a keyword that is missing here only means that the schema is kept by us."""

STRICT_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
STRICT_DEPTH, STRICT_PROPERTIES, STRICT_ENUM = 10, 5_000, 1_000
"""OpenAI's limits: levels of nesting, and properties and enum values in the whole schema."""


def is_strict_schema(schema: bytes) -> bool:
    """Whether OpenAI's structured outputs take it: closed objects whose properties are all required."""
    try:
        root = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return False
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
    """Whether one schema, without those inside of it, is as the subset wants it."""
    if not schema.keys() <= STRICT_KEYWORDS or str(schema.get("format", "date")) not in STRICT_FORMATS:
        return False
    if not isinstance(schema.get("enum", []), list):
        return False
    if "$ref" in schema:
        return len(schema) == 1 and str(schema["$ref"]).startswith("#")
    if not schema.keys() & {"type", "enum", "const", "anyOf"}:
        return False
    named = schema.get("type", ())
    kinds = named if isinstance(named, list) else [named]
    if "array" in kinds and "items" not in schema:
        return False
    if "object" not in kinds and "properties" not in schema:
        return True
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    closed = schema.get("additionalProperties") is False
    return closed and len(required) == len(properties) and all(name in required for name in properties)


def _inside(schema: dict[str, Any]) -> Iterator[tuple[Any, int]]:
    """The schemas directly inside of one, and by how much each is nested deeper."""
    for key in ("properties", "$defs", "definitions"):
        inner = schema.get(key, {})
        if isinstance(inner, dict):
            yield from ((each, int(key == "properties")) for each in inner.values())
    if isinstance(schema.get("anyOf"), list):
        yield from ((each, 0) for each in schema["anyOf"])
    if "items" in schema:
        yield schema["items"], 1
