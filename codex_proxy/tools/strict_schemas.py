"""Converts JSON schemas to OpenAI's strict subset: closed objects whose properties are all required, with a placeholder
for an absent one (`Absence`). Annotations are removed. A schema whose meaning would change has no strict form.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.tools.checks import StrictForm
from codex_proxy.tools.strict_answers import WRAPPER, check_placeholders
from codex_proxy.tools.strict_subset import (
    ANNOTATIONS,
    DEFINITIONS,
    Absence,
    CannotFitError,
    SchemaDocument,
    is_strict,
    kinds,
)

_NULL: Final = {"type": "null"}
_GUIDING_ANNOTATIONS: Final = {"default": "Default", "examples": "Examples"}
"""Annotations that may guide the model, with their titles in the description."""


def is_strict_schema(schema: bytes) -> bool:
    """Whether OpenAI's structured outputs accept the schema as it is."""
    try:
        return is_strict(msgspec.json.decode(schema))
    except UNREADABLE:
        return False


def strict_form(schema: bytes) -> StrictForm | None:
    """Returns the schema as OpenAI's structured outputs accept it, if possible. `undo_strict_form` converts its
    answers.
    """
    if is_strict_schema(schema):
        return StrictForm(schema)
    try:
        document = SchemaDocument(schema)
        fitting = _Converter(document)
        form = fitting.of(document.root)
        if fitting.to_undo:
            check_placeholders(document)
        return StrictForm(msgspec.json.encode(form), fitting.to_undo) if is_strict(form) else None
    except (*UNREADABLE, CannotFitError):
        return None


class _Converter:
    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self.to_undo = False
        """Whether answers will contain placeholders."""

    def of(self, schema: Any) -> Any:
        """Converts a schema as far as possible; `is_strict` rejects the rest. Raises `CannotFitError` if the meaning
        would change.
        """
        if not isinstance(schema, dict):
            return schema
        if "anyOf" in schema and schema.keys() & {"properties", "items", "additionalProperties"}:
            raise CannotFitError  # closed, a branch would refuse the properties that stand beside it
        form = _without_annotations(schema)
        for key in DEFINITIONS:
            if isinstance(form.get(key), dict):
                form[key] = {name: self.of(each) for name, each in form[key].items()}
        if isinstance(form.get("anyOf"), list):
            form["anyOf"] = [self.of(each) for each in form["anyOf"]]
        if "items" in form:
            form["items"] = self.of(form["items"])
        if "object" in kinds(form) and isinstance(form.get("properties"), dict):
            self._require_all(form)
        return form

    def _require_all(self, form: dict[str, Any]) -> None:
        given, required = form["properties"], form.get("required", [])
        if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
            raise CannotFitError
        if not given or not given.keys() >= set(required):
            return  # it is meant to hold what it does not name
        form.setdefault("additionalProperties", False)
        properties = {name: self.of(each) for name, each in given.items()}
        optional = [name for name in given if name not in set(required)]
        for name in optional:
            absence = self._document.absence(given[name])
            if absence is not Absence.NOT_NEEDED:
                self.to_undo = True
                wrapped = absence is Absence.WRAPPED
                properties[name] = _wrap(properties[name]) if wrapped else _or_null(properties[name])
        form["properties"] = properties
        if optional:
            form["required"] = [*required, *optional]


def _without_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    form = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    hints = [
        f"{_GUIDING_ANNOTATIONS[key]}: {_json(schema[key])}" for key in _GUIDING_ANNOTATIONS if key in schema
    ]
    if hints:
        texts = [form["description"]] if isinstance(form.get("description"), str) else []
        form["description"] = "\n".join([*texts, *hints])
    return form


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _wrap(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema for null (absent), or an object with the value as its one property."""
    holder = {
        "type": "object",
        "properties": {WRAPPER: schema},
        "required": [WRAPPER],
        "additionalProperties": False,
    }
    return {"anyOf": [holder, _NULL], "description": "null to leave it out, else an object with its value"}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.keys() & {"$ref", "const", "properties", "items"}:
        return {"anyOf": [schema, _NULL]}
    form = dict(schema)
    if "type" in form:
        form["type"] = [*kinds(form), "null"]
    if isinstance(form.get("enum"), list):
        form["enum"] = [*form["enum"], None]
    if isinstance(form.get("anyOf"), list):
        form["anyOf"] = [*form["anyOf"], _NULL]
    return form
