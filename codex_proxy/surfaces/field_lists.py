"""The lists that every field of a request is in: served, ignored, refused.

The table of an API is its wire model: a field of the model is served unless it has one of the marks of this module.
`Ignored` is a field that changes nothing here; the answer names it in `x-codex-ignored-params`. `Refused` is a field
without which the answer would be another one; a request that has it is a 400. A field that the model does not have
is unknown: it is ignored and named too, but refused if it holds an id that this server has given, because such a
field asks for something that the server has kept.

Null, false, an empty string, array or object ask for nothing: they are neither named nor refused. Source:
docs/decisions.md#fields-of-requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, LiteralString

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from codex_proxy.core.faults import bad_request
from codex_proxy.core.shown_text import excerpt

MAX_NAMED: Final = 20
"""The most unknown fields that a response header names."""
FIELD_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""The names of fields that a response header can contain."""
_OWN_ID: Final = re.compile(
    r"(?:resp_|conv_|msg_|chatcmpl-)(?=\w*\d)\w{4,}|[a-z]{2,5}_[0-9a-f]{32}", re.ASCII
)
"""An id as this server gives it to a response, a conversation, a message, an answer, or an item."""


class FieldNotes:
    """What a validation has found; it is pydantic's `context`. `ignored` has the names of ignored fields, in the
    order of the request. `refused` has the messages of refused fields that an upstream may serve, by field.
    """

    __slots__ = ("ignored", "refused")

    def __init__(self) -> None:
        self.ignored: dict[str, None] = {}
        self.refused: dict[str, str] = {}


class Ignored:
    """Marks a field as ignored. `place` is the path of the object that has it, such as `messages[]`; it is put
    before the field's name in the response header. Empty for a field of the request itself. `name` is the field's
    name in the request if it differs from the model's. `also_false`: false is named too.
    """

    def __init__(self, place: str = "", *, name: str | None = None, also_false: bool = False) -> None:
        self._place = f"{place}." if place else ""
        self._name = name
        self._also_false = also_false

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._note, handler(source))

    def _note(self, value: Any, info: ValidationInfo) -> Any:
        if info.context is not None and (value or (self._also_false and value is False)):
            info.context.ignored[f"{self._place}{self._name or info.field_name}"] = None
        return value


class Refused:
    """Marks a field as refused. `message` says why, and what to do instead; `code` is the error's code.
    `unless_forwarded`: the field is served where the whole request is sent to an upstream that may know it. The
    validation then notes the refusal, and whoever answers the request here calls `refuse_noted`.
    """

    def __init__(
        self, message: LiteralString, code: str = "unsupported_value", *, unless_forwarded: bool = False
    ) -> None:
        self.message: LiteralString = message
        self._code = code
        self._noted = unless_forwarded

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_after_validator_function(self._refuse, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [None, False, 0, "", [], {}]}

    def _refuse(self, value: Any, info: ValidationInfo) -> Any:
        if not value:
            return value
        if self._noted and info.context is not None:
            info.context.refused[str(info.field_name)] = self.message
            return value
        # The prefix `~` makes this the code of the error: see `body.wrong_value`.
        raise PydanticCustomError(f"~{self._code}", self.message)


def refuse_noted(notes: FieldNotes) -> None:
    """Raises `Fault` INVALID_REQUEST for the first field of `notes.refused`, if there is one."""
    for field, message in notes.refused.items():
        raise bad_request(f"Invalid value for '{field}': {message}.", field, "unsupported_value")


def ignored_fields(notes: FieldNotes, unknown: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the names of the request's fields that change nothing: those that are known and ignored, then those
    of `unknown` (the fields that the wire model does not have), at most `MAX_NAMED`, without names that a header
    cannot contain. Raises `Fault` INVALID_REQUEST for an unknown field that holds an id of this server.
    """
    given = {name: value for name, value in (unknown or {}).items() if value}
    for name, value in given.items():
        if own := _own_id(value):
            raise bad_request(
                f"Unknown parameter: '{excerpt(name)}'. It holds the id '{excerpt(own)}', and this API has no such "
                "field: what the id names would be missing from the answer.",
                excerpt(name),
                "unknown_parameter",
            )
    named = [name for name in given if FIELD_NAME.fullmatch(name)]
    return (*notes.ignored, *named[:MAX_NAMED])


def _own_id(value: Any) -> str | None:
    """Returns the first id of this server among the strings in a JSON value; None if there is none."""
    return next((text for text in _strings(value) if _OWN_ID.fullmatch(text)), None)


def _strings(value: Any) -> Iterator[str]:
    level = [value]
    while level:
        node = level.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, dict):
            level += node.values()
        elif isinstance(node, list):
            level += node
