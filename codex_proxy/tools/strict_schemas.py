"""JSON schemas as OpenAI's structured outputs take them: which are, which can be made so, and how that is undone.

The agent sends every output schema as strict, which the provider refuses for schemas outside of a subset: closed
objects whose properties are all required. `strict_form` closes objects that say nothing of further properties, and
requires optional properties with null beside their values. `without_nulls` takes these nulls out of an answer again,
so that it follows the schema that the client gave. A schema of which that would say something else has no such form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from codex_proxy.tools.checks import StrictForm

STRICT_KEYWORDS = frozenset(
    {
        *("$schema", "$id", "$defs", "definitions", "$ref", "$comment", "title", "description"),
        *("type", "enum", "const", "anyOf", "properties", "required", "additionalProperties", "items"),
        *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minItems", "maxItems"),
    }
)
"""What OpenAI's structured outputs are documented to take. A list of what they refuse would have to be complete;
a keyword that is missing here only means that the schema is kept by us."""

STRICT_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
STRICT_DEPTH, STRICT_PROPERTIES, STRICT_ENUM = 10, 5_000, 1_000
"""OpenAI's limits: levels of nesting, and properties and enum values in the whole schema."""

_DEFINITIONS = ("$defs", "definitions")
_NESTED = frozenset({"$ref", "anyOf", "properties", "items"})
"""Keywords of schemas whose values may hold objects with optional properties."""
_NULL = {"type": "null"}


def is_strict_schema(schema: bytes) -> bool:
    """Whether OpenAI's structured outputs take it: closed objects whose properties are all required."""
    try:
        root = msgspec.json.decode(schema)
    except (msgspec.DecodeError, RecursionError):
        return False
    return _is_strict(root)


def _is_strict(root: Any) -> bool:
    if not isinstance(root, dict) or root.get("type") != "object" or "anyOf" in root:
        return False
    properties = values = 0
    waiting: list[tuple[Any, int]] = [(root, 1)]
    while waiting:
        each, depth = waiting.pop()
        if not isinstance(each, dict) or depth > STRICT_DEPTH or not _fits(each):
            return False
        properties += len(each.get("properties", ()))
        values += len(each.get("enum", ()))
        waiting += [(inner, depth + deeper) for inner, deeper in _inside(each)]
    return properties <= STRICT_PROPERTIES and values <= STRICT_ENUM


def _fits(schema: dict[str, Any]) -> bool:
    """Whether one schema, without those inside of it, is as the subset wants it."""
    if not schema.keys() <= STRICT_KEYWORDS or str(schema.get("format", "date")) not in STRICT_FORMATS:
        return False
    if not isinstance(schema.get("enum", []), list):
        return False
    if "$ref" in schema:
        return len(schema) == 1 and str(schema["$ref"]).startswith("#")
    if not schema.keys() & {"type", "enum", "const", "anyOf"}:
        return False
    kinds = _kinds(schema)
    if "array" in kinds and "items" not in schema:
        return False
    if "object" not in kinds and "properties" not in schema:
        return True
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    names = {name for name in required if isinstance(name, str)}
    closed = schema.get("additionalProperties") is False
    return closed and len(required) == len(properties) and names == properties.keys()


def _kinds(schema: dict[str, Any]) -> list[Any]:
    """The types that `type` allows; none where it is absent."""
    named = schema.get("type", ())
    return list(named) if isinstance(named, list | tuple) else [named]


def _inside(schema: dict[str, Any]) -> Iterator[tuple[Any, int]]:
    """The schemas directly inside of one, and by how much each is nested deeper."""
    for key in ("properties", *_DEFINITIONS):
        inner = schema.get(key, {})
        if isinstance(inner, dict):
            yield from ((each, int(key == "properties")) for each in inner.values())
    if isinstance(schema.get("anyOf"), list):
        yield from ((each, 0) for each in schema["anyOf"])
    if "items" in schema:
        yield schema["items"], 1


# --- making a schema fit --------------------------------------------------------------------------


class _CannotFitError(Exception):
    """The strict subset has no schema of the same meaning."""


def strict_form(schema: bytes) -> StrictForm | None:
    """The schema as OpenAI's structured outputs take it; None where they take no form of it.

    Whatever is valid under the form is valid under the schema, once `without_nulls` was applied to it.
    """
    try:
        root = msgspec.json.decode(schema)
        if _is_strict(root):
            return StrictForm(schema)
        fitting = _Fitting(root)
        form = fitting.of(root)
        if fitting.has_optional:
            _Shapes(root)  # raises where nobody could tell what a null stands for
        return StrictForm(msgspec.json.encode(form), fitting.has_optional) if _is_strict(form) else None
    except (msgspec.DecodeError, RecursionError, _CannotFitError):
        return None


