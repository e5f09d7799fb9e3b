"""What an agent asks its user for beside permissions: a form with a few fields, or to open a page. The form's fields
are read from the JSON Schema of ACP's and MCP's elicitations, and what the user gives is held to them. Source: npm
@agentclientprotocol/sdk 2.4.0 `schema/v1/schema.json`, `ElicitationSchema`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.json_values import objects_in, text_at, value_at
from codex_proxy.core.shown_text import escape, excerpt, number_text

FieldType: TypeAlias = Literal["text", "number", "integer", "boolean", "choice", "choices"]
Value: TypeAlias = str | int | float | bool | list[str]

ASK_USER: Final = "ask_user"
"""The name of a question with a form."""
OPEN_URL: Final = "open_url"
"""The name of a question whether to open a page."""
MAX_FIELDS: Final = 32
MAX_OPTIONS: Final = 100
MAX_NAME: Final = 100
"""Maximum characters of a field's name, a title and an option."""
MAX_TEXT: Final = 4000
"""Maximum characters of a message, and of a description."""
MAX_ASKED: Final = 65_536
"""Maximum bytes of all that a form asks, as JSON: it is stored with the session, and shown, as long as it is open."""
MAX_VALUE: Final = 16_384
"""Maximum characters of a text that the user gives."""
MAX_NUMBER: Final = 1 << 53
MAX_URL: Final = 2000
_ADDRESS: Final = re.compile(
    r"(?i:https?)://([a-zA-Z0-9.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?([/?#][!-\[\]-~]*)?"
)
"""Host and port, without a user's name before them; what follows has no backslash, which browsers take for a slash."""
_NAME: Final = re.compile(r"[\w.$ -]+")
_TYPES: Final[Mapping[str, FieldType]] = {
    "string": "text",
    "number": "number",
    "integer": "integer",
    "boolean": "boolean",
    "array": "choices",
}


class FormError(Exception):
    """A form that no user is shown. Says why."""


class Option(msgspec.Struct, frozen=True):
    """A choice: the value that is sent, and what the user reads."""

    value: str
    title: str


