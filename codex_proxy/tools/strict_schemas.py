"""Converts JSON schemas to OpenAI's strict subset: closed objects whose properties are all required, with a placeholder
for an absent one (`Absence`), which `undo_strict_form` removes from an answer. Annotations are removed. A schema whose
meaning would change has no strict form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.tools.strict_subset import (
    ANNOTATIONS,
    DEFINITIONS,
    Absence,
    CannotFitError,
    SchemaDocument,
    is_strict,
    kinds,
    listed_words,
)


class StrictForm(msgspec.Struct, frozen=True):
    """A schema in OpenAI's strict form: every property is required, with a placeholder for an absent one."""

    schema: bytes
    to_undo: bool = False
    """Whether answers contain placeholders."""


WRAPPER: Final = "value_or_null"
"""The property of the object around an optional value that may be null."""

_NESTED: Final = frozenset({"$ref", "anyOf", "properties", "items"})
"""Keywords below which there may be objects with optional properties."""


def check_placeholders(document: SchemaDocument) -> None:
    """Raises `CannotFitError` if the placeholders in an answer could be ambiguous."""
    _Shapes(document)


class _Object:
    """The objects of one schema. `may_be_absent`: properties that are null if absent; `wrapped`: those inside a
    wrapper; `inner`: shapes by property.
    """

    __slots__ = ("inner", "may_be_absent", "names", "words", "wrapped")

    def __init__(self, schema: dict[str, Any], document: SchemaDocument) -> None:
        properties: dict[str, Any] = schema["properties"]
        required = frozenset(schema.get("required", ()))
        self.names = frozenset(properties)
        absences = {name: document.absence(properties[name]) for name in self.names - required}
        self.wrapped = [name for name, absence in absences.items() if absence is Absence.WRAPPED]
        self.may_be_absent = [name for name, absence in absences.items() if absence is not Absence.NOT_NEEDED]
        always = self.names - set(self.may_be_absent)
        words = {name: listed_words(properties[name]) for name in properties if name in always}
        self.words = {name: texts for name, texts in words.items() if texts}
        """The strings that a required property may have, if listed: by them the branches of a union are told apart."""
        self.inner: dict[str, _Shape] = {}

    def matches_words(self, value: dict[str, Any]) -> bool:
        return all(
            isinstance(value[name], str) and value[name] in texts for name, texts in self.words.items()
        )


class _Shape:
    """Where the values of one schema can contain placeholders: in objects, in list elements (`items`), or in an `anyOf`
    branch.
    """

    __slots__ = ("branches", "items", "objects")

    def __init__(self) -> None:
        self.objects: list[_Object] = []
        self.items: _Shape | None = None
        self.branches: list[_Shape] = []

    def object_of(self, value: dict[str, Any]) -> _Object | None:
        """Returns the `_Object` with the value's properties and `words`, if any; a single one unchecked."""
        if len(self.objects) == 1:
            return self.objects[0]
        for each in self.objects:
            if each.names == value.keys() and each.matches_words(value):
                return each
        return None


_PLAIN = _Shape()


class _Shapes:
    """Builds a schema's shapes. Raises `CannotFitError` if a value may match two branches of a union."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._referred: dict[str, _Shape] = {}
        self._unions: list[_Shape] = []
        self.root = self._make_shape({"$ref": "#"})
        for union in self._unions:
            _join(union)

    def _make_shape(self, schema: Any) -> _Shape:
        if not isinstance(schema, dict):
            raise CannotFitError
        if not schema.keys() & _NESTED:
            return _PLAIN
        branches = schema.get("anyOf")
        if isinstance(branches, list) and len(branches) == 1:
            return self._make_shape(branches[0])
        if "$ref" not in schema:
            return self._fill(_Shape(), schema)
        reference = str(schema["$ref"])
        if reference not in self._referred:
            target = self._document.target(reference)
            if "$ref" in target:
                raise CannotFitError  # a name for a name, which may be a circle
            shape = self._referred[reference] = _Shape()
            self._fill(shape, target)
        return self._referred[reference]

    def _fill(self, shape: _Shape, schema: dict[str, Any]) -> _Shape:
        if schema is not self._document.root and schema.keys() & {"$id", *DEFINITIONS}:
            raise CannotFitError  # references in it lead elsewhere
        if schema.keys() & {"properties", "items"} and schema.keys() & {"enum", "const"}:
            raise CannotFitError  # values that are spelt out do not have the nulls
        if isinstance(schema.get("anyOf"), list):
            self._unions.append(shape)
            shape.branches = [self._make_shape(each) for each in schema["anyOf"]]
        if isinstance(schema.get("properties"), dict):
            found = _Object(schema, self._document)
            shape.objects.append(found)
            for name, each in schema["properties"].items():
                inner = self._make_shape(each)
                if inner is not _PLAIN:
                    found.inner[name] = inner
        if "items" in schema:
            shape.items = self._make_shape(schema["items"])
        return shape


def _join(union: _Shape) -> None:
    """Merges a union's branches into it. Raises `CannotFitError` if a value may match several."""
    if any(branch.branches for branch in union.branches):
        raise CannotFitError  # a union in a union is rare
    branches = list({id(branch): branch for branch in union.branches}.values())
    union.objects = [each for branch in branches for each in branch.objects]
    by_names: dict[frozenset[str], list[_Object]] = {}
    for each in union.objects:
        by_names.setdefault(each.names, []).append(each)
    if not all(len(alike) == 1 or _are_distinct(alike) for alike in by_names.values()):
        raise CannotFitError
    items = [branch.items for branch in branches if branch.items not in (None, _PLAIN)]
    if len(items) > 1:
        raise CannotFitError
    union.items = items[0] if items else None


def _are_distinct(objects: list[_Object]) -> bool:
    """Whether objects with the same properties differ in the strings of a required one."""
    for name in objects[0].words:
        words = [each.words.get(name, frozenset[str]()) for each in objects]
        if all(words) and len(frozenset().union(*words)) == sum(map(len, words)):
            return True
    return False


@lru_cache(maxsize=16)
def _shape_of(schema: bytes) -> _Shape:
    return _Shapes(SchemaDocument(schema)).root


def undo_strict_form(schema: bytes, text: str) -> str:
    """Returns an answer under the strict form as one under `schema` itself. Text without placeholders
    stays as it is.
    """
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_no_number)
        return msgspec.json.encode(value).decode() if _undo(value, _shape_of(schema)) else text
    except UNREADABLE:
        return text


def _number(text: str) -> msgspec.Raw:
    """Decodes a number as it is written, with its size and precision."""
    return msgspec.Raw(text.encode())


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _undo(value: Any, shape: _Shape) -> bool:
    """Removes the placeholders in place; returns whether there were any."""
    if isinstance(value, list):
        return shape.items is not None and _any_without_stopping(_undo(each, shape.items) for each in value)
    if not isinstance(value, dict):
        return False
    found = shape.object_of(value)
    if found is None:
        return False
    absent = [name for name in found.may_be_absent if name in value and value[name] is None]
    for name in absent:
        del value[name]
    wrapped = [name for name in found.wrapped if _is_wrapped(value.get(name))]
    for name in wrapped:
        value[name] = value[name][WRAPPER]
    inner = _any_without_stopping(
        _undo(value[name], each) for name, each in found.inner.items() if name in value
    )
    return inner or bool(absent or wrapped)


def _is_wrapped(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {WRAPPER}


def _any_without_stopping(results: Iterable[bool]) -> bool:
    return any(list(results))


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
