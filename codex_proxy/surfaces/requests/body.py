"""Converts a body to a validated value. Raises a `Fault` that names the field as OpenAI does: INVALID_REQUEST
(docs/wire-rules.md#errors) or REQUEST_TOO_LARGE. Has the types of fields that several APIs of OpenAI have; their
ranges are those of OpenAI's own types.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Annotated, Any, Final, Literal, LiteralString, TypeAlias, TypeVar

import msgspec
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.json_values import count_members
from codex_proxy.core.shown_text import MAX_EXCERPT, excerpt
from codex_proxy.surfaces.requests.fields import (
    MODEL,
    TAG,
    UNKNOWN_KIND,
    FieldNotes,
    Ignored,
    folded,
    reads_as_model,
)

MAX_DEPTH: Final = 128
"""Maximum levels of nesting. Real schemas need a dozen."""

MAX_VALUES: Final = 200_000
"""Maximum members of objects and arrays: half a second of validation."""

MAX_BRACKETS: Final = 5 * MAX_VALUES
"""Maximum opening brackets, also inside strings: more take too long to decode."""

MAX_ITEMS: Final = 10_000
"""Maximum messages or items, if the operator sets no other."""

MAX_STOP_CHARS: Final = 1_000
"""Maximum characters of a stop sequence, which is compared with the answer's end at every delta."""

