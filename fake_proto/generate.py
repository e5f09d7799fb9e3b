"""Generates values that are valid under a JSON Schema, always the same. Schemas that OpenAI accepts are supported;
other keywords (`not`, `if`, `dependentSchemas`) are ignored.
"""

from __future__ import annotations

import math
import re
from importlib import import_module

codes = import_module("re._constants")
_parser = import_module("re._parser")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Schema = dict[str, Any]

OPTIONAL_DEPTH = 5
"""The level of nesting from which only required properties are generated, so that a recursive schema gets a finite
value."""
TOO_DEEP = 40
FORMATS = {
    "date-time": "2025-01-01T12:00:00Z",
    "date": "2025-01-01",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "somebody@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
}


def value_for(schema: Any, name: str = "text") -> Any:
    """Returns a valid value; None if the schema is malformed. `name`: the text of strings without pattern or format."""
    try:
        return _value(schema, schema, name, 0, 0)
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
        return None


def _value(schema: Any, root: Any, name: str, depth: int, index: int) -> Any:
    """Returns a value. `index`: its place in a list, whose values differ."""
    if not isinstance(schema, dict) or depth > TOO_DEEP:
        return None if depth > TOO_DEEP else name
    schema = _resolve(schema, root, depth)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][index % len(schema["enum"])]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        return _value(_merge(rest, _choose(options, root, depth)), root, name, depth + 1, index)
    kind = _type_of(schema, depth)
    if kind == "object":
        return _object(schema, root, depth)
    if kind == "array":
        return _array(schema, root, name, depth)
    if kind == "string":
        return _string(schema, name, index)
    if kind in ("integer", "number"):
        return _number(schema, kind, index)
    return None if kind == "null" else kind == "boolean" or name


def _resolve(schema: Schema, root: Any, depth: int) -> Schema:
    """Returns the schema without `$ref` and `allOf`."""
    for _ in range(TOO_DEEP):
        if "$ref" in schema:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = _merge(rest, _target(str(schema["$ref"]), root))
        elif "allOf" in schema:
            parts = schema["allOf"]
            schema = {key: value for key, value in schema.items() if key != "allOf"}
            for part in parts:
                schema = _merge(schema, part)
        else:
            return schema
    return {}


def _target(ref: str, root: Any) -> Schema:
    found = root
    for step in ref.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        found = found.get(step, {}) if isinstance(found, dict) else {}
    return found if isinstance(found, dict) else {}


def _merge(one: Schema, other: Any) -> Schema:
    if not isinstance(other, dict):
        return one
    merged = {**one, **other}
    for key in ("properties", "$defs", "definitions"):
        if key in one and key in other:
            merged[key] = {**one[key], **other[key]}
    if "required" in one and "required" in other:
        merged["required"] = [*one["required"], *other["required"]]
    return merged


def _choose(options: list[Any], root: Any, depth: int) -> Any:
    """Returns the first option that is not null; below `OPTIONAL_DEPTH`, null if it is an option."""
    nulls = [option for option in options if isinstance(option, dict) and option.get("type") == "null"]
    others = [option for option in options if option not in nulls]
    return nulls[0] if nulls and (depth > OPTIONAL_DEPTH or not others) else others[0]


def _type_of(schema: Schema, depth: int) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        others = [each for each in kind if each != "null"]
        return "null" if "null" in kind and (depth > OPTIONAL_DEPTH or not others) else str(others[0])
    if kind is None:
        if "properties" in schema or "required" in schema or "additionalProperties" in schema:
            return "object"
        return "array" if "items" in schema or "prefixItems" in schema else "string"
    return str(kind)


def _object(schema: Schema, root: Any, depth: int) -> dict[str, Any]:
    properties: Schema = schema.get("properties") or {}
    required = list(dict.fromkeys(schema.get("required") or ()))
    names = required if depth > OPTIONAL_DEPTH else list(dict.fromkeys([*properties, *required]))
    more = schema.get("additionalProperties")
    made = {name: _value(properties.get(name, more), root, name, depth + 1, 0) for name in names}
    for number in range(int(schema.get("minProperties", 0)) - len(made)):
        name = f"property{number + 1}"
        made[name] = _value(more, root, name, depth + 1, number)
    return made


def _array(schema: Schema, root: Any, name: str, depth: int) -> list[Any]:
    least = int(schema.get("minItems", 0))
    first = schema.get("prefixItems") or []
    count = max(least, len(first), 0 if depth > OPTIONAL_DEPTH or schema.get("items") is False else 1)
    count = min(count, int(schema.get("maxItems", count)))
    items = [*first, *[schema.get("items")] * count][:count]
    return [_value(item, root, name, depth + 1, index) for index, item in enumerate(items)]


def _string(schema: Schema, name: str, index: int) -> str:
    if "pattern" in schema:
        return _matching(str(schema["pattern"])) or name
    text = FORMATS.get(str(schema.get("format")), name)
    if index and text == name:
        text += str(index + 1)
    text = text.ljust(int(schema.get("minLength", 0)), "x")
    return text[: int(schema.get("maxLength", len(text)))]


def _number(schema: Schema, kind: str, index: int) -> float:
    low, high = schema.get("minimum"), schema.get("maximum")
    least = -math.inf if low is None else math.ceil(low)
    most = math.inf if high is None else math.floor(high)
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"]
        least = max(least, math.floor(low) + 1)
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"]
        most = min(most, math.ceil(high) - 1)
    if kind == "number" and least > most and low is not None and high is not None:
        return float(low + high) / 2  # no whole number is between them
    value: float = max(least, min(most, 1 + index))
    step = schema.get("multipleOf")
    if step:
        value = math.ceil(value / step) * step
        if value > most:
            value = math.floor(most / step) * step
    return value


def _matching(pattern: str) -> str:
    """Returns a short text that matches the pattern; empty if it is not supported."""
    try:
        text = "".join(map(_piece, _parser.parse(pattern)))
        return text if re.search(pattern, text) else ""
    except (re.error, NotImplementedError, RecursionError, ValueError):
        return ""


def _piece(part: tuple[Any, Any]) -> str:
    code, value = part
    if code is codes.LITERAL:
        return str(chr(value))
    if code is codes.ANY:
        return "x"
    if code is codes.AT:
        return ""
    if code is codes.IN:
        return _one_of(value)
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        least, most, inner = value
        return "".join(map(_piece, inner)) * int(max(least, min(1, most)))
    if code is codes.SUBPATTERN:
        return "".join(map(_piece, value[-1]))
    if code is codes.BRANCH:
        return "".join(map(_piece, value[1][0]))
    raise NotImplementedError(code)


CATEGORIES = {codes.CATEGORY_DIGIT: "1", codes.CATEGORY_WORD: "a", codes.CATEGORY_SPACE: " "}


def _one_of(choices: list[tuple[Any, Any]]) -> str:
    code, value = choices[0]
    if code is codes.LITERAL:
        return str(chr(value))
    if code is codes.RANGE:
        return str(chr(value[0]))
    if code is codes.CATEGORY and value in CATEGORIES:
        return str(CATEGORIES[value])
    raise NotImplementedError(code)