class _Fitting:
    """Rewrites the schemas of one document so that they fit the strict subset."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._nullable: dict[str, bool] = {}
        """Whether null is valid under what a reference leads to."""
        self.has_optional = False
        """A property was not required, and is now."""

    def of(self, schema: Any) -> Any:
        """Raises `_CannotFitError`. What else does not fit stays as it is, for `_is_strict` to see."""
        if not isinstance(schema, dict):
            return schema
        if "anyOf" in schema and schema.keys() & {"properties", "items", "additionalProperties"}:
            raise _CannotFitError  # closed, a branch would refuse the properties that stand beside it
        form = dict(schema)
        for key in _DEFINITIONS:
            if isinstance(form.get(key), dict):
                form[key] = {name: self.of(each) for name, each in form[key].items()}
        if isinstance(form.get("anyOf"), list):
            form["anyOf"] = [self.of(each) for each in form["anyOf"]]
        if "items" in form:
            form["items"] = self.of(form["items"])
        if "object" in _kinds(form) and isinstance(form.get("properties"), dict):
            self._require_all(form)
        return form

    def _require_all(self, form: dict[str, Any]) -> None:
        given, required = form["properties"], form.get("required", [])
        if not (isinstance(required, list) and all(isinstance(name, str) for name in required)):
            raise _CannotFitError
        if not given or not given.keys() >= set(required):
            return  # it is meant to hold what it does not name
        form.setdefault("additionalProperties", False)
        properties = {name: self.of(each) for name, each in given.items()}
        optional = [name for name in given if name not in set(required)]
        for name in optional:
            if self._allows_null(given[name]):
                raise _CannotFitError  # null and absent would be the same
            properties[name] = _or_null(properties[name])
        form["properties"] = properties
        if optional:
            self.has_optional = True
            form["required"] = [*required, *optional]

    def _allows_null(self, schema: Any) -> bool:
        """Whether null is valid under a schema of the subset's keywords."""
        if not isinstance(schema, dict):
            raise _CannotFitError
        if "$ref" in schema:
            reference = str(schema["$ref"])
            if reference not in self._nullable:
                self._nullable[reference] = True  # until it is known: of one that leads to itself nothing is
                self._nullable[reference] = self._allows_null(_target(self._root, reference))
            return self._nullable[reference]
        if "type" in schema and "null" not in _kinds(schema):
            return False
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            return False
        if schema.get("const") is not None:
            return False
        branches = schema.get("anyOf")
        return not isinstance(branches, list) or any(self._allows_null(each) for each in branches)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with null allowed beside what it allows."""
    if schema.keys() & {"$ref", "const", "properties", "items"}:
        return {"anyOf": [schema, _NULL]}
    form = dict(schema)
    if "type" in form:
        form["type"] = [*_kinds(form), "null"]
    if isinstance(form.get("enum"), list):
        form["enum"] = [*form["enum"], None]
    if isinstance(form.get("anyOf"), list):
        form["anyOf"] = [*form["anyOf"], _NULL]
    return form


def _target(root: Any, reference: str) -> Any:
    """What a reference leads to. Only the whole and its definitions keep their place and their meaning."""
    if reference == "#":
        return root
    for key in _DEFINITIONS:
        name = reference.removeprefix(f"#/{key}/")
        if name != reference and "/" not in name and "%" not in name:
            definitions = root.get(key)
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(definitions, dict) and isinstance(definitions.get(name), dict):
                return definitions[name]
    raise _CannotFitError


# --- undoing it in an answer ----------------------------------------------------------------------


class _Object:
    """The objects of one schema: their properties, which of them are optional, and their shapes."""

    __slots__ = ("inner", "names", "optional", "words")

    def __init__(self, schema: dict[str, Any]) -> None:
        properties: dict[str, Any] = schema["properties"]
        required = frozenset(schema.get("required", ()))
        self.names = frozenset(properties)
        self.optional = self.names - required
        words = {name: _words(each) for name, each in properties.items() if name in required}
        self.words = {name: texts for name, texts in words.items() if texts}
        """By required property, the texts that it may be: what tells the branches of a union apart."""
        self.inner: dict[str, _Shape] = {}

    def says(self, value: dict[str, Any]) -> bool:
        return all(
            isinstance(value[name], str) and value[name] in texts for name, texts in self.words.items()
        )


class _Shape:
    """What values under one schema look like, as far as there may be nulls in them to be taken out."""

    __slots__ = ("branches", "items", "objects")

    def __init__(self) -> None:
        self.objects: list[_Object] = []
        self.items: _Shape | None = None
        self.branches: list[_Shape] = []
        """Of `anyOf`."""

    def object_of(self, value: dict[str, Any]) -> _Object | None:
        """Which of the objects a value is; None where it is none of several."""
        if len(self.objects) == 1:
            return self.objects[0]
        for each in self.objects:
            if each.names == value.keys() and each.says(value):
                return each
        return None


_PLAIN = _Shape()


def _words(schema: Any) -> frozenset[str]:
    """The strings that a schema allows by `enum` or `const`; empty where it allows other values."""
    if not isinstance(schema, dict):
        return frozenset()
    values = schema.get("enum", [schema.get("const")])
    texts = isinstance(values, list) and all(isinstance(value, str) for value in values)
    return frozenset(values) if texts else frozenset()


class _Shapes:
    """The shapes of a schema that has a strict form. Raises `_CannotFitError` where a value may have two of them."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._referred: dict[str, _Shape] = {}
        self._unions: list[_Shape] = []
        self.root = self._of({"$ref": "#"})
        for union in self._unions:
            _join(union)

    def _of(self, schema: Any) -> _Shape:
        if not isinstance(schema, dict):
            raise _CannotFitError
        if not schema.keys() & _NESTED:
            return _PLAIN
        if "$ref" not in schema:
            return self._fill(_Shape(), schema)
        reference = str(schema["$ref"])
        if reference not in self._referred:
            target = _target(self._root, reference)
            if "$ref" in target:
                raise _CannotFitError  # a name for a name, which may be a circle
            shape = self._referred[reference] = _Shape()
            self._fill(shape, target)
        return self._referred[reference]

    def _fill(self, shape: _Shape, schema: dict[str, Any]) -> _Shape:
        if schema is not self._root and schema.keys() & {"$id", *_DEFINITIONS}:
            raise _CannotFitError  # references in it lead elsewhere
        if schema.keys() & {"properties", "items"} and schema.keys() & {"enum", "const"}:
            raise _CannotFitError  # values that are spelt out do not have the nulls
        if isinstance(schema.get("anyOf"), list):
            self._unions.append(shape)
            shape.branches = [self._of(each) for each in schema["anyOf"]]
        if isinstance(schema.get("properties"), dict):
            found = _Object(schema)
            shape.objects.append(found)
            for name, each in schema["properties"].items():
                inner = self._of(each)
                if inner is not _PLAIN:
                    found.inner[name] = inner
        if "items" in schema:
            shape.items = self._of(schema["items"])
        return shape


