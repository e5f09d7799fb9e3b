"""A JSON schema as a document: resolves its references, and says how an optional property can be absent in it.

Comes in: the JSON of a schema. Goes out: `SchemaDocument`, whose `root` is the schema in a more uniform notation.
Raises `CannotFitError` where OpenAI's strict subset has no schema with the same meaning.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec

from codex_proxy.tools.strict_subset import DEFINITIONS, kinds

ANNOTATIONS: Final = frozenset({"default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Keywords that describe a value, reject none, and are not in the subset."""
_BESIDE: Final = ANNOTATIONS | {"title", "description", "$comment"}
"""Keywords that may stand beside a reference without changing which values are valid."""


class CannotFitError(Exception):
    """The strict subset has no schema with the same meaning."""


class Absence(Enum):
    """How an answer says that an optional property is absent, since the strict subset requires every property."""

    AS_NULL = "null"
    """The property is null, which is not one of its own values."""
    WRAPPED = "wrapped"
    """The property is null, or an object that holds its value, because the value itself may be null."""
    NOT_NEEDED = "not needed"
    """The property has its default value, which means the same as being absent."""


class SchemaDocument:
    """One schema with everything that it refers to."""

    def __init__(self, schema: bytes) -> None:
        """Raises `msgspec.DecodeError` and `RecursionError`."""
        self.root = _normalised(msgspec.json.decode(schema))
        self._nullable: dict[str, bool] = {}
        """Whether null is valid under the schema that a reference names."""

    def target(self, reference: str) -> Any:
        """Returns the schema that a reference names. Only references to the whole schema and to its definitions are
        allowed; others raise `CannotFitError`."""
        if reference == "#":
            return self.root
        for key in DEFINITIONS:
            name = reference.removeprefix(f"#/{key}/")
            if name != reference and "/" not in name and "%" not in name:
                definitions = self.root.get(key)
                name = name.replace("~1", "/").replace("~0", "~")
                if isinstance(definitions, dict) and isinstance(definitions.get(name), dict):
                    return definitions[name]
        raise CannotFitError

    def absence(self, schema: Any) -> Absence:
        """Returns how an optional property with this `schema` can be absent."""
        nullable = self._allows_null(schema)
        if "default" in schema and schema["default"] in [*([None] if nullable else []), *_only_value(schema)]:
            return Absence.NOT_NEEDED
        return Absence.WRAPPED if nullable else Absence.AS_NULL

    def _allows_null(self, schema: Any) -> bool:
        """Whether null is valid under a schema that uses only the subset's keywords."""
        if not isinstance(schema, dict):
            raise CannotFitError
        if "$ref" in schema:
            reference = str(schema["$ref"])
            if reference not in self._nullable:
                self._nullable[reference] = True  # until it is known: of one that leads to itself nothing is
                self._nullable[reference] = self._allows_null(self.target(reference))
            return self._nullable[reference]
        if "type" in schema and "null" not in kinds(schema):
            return False
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            return False
        if schema.get("const") is not None:
            return False
        branches = schema.get("anyOf")
        return not isinstance(branches, list) or any(self._allows_null(each) for each in branches)


def _only_value(schema: dict[str, Any]) -> list[str]:
    """Returns the one string that is valid under the schema, in a list; an empty list where others are valid too."""
    values = schema.get("enum", [schema.get("const")])
    return values if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str) else []


def _normalised(schema: Any) -> Any:
    """Returns the schema with `anyOf` instead of an `allOf` of one schema, and around a reference that has
    annotations beside it."""
    if not isinstance(schema, dict):
        return schema
    form = dict(schema)
    for key, branches in (("allOf", form.get("allOf")), ("$ref", [{"$ref": form.get("$ref")}])):
        if (
            key in form
            and isinstance(branches, list)
            and len(branches) == 1
            and form.keys() - _BESIDE == {key}
        ):
            if key == "allOf" or len(form) > 1:
                del form[key]
                form["anyOf"] = branches
            break
    for key in ("properties", *DEFINITIONS):
        if isinstance(form.get(key), dict):
            form[key] = {name: _normalised(each) for name, each in form[key].items()}
    if isinstance(form.get("anyOf"), list):
        form["anyOf"] = [_normalised(each) for each in form["anyOf"]]
    if "items" in form:
        form["items"] = _normalised(form["items"])
    return form
