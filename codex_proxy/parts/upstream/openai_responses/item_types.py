"""The types of what a model server says of an item: clients, the store and later turns read these fields, so one of
another type is taken out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import FieldInfo, fields

_Status: TypeAlias = Literal[
    "in_progress", "completed", "incomplete", "failed", "searching", "interpreting", "generating"
]


class _Part(msgspec.Struct, frozen=True):
    type: str = ""
    text: str | None = None


class _ItemFields(msgspec.Struct, frozen=True):
    id: str | None = None
    status: str | None = None
    role: Literal["assistant"] = "assistant"
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    """An object of a `tool_search_call`, and of servers that do not write calls as texts."""
    input: str | dict[str, Any] | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    encrypted_content: str | None = None


class _Logs(msgspec.Struct, frozen=True, tag_field="type", tag="logs"):
    logs: str


class _Image(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    url: str


class _CodeFields(msgspec.Struct, frozen=True):
    id: str | None = None
    status: _Status = "completed"
    code: str | None = None
    container_id: str = ""
    outputs: list[_Logs | _Image] | None = None


class _Found(msgspec.Struct, frozen=True):
    file_id: str | None = None
    filename: str | None = None
    score: float | None = None
    text: str | None = None
    attributes: dict[str, str | float | bool | None] | None = None


class _SearchFields(msgspec.Struct, frozen=True):
    id: str | None = None
    status: _Status = "completed"
    queries: list[str] = []
    results: list[_Found] | None = None


class _ImageFields(msgspec.Struct, frozen=True):
    id: str | None = None
    status: _Status = "completed"
    result: str | None = None
    revised_prompt: str | None = None


class _EventFields(msgspec.Struct, frozen=True):
    """The fields that are read of an event of a tool that the server runs."""

    delta: str = ""
    code: str = ""
    partial_image_b64: str = ""
    partial_image_index: int = 0


class _AnnotationFields(msgspec.Struct, frozen=True):
    type: str
    url: str = ""
    title: str = ""
    file_id: str = ""
    filename: str = ""
    container_id: str = ""
    index: int = 0
    start_index: int = 0
    end_index: int = 0


_OF_TYPE: Final[Mapping[str, type[msgspec.Struct]]] = {
    "code_interpreter_call": _CodeFields,
    "file_search_call": _SearchFields,
    "image_generation_call": _ImageFields,
}


def known_form(item: dict[str, Any]) -> dict[str, Any]:
    """Returns an item as the API has it: with its type, if it has only a role, and a message's text in a part."""
    if not item.get("type") and isinstance(item.get("role"), str):
        item = {**item, "type": "message"}
    content = item.get("content")
    if isinstance(content, str) and item.get("type") == "message":
        return {**item, "content": [{"type": "output_text", "text": content, "annotations": []}]}
    return item


def well_typed(item: dict[str, Any]) -> dict[str, Any]:
    """Returns an item whose fields have their types. A list keeps its elements that have theirs; another field of a
    wrong type gets its default value, or is left out if that is None.
    """
    kind = item.get("type")
    of = _OF_TYPE.get(kind, _ItemFields) if isinstance(kind, str) else _ItemFields
    if _fits(item, of):
        return item
    wrong = {
        field.name: _fitting(field, item[field.name], of)
        for field in fields(of)
        if field.name in item and not _fits({field.name: item[field.name]}, of)
    }
    return {
        name: wrong.get(name, value)
        for name, value in item.items()
        if name not in wrong or wrong[name] is not None
    }


def _fitting(field: FieldInfo, value: Any, of: type[msgspec.Struct]) -> Any:
    if isinstance(value, list) and _fits({field.name: []}, of):
        return [each for each in value if _fits({field.name: [each]}, of)]
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def is_event(event: Mapping[str, Any]) -> bool:
    """Whether the fields of an event of a tool that the server runs have their types."""
    return _fits(event, _EventFields)


def well_typed_annotation(annotation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns an annotation without fields that are null, which SDKs take for texts; None if another field has a wrong
    type.
    """
    given = {name: value for name, value in annotation.items() if value is not None}
    return given if _fits(given, _AnnotationFields) else None


def _fits(value: Mapping[str, Any], of: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(value, of)
    except msgspec.ValidationError:
        return False
    return True
