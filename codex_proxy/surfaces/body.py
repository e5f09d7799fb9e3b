"""A request's bytes become a validated value, or a 400 that names the field as OpenAI writes it.

In: bytes and a pydantic model. Out: an instance of it. Raises `Fault` INVALID_REQUEST, also for NaN, 10^30, lone
surrogates, invalid UTF-8 and deep nesting (OpenAI's wire rules, "Errors"), or REQUEST_TOO_LARGE; nothing else.

Unions are told apart by `by_kind`, whose tags start with `~`: pydantic puts tags into an error's place, and
here they are left out again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Discriminator, ValidationError

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request

DEPTH: Final = 128
"""Levels of nesting. Real schemas need a dozen; whoever walks the value later must not run out of stack."""

MOST_VALUES: Final = 200_000
"""Members of all objects and arrays together. A conversation of a million tokens has a quarter of it; validating as
many takes half a second, during which nobody else is served."""

MOST_BRACKETS: Final = 5 * MOST_VALUES
"""Opening brackets, also those in texts: so many objects and arrays take too long even to be decoded. The text of a
million tokens has a tenth of it."""

MOST_ITEMS: Final = 10_000
"""Messages or items of one request, unless the operator says otherwise. Clients send a long conversation as some
hundreds; each is validated, told to the agent, and compared with threads that are kept."""

_UNKNOWN_KIND: Final = "unknown_kind"
_SHOWN: Final = 80  # letters of a client's own words in an answer
_EXPECTED: Final = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_GOT: Final[dict[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}

M = TypeVar("M", bound=BaseModel)


class Wire(BaseModel):
    """A part of a request: unknown fields are ignored, types are what they say."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def by_kind(
    field: str,
    tags: Mapping[str, str],
    *,
    text: str | None = None,
    array: str | None = None,
    other: str | None = None,
    untyped: Callable[[dict[str, Any]], str | None] | None = None,
) -> Discriminator:
    """Tells the members of a union apart: by the word in `field` of an object (`other`: an object without
    such a word; `untyped` looks at one that has no `field`), or by being text or an array."""

    def tag(value: Any) -> str | None:
        if isinstance(value, str):
            return text
        if isinstance(value, list):
            return array
        if not isinstance(value, dict):
            return None
        kind = value.get(field)
        if kind is None and untyped is not None:
            return untyped(value)
        return tags.get(kind, other) if isinstance(kind, str) else other

    shapes = {"a string": text, "an array": array, "an object": tags or other}
    kinds = ", ".join(f"'{kind}'" for kind in tags)
    expected = " or ".join(shape for shape, taken in shapes.items() if taken)
    # A discriminator has to be hashable, so what `_unknown_kind` needs travels as lines of the message.
    return Discriminator(
        tag, custom_error_type=_UNKNOWN_KIND, custom_error_message=f"{field}\n{kinds}\n{expected}"
    )


def parse_as(model: type[M], body: bytes) -> M:
    """The body as a `model`."""
    value = decoded(body)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _fault(error) from None


def decoded(body: bytes) -> dict[str, Any]:
    """The object that the body is, not validated, but of a size and depth that can be. Raises `Fault`."""
    if len(body) > MOST_BRACKETS and body.count(b"[") + body.count(b"{") > MOST_BRACKETS:
        raise _too_many(None)
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise bad_request(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request("The request body must be a JSON object.", code="invalid_json")
    level: list[Any] = [value]
    count = 0
    for _ in range(DEPTH):
        count += sum(map(len, level))
        if count > MOST_VALUES:
            raise _too_many(value)
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> Fault:
    return bad_request(f"The request body is nested deeper than {DEPTH} levels.", code="invalid_json")


def _too_many(body: dict[str, Any] | None) -> Fault:
    """Names the field that has the most members of its own, where the body was read."""
    param = None
    if body is not None:
        sizes = {field: len(part) for field, part in body.items() if isinstance(part, dict | list)}
        param = max(sizes, key=lambda field: sizes[field], default="")[:_SHOWN] or None
    return Fault(
        Failure(
            kind=FaultKind.REQUEST_TOO_LARGE,
            message=f"The request body holds more than {MOST_VALUES} values, which is the most that is read.",
            param=param,
        )
    )


def most_elements(field: str, count: int, limit: int) -> None:
    """Raises `Fault` for an array of the request with more elements than the operator allows."""
    if count > limit:
        raise bad_request(
            f"Invalid value for '{field}': expected at most {limit} elements, but got {count} "
            "(PROXY_MAX_INPUT_ITEMS).",
            field,
            "array_above_max_length",
        )


def _fault(error: ValidationError) -> Fault:
    """The first thing that is wrong, in OpenAI's words and with OpenAI's codes."""
    first = error.errors(include_url=False)[0]
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    param = _path(first["loc"])
    if kind == _UNKNOWN_KIND:
        return _unknown_kind(param, value, first["msg"])
    if kind == "missing" or (value is None and kind in _EXPECTED):
        return _missing(param)
    if kind in _EXPECTED:
        return _wrong_type(param, value, _EXPECTED[kind])
    number = "integer" if isinstance(value, int) else "decimal"
    known = {
        "literal_error": ("supported values are: {expected}", "invalid_value"),
        "greater_than_equal": ("expected a value of at least {ge}", f"{number}_below_min_value"),
        "less_than_equal": ("expected a value of at most {le}", f"{number}_above_max_value"),
        "too_short": ("expected at least {min_length} element(s)", "empty_array"),
        "too_long": ("expected at most {max_length} elements", "array_above_max_length"),
        "string_too_short": ("expected at least {min_length} character(s)", "string_below_min_length"),
        "string_too_long": ("expected at most {max_length} characters", "string_above_max_length"),
        "string_pattern_mismatch": ("expected a text that matches {pattern}", "invalid_value"),
    }
    words, code = known.get(kind, (first["msg"].replace("{", "{{").replace("}", "}}"), "invalid_value"))
    return bad_request(f"Invalid value for '{param}': {words.format(**context)}.", param, code)


def _unknown_kind(param: str, value: Any, message: str) -> Fault:
    """None of a union's members: the wrong shape, or an object with a wrong word (or none) in its field."""
    field, kinds, expected = message.split("\n")
    if value is None:
        return _missing(param)
    if not isinstance(value, dict) or not kinds:
        return _wrong_type(param, value, expected)
    inner = f"{param}.{field}"
    kind = value.get(field)
    if kind is None:
        return _missing(inner)
    if not isinstance(kind, str):
        return _wrong_type(inner, kind, "a string")
    return bad_request(f"Invalid value for '{inner}': supported values are: {kinds}.", inner, "invalid_value")


def _missing(param: str) -> Fault:
    return bad_request(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _wrong_type(param: str, value: Any, expected: str) -> Fault:
    got = _GOT.get(type(value), "null")
    return bad_request(
        f"Invalid type for '{param}': expected {expected}, but got {got} instead.", param, "invalid_type"
    )


def _path(place: tuple[int | str, ...]) -> str:
    """`messages[0].content[1].image_url.url`"""
    path = ""
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith("~") and step != "[key]":
            path += f".{step}" if path else step
    return path
