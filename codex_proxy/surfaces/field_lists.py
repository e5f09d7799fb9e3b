"""The lists that every field of a request is in: served, ignored, refused.

A field of the wire model is served unless it is marked: `Ignored` fields change nothing and are named in
`x-codex-ignored-params`; `Refused` ones would change the answer and are a 400. Unknown fields are ignored and named,
but refused if they hold an id of this server, because they refer to something stored here. Null, false and empty values
ask for nothing. Source: docs/decisions.md#fields-of-requests.
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
"""An id that this server gives to a response, conversation, message, answer or item."""


class FieldNotes:
    """What a validation has found (pydantic's `context`): ignored fields in order, and refused ones that an upstream
    may serve, with their messages.
    """

    __slots__ = ("ignored", "refused")

    def __init__(self) -> None:
        self.ignored: dict[str, None] = {}
        self.refused: dict[str, str] = {}


class Ignored:
    """Marks a field as ignored. `place` is the path of its object (`messages[]`), `name` its name if the model's
    differs; `also_false`: false is named too.
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
    """Marks a field as refused, with why and what to do instead. `unless_forwarded`: an upstream may know it, so the
    refusal is only noted, for `refuse_noted`.
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
    """Returns ignored and `unknown` fields, at most `MAX_NAMED`, as a header can name them. Raises `Fault`
    INVALID_REQUEST for an unknown field with an id of this server.
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
    """Returns the first id of this server in a JSON value, or None."""
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