_HALF_OF_A_PAIR: Final = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}[^"]{0,6}"')
"""The first half of a surrogate pair, escaped, at the end of a string."""

_OWN_CODE_PREFIX: Final = "~"
_EXPECTED_TYPES: Final = {
    "int_type": "an integer",
    "float_type": "a decimal",
    "string_type": "a string",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BOUNDS: Final = {
    "less_than_equal": ("le", "above maximum", "<=", "above_max_value"),
    "greater_than_equal": ("ge", "below minimum", ">=", "below_min_value"),
}
_LENGTHS: Final = {
    "too_long": ("max_length", "long", "maximum", "above_max_length"),
    "too_short": ("min_length", "short", "minimum", "below_min_length"),
    "string_too_long": ("max_length", "long", "maximum", "above_max_length"),
    "string_too_short": ("min_length", "short", "minimum", "below_min_length"),
}
_NOUNS: Final[dict[type, str]] = {str: "string", list: "array", dict: "object"}
_GIVEN_TYPES: Final[dict[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    str: "a string",
    list: "an array",
    dict: "an object",
}

M = TypeVar("M", bound=BaseModel)

StopSequence: TypeAlias = Annotated[str, Field(max_length=MAX_STOP_CHARS)]


class RequestModel(BaseModel, strict=True, extra="ignore", frozen=True, defer_build=True):
    """The base of request models: strict types, unknown fields ignored, built when first used. Modules with many of
    them do not postpone their annotations (`from __future__`), which pydantic would compile one by one at the start.
    """


def _require_object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise wrong_value("invalid_function_parameters", "the schema must have the type 'object'")
    return schema


_AN_OBJECT_S: Final = {
    "type": "object",
    "properties": {
        "type": {"anyOf": [{"const": "object"}, {"type": "array", "contains": {"const": "object"}}]}
    },
}
Parameters: TypeAlias = Annotated[
    dict[str, Any], AfterValidator(_require_object_schema), WithJsonSchema(_AN_OBJECT_S)
]
"""The JSON Schema of a tool's arguments, an object."""


def parse_as(model: type[M], body: bytes) -> tuple[M, FieldNotes]:
    """Returns the body as a `model`, and findings about its fields."""
    value, notes = decode_object(body), FieldNotes()
    try:
        parsed = model.model_validate(value, context=notes)
    except ValidationError as error:
        optional = {name for name, field in model.model_fields.items() if not field.is_required()}
        raise _fault(error, optional=optional) from None
    notes.add_unknown_of(value, parsed)
    return parsed, notes


T = TypeVar("T")


def validate(adapter: TypeAdapter[T], value: Any, param: str) -> T:
    """Returns the validated value; `param` is its path."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise _fault(error, param) from None


def decode_object(body: bytes) -> dict[str, Any]:
    """Decodes a JSON object without validating its fields. Raises `Fault` for one that parsers read in different
    ways: a name is twice in an object, or is `model` or another name of the body in another spelling.
    """
    if len(body) > MAX_BRACKETS and body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
        raise _too_many(None)
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise bad_request(
            f"The request body is not valid JSON: {_reason(error, body)}.", code="invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise bad_request("The request body must be a JSON object.", code="invalid_json")
    level: list[Any] = [value]
    count = members = 0
    for _ in range(MAX_DEPTH):
        count += sum(map(len, level))
        if count > MAX_VALUES:
            raise _too_many(value)
        inner: list[Any] = []
        for node in level:
            if type(node) is dict:
                members += len(node)
                node = node.values()
            for child in node:
                if type(child) is dict or type(child) is list:
                    inner.append(child)  # noqa: PERF401 - a comprehension for each node takes longer
        level = inner
        if not level:
            if body.count(b":") != members and count_members(body) != members:
                raise bad_request(
                    "The request body has an object with the same name twice.", code="invalid_json"
                )
            _check_spelling(value)
            return value
    raise _too_deep()


def _reason(error: ValueError, body: bytes) -> str:
    """Returns what is wrong with a body that the decoder refused."""
    # Near the body's end, the decoder takes half of a surrogate pair for the end of its input.
    if "surrogate" in str(error) or ("truncated" in str(error) and _HALF_OF_A_PAIR.search(body[-12:])):
        return "a string has half of a surrogate pair"
    return str(error)


def _check_spelling(value: Mapping[str, Any]) -> None:
    """Raises `Fault` for a name that a parser without regard to case takes for another one."""
    names: dict[str, str] = {}
    for name in value:
        plain = folded(name)
        is_model = plain == MODEL if name.isidentifier() else reads_as_model(name)
        other = MODEL if is_model else names.setdefault(plain, name)
        if other != name:
            message = f"The request body has the name '{excerpt(name)}', which some parsers read as '{excerpt(other)}'."
            raise bad_request(message, excerpt(name), "invalid_json")


def _too_deep() -> Fault:
    return bad_request(f"The request body is nested deeper than {MAX_DEPTH} levels.", code="invalid_json")


def _too_many(body: dict[str, Any] | None) -> Fault:
    param = None
    if body is not None:
        sizes = {field: len(part) for field, part in body.items() if isinstance(part, dict | list)}
        param = excerpt(max(sizes, key=lambda field: sizes[field], default="")) or None
    return Fault.of(
        FaultKind.REQUEST_TOO_LARGE,
        f"The request body has more values than the maximum of {MAX_VALUES}.",
        param=param,
    )


def check_length(field: str, count: int, limit: int) -> None:
    """Raises `Fault` INVALID_REQUEST for more than `limit` elements."""
    if count > limit:
        raise bad_request(
            f"Invalid '{field}': array too long. Expected an array with maximum length {limit}, but got an array with "
            f"length {count} instead (PROXY_MAX_INPUT_ITEMS).",
            field,
            "array_above_max_length",
        )


def _fault(error: ValidationError, prefix: str = "", optional: Container[str] = ()) -> Fault:
    """`optional`: the names of the body's own fields that a request may leave out, of which null is no absence."""
    found = error.errors(include_url=False)
    # What is refused may be what the request gives instead of a missing field, as `prompt` instead of `input`.
    first = next((each for each in found if each["type"] != "missing"), found[0])
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    param = prefix + _path(first["loc"])
    if kind == UNKNOWN_KIND:
        return _unknown_kind(param, value, context)
    if kind == "missing" or (value is None and kind in _EXPECTED_TYPES and param not in optional):
        return missing_parameter(param)
    if kind in _EXPECTED_TYPES:
        return wrong_type(param, value, _EXPECTED_TYPES[kind])
    if kind == "extra_forbidden":
        return bad_request(f"Unknown parameter: '{param}'.", param, "unknown_parameter")
    if kind == "literal_error":
        if not isinstance(value, str):
            return wrong_type(param, value, f"one of {context['expected']}")
        return unsupported_value(param, value, context["expected"])
    problem, code = _problem(kind, value, context)
    if problem:
        return bad_request(f"Invalid '{param}': {problem}", param, code)
    code = kind.removeprefix(_OWN_CODE_PREFIX) if kind.startswith(_OWN_CODE_PREFIX) else "invalid_value"
    return bad_request(f"Invalid value for '{param}': {first['msg']}.", param, code)


def wrong_value(code: str, message: LiteralString) -> PydanticCustomError:
    """Returns a validator's error with OpenAI's code."""
    return PydanticCustomError(f"{_OWN_CODE_PREFIX}{code}", message)


def number_in(text: str, digits: int) -> int:
    """Returns a number of at most `digits` digits, or -1."""
    # `int` takes underscores, signs and digits of any script, and is slow for very many.
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else -1


def invalid_value(param: str, expected: str) -> Fault:
    return bad_request(f"Invalid value for '{param}': {expected}.", param, "invalid_value")


def order_in(query: Mapping[str, str]) -> Literal["asc", "desc"]:
    """Parses `order` of a list's query, by default `desc`. Raises `Fault` INVALID_REQUEST."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid_value("order", "supported values are: 'asc', 'desc'")
    return "asc" if order == "asc" else "desc"


def integer_in(param: str, text: str, minimum: int, maximum: int) -> int:
    """Returns a parameter's number. Raises `Fault` INVALID_REQUEST outside of `minimum` (0 or more) to `maximum`."""
    number = number_in(text, len(str(maximum)))
    if not minimum <= number <= maximum:
        raise invalid_value(param, f"expected an integer from {minimum} to {maximum}")
    return number


def check_maximum(field: str, value: int, maximum: int) -> None:
    """Raises `Fault` INVALID_REQUEST above a `maximum` that is a setting."""
    if value > maximum:
        problem, code = _problem("less_than_equal", value, {"le": maximum})
        raise bad_request(f"Invalid '{field}': {problem}", field, code)


def _problem(kind: str, value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    """Returns OpenAI's message and code for pydantic's error `kind`, if any."""
    if kind in _BOUNDS:
        bound, side, sign, code = _BOUNDS[kind]
        is_decimal = isinstance(context[bound], float)
        number = "decimal" if is_decimal else "integer"
        limit = f"{context[bound]:.16g}" if is_decimal else context[bound]
        expected = f"Expected a value {sign} {limit}"
        return (
            f"{number} {side} value. {expected}, but got {_number_text(value)} instead.",
            f"{number}_{code}",
        )
    if kind in _LENGTHS:
        bound, side, extreme, code = _LENGTHS[kind]
        bare = _NOUNS[type(value)]
        article = "a" if bare == "string" else "an"
        expected = f"Expected {article} {bare} with {extreme} length {context[bound]}, but got"
        if not value:
            return f"empty {bare}. {expected} an empty {bare} instead.", f"empty_{bare}"
        length = f"{article} {bare} with length {len(value)}"
        return f"{bare} too {side}. {expected} {length} instead.", f"{bare}_{code}"
    if kind == "string_pattern_mismatch":
        expected = f"Expected a string that matches the pattern '{context['pattern']}'."
        return f"string does not match pattern. {expected}", "invalid_value"
    return "", ""


def _number_text(value: Any) -> str:
    return excerpt(str(value)) if isinstance(value, float) or abs(value) < 10**MAX_EXCERPT else "a larger one"


def unsupported_value(param: str, given: str, values: str) -> Fault:
    message = f"Invalid value: '{excerpt(given)}'. Supported values are: {values}."
    return bad_request(message, param, "invalid_value")


def _unknown_kind(param: str, value: Any, context: Mapping[str, str]) -> Fault:
    if value is None:
        return missing_parameter(param)
    if not isinstance(value, dict) or not context["kinds"]:
        return wrong_type(param, value, context["expected"])
    inner = f"{param}.{context['field']}"
    kind = value.get(context["field"])
    if kind is None:
        return missing_parameter(inner)
    if not isinstance(kind, str):
        return wrong_type(inner, kind, "a string")
    return unsupported_value(inner, kind, context["kinds"])


def missing_parameter(param: str) -> Fault:
    return bad_request(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def wrong_type(param: str, value: Any, expected: str) -> Fault:
    got = _GIVEN_TYPES.get(type(value), "null")
    return bad_request(
        f"Invalid type for '{param}': expected {expected}, but got {got} instead.", param, "invalid_type"
    )


_TYPED: Final[dict[type, str]] = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}


def typed_at(value: Mapping[str, Any], name: str, kind: type[T], param: str) -> T | None:
    """Returns the field `name` of the object at the path `param`; None if it is absent or null. Raises `Fault`
    INVALID_REQUEST for a value of another type.
    """
    given = value.get(name)
    if given is None or isinstance(given, kind):
        return given
    raise wrong_type(f"{param}.{name}", given, _TYPED[kind])


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(TAG) and step != "[key]":
            name = excerpt(step)  # a key of the client's own, where it is none of ours
            path += f".{name}" if path else name
    return path


CallId: TypeAlias = Annotated[str, Field(min_length=1, max_length=64)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_-]+$")]
"""The name of a tool or schema in the request."""
HistoryName: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
"""The name of a tool in the history, which may be another server's."""
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
Summary: TypeAlias = Literal["auto", "concise", "detailed", "none"]
Verbosity: TypeAlias = Literal["low", "medium", "high"]
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
UpToTwo: TypeAlias = Annotated[float, Field(ge=0, le=2)]
MetadataKey: TypeAlias = Annotated[str, Field(max_length=64)]
MetadataValue: TypeAlias = Annotated[str, Field(max_length=512)]
Metadata: TypeAlias = Annotated[dict[MetadataKey, MetadataValue | None], Field(max_length=16)]
"""A client's metadata on an object: at most 16 keys (docs/contract.md#conversations)."""


class TextFormat(RequestModel):
    type: Literal["text"]


class JsonSchemaFormat(RequestModel):
    """The schema of the answer, as Responses has it."""

    type: Literal["json_schema"]
    name: Name
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class OpenAIRequest(RequestModel, extra="allow"):
    """The fields that are the same in Chat Completions and Responses. Unknown fields are in `model_extra`."""

    stream: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    temperature: UpToTwo | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: UpToTwo | None = None
    prompt_cache_options: Annotated[Any, Ignored()] = None
    prompt_cache_retention: Annotated[str | None, Ignored()] = None
    context_management: Annotated[Any, Ignored()] = None
