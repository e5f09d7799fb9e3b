"""Removes the placeholders of absent properties from an answer under a schema of `strict_schemas`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.tools.strict_subset import DEFINITIONS, Absence, CannotFitError, SchemaDocument, listed_words

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