def _join(union: _Shape) -> None:
    """Joins the shapes of a union's branches. Raises `_CannotFitError` where a value may be of several."""
    if any(branch.branches for branch in union.branches):
        raise _CannotFitError  # a union in a union is rare
    branches = list({id(branch): branch for branch in union.branches}.values())
    union.objects = [each for branch in branches for each in branch.objects]
    by_names: dict[frozenset[str], list[_Object]] = {}
    for each in union.objects:
        by_names.setdefault(each.names, []).append(each)
    if not all(len(alike) == 1 or _told_apart(alike) for alike in by_names.values()):
        raise _CannotFitError
    items = [branch.items for branch in branches if branch.items not in (None, _PLAIN)]
    if len(items) > 1:
        raise _CannotFitError
    union.items = items[0] if items else None


def _told_apart(objects: list[_Object]) -> bool:
    """Whether objects that have the same properties differ in what one of these says."""
    for name in objects[0].words:
        words = [each.words.get(name, frozenset[str]()) for each in objects]
        if all(words) and len(frozenset().union(*words)) == sum(map(len, words)):
            return True
    return False


@lru_cache(maxsize=16)
def _shape_of(schema: bytes) -> _Shape:
    return _Shapes(msgspec.json.decode(schema)).root


def without_nulls(schema: bytes, text: str) -> str:
    """An answer under the strict form of a schema without the nulls that stand for absent optional properties.

    `schema` is the client's, and has a strict form. A text without such nulls stays as it is, and so does one that is
    no JSON. Another is encoded anew, compactly, with its keys and numbers as they are.
    """
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_no_number)
        return msgspec.json.encode(value).decode() if _drop_nulls(value, _shape_of(schema)) else text
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> msgspec.Raw:
    """Keeps a number of JSON as it is written, of any size and precision."""
    return msgspec.Raw(text.encode())


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _drop_nulls(value: Any, shape: _Shape) -> bool:
    """Takes the nulls out of a value, in place; whether there were any."""
    if isinstance(value, list):
        return shape.items is not None and _any(_drop_nulls(each, shape.items) for each in value)
    if not isinstance(value, dict):
        return False
    found = shape.object_of(value)
    if found is None:
        return False
    absent = [name for name in found.optional if name in value and value[name] is None]
    for name in absent:
        del value[name]
    inner = _any(_drop_nulls(value[name], each) for name, each in found.inner.items() if name in value)
    return inner or bool(absent)


def _any(results: Iterable[bool]) -> bool:
    """Whether any is true; unlike `any`, it takes every result."""
    return any(list(results))