class FormField(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of a form. `minimum`, `maximum`: of a number; of a text its characters, of `choices` how many."""

    name: str
    type: FieldType
    title: str
    description: str = ""
    required: bool = False
    options: tuple[Option, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    default: Value | None = None


# --- what the agent asks for ----------------------------------------------------------------------


def read_form(schema: object) -> tuple[FormField, ...]:
    """Returns the fields of a schema. Raises `FormError` for one that is not of the protocol, or too large."""
    properties = value_at(schema, "properties")
    if not isinstance(properties, Mapping) or not properties:
        raise FormError("the form has no fields")
    if len(properties) > MAX_FIELDS:
        raise FormError(f"the form has more than {MAX_FIELDS} fields")
    required = value_at(schema, "required") or []
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise FormError("the form's list of required fields is none")
    if missing := set(required) - properties.keys():
        raise FormError(f"the form requires the field '{excerpt(min(missing))}', which it does not have")
    needed = frozenset(required)
    return tuple(_field(name, given, required=name in needed) for name, given in properties.items())


def form_schema(fields: Sequence[FormField]) -> dict[str, Any]:
    """Returns the JSON Schema with which an MCP server asks for the same fields. No text in it that a person is shown
    has a character that cannot be seen.
    """
    return {
        "type": "object",
        "properties": {field.name: _property(field) for field in fields},
        "required": [field.name for field in fields if field.required],
    }


def _property(field: FormField) -> dict[str, Any]:
    type = next(name for name, of in _TYPES.items() if of == _TYPE_OF_CHOICE.get(field.type, field.type))
    least, most = _BOUNDS[field.type]
    found: dict[str, Any] = {"type": type, "title": escape(field.title)}
    if field.description:
        found["description"] = escape(field.description)
    if field.minimum is not None:
        found[least] = field.minimum if field.type == "number" else math.ceil(field.minimum)
    if field.maximum is not None:
        found[most] = field.maximum if field.type == "number" else math.floor(field.maximum)
    titled = [{"const": each.value, "title": escape(each.title)} for each in field.options]
    if all(each.value == each.title == escape(each.title) for each in field.options):
        choices: dict[str, Any] = {"enum": [each.value for each in field.options]}
    else:
        choices = {"anyOf" if field.type == "choices" else "oneOf": titled}
    if field.type == "choices":
        found["items"] = {"type": "string", **choices} if "enum" in choices else choices
    elif field.type == "choice":
        found |= choices
    if field.default is not None and _is_visible(field.default):
        found["default"] = field.default
    return found


def _is_visible(value: Value) -> bool:
    """Whether a person sees every character of a value."""
    texts = value if isinstance(value, list) else [value]
    return all(not isinstance(each, str) or each.isprintable() for each in texts)


_TYPE_OF_CHOICE: Final[Mapping[FieldType, FieldType]] = {"choice": "text"}
"""A choice is a text of which JSON Schema lists the values."""


def _field(name: str, given: object, *, required: bool) -> FormField:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise FormError(f"the form has a field with the name '{excerpt(name)}'")
    type = _TYPES.get(text_at(given, "type"))
    if type is None:
        raise FormError(f"the field '{name}' has no type that is known")
    options = _options(name, given, several=type == "choices")
    if type == "choices" and not options:
        raise FormError(f"the field '{name}' has no options")
    if type == "text" and options:
        type = "choice"
    least, most = _BOUNDS[type]
    field = FormField(
        name,
        type,
        _text(given, "title", MAX_NAME, name) or name,
        _text(given, "description", MAX_TEXT, name),
        required,
        options,
        _number(given, least),
        _number(given, most),
    )
    default = value_at(given, "default")
    return field if trouble_with(field, default) else msgspec.structs.replace(field, default=default)


_BOUNDS: Final[Mapping[FieldType, tuple[str, str]]] = {
    "text": ("minLength", "maxLength"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": ("", ""),
    "choice": ("", ""),
    "choices": ("minItems", "maxItems"),
}


def _options(name: str, given: object, *, several: bool) -> tuple[Option, ...]:
    of = value_at(given, "items") if several else given
    plain, titled = value_at(of, "enum"), value_at(of, "anyOf" if several else "oneOf")
    found = [Option(each, each) for each in plain if isinstance(each, str)] if isinstance(plain, list) else []
    found += [
        Option(value, text_at(each, "title") or value)
        for each in objects_in(titled)
        if isinstance(value := each.get("const"), str)
    ]
    if len(found) > MAX_OPTIONS:
        raise FormError(f"the field '{name}' has more than {MAX_OPTIONS} options")
    if any(len(each.value) > MAX_NAME or len(each.title) > MAX_NAME for each in found):
        raise FormError(f"an option of the field '{name}' is too long")
    return tuple(found)


def _text(given: object, key: str, longest: int, name: str) -> str:
    text = text_at(given, key)
    if len(text) > longest:
        raise FormError(f"the {key} of the field '{name}' is too long")
    return text


def _number(given: object, key: str) -> float | None:
    found = value_at(given, key) if key else None
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return found if abs(found) <= MAX_NUMBER else None


def read_message(given: object) -> str:
    """Returns what the user is told. Raises `FormError` for what is no text, or too long."""
    if not isinstance(given, str) or not given.strip():
        raise FormError("the form has no message")
    if len(given) > MAX_TEXT:
        raise FormError("the form's message is too long")
    return given


def read_url(given: object) -> str:
    """Returns an address that a browser may open. Raises `FormError` for any other, as `javascript:`, and for one that
    hides where it leads.
    """
    if not isinstance(given, str) or len(given) > MAX_URL:
        raise FormError("the address is none, or too long")
    if not _ADDRESS.fullmatch(given):
        raise FormError("the address is not one of the web, or hides where it leads")
    return given


# --- what the user gives --------------------------------------------------------------------------


def check_values(fields: Sequence[FormField], given: Mapping[str, Any]) -> None:
    """Raises `Fault` INVALID_REQUEST for values that do not fit the fields, with the field as `param`."""
    known = {field.name: field for field in fields}
    for name in given:
        if name not in known:
            raise _fault("the form has no such field.", name)
    for field in fields:
        if field.name not in given:
            if field.required:
                raise _fault("the form needs it.", field.name)
        elif trouble := trouble_with(field, given[field.name]):
            raise _fault(trouble, field.name)


def _fault(message: str, name: str) -> Fault:
    return bad_request(f"The field '{excerpt(name)}': {message}", f"content.{excerpt(name)}")


def trouble_with(field: FormField, value: object) -> str:
    """Returns what is wrong with a value; empty if it fits the field."""
    size = _size(field, value)
    if size is None:
        return f"give {_WANTED[field.type]}."
    low = field.minimum is not None and size < field.minimum
    high = field.maximum is not None and size > field.maximum
    return f"give {_WANTED[field.type]}{_within(field)}." if low or high else ""


def _within(field: FormField) -> str:
    low = "" if field.minimum is None else f"from {number_text(field.minimum)}"
    high = "" if field.maximum is None else f"up to {number_text(field.maximum)}"
    return f" ({' '.join(filter(None, (_OF[field.type], low, high)))})"


_OF: Final[Mapping[FieldType, str]] = {
    "text": "characters",
    "number": "",
    "integer": "",
    "boolean": "",
    "choice": "",
    "choices": "options",
}


_WANTED: Final[Mapping[FieldType, str]] = {
    "text": f"a text of at most {MAX_VALUE} characters",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "choice": "one of the options",
    "choices": "a list of different options",
}


def _size(field: FormField, value: object) -> float | None:
    """Returns what the field's bounds are about; None for a value of another kind."""
    options = [each.value for each in field.options]
    match field.type, value:
        case "boolean", bool():
            return 0
        case (("number" | "integer"), bool()):
            return None
        case ("number", int() | float() as number) | ("integer", int() as number):
            return number if abs(number) <= MAX_NUMBER else None
        case "text", str():
            return len(value) if len(value) <= MAX_VALUE else None
        case "choice", str():
            return 0 if value in options else None
        case "choices", list():
            known = all(each in options for each in value)
            return len(value) if known and len(set(value)) == len(value) else None
    return None
