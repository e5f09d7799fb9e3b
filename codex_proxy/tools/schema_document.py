"""A JSON schema as a whole: where its references lead, and what an optional property of it may be.

In: the JSON of a schema. Out: `SchemaDocument`, whose `root` is the schema in fewer ways of writing. Raises
`CannotFitError` where OpenAI's strict subset has no schema of the same meaning.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import msgspec

from codex_proxy.tools.strict_subset import DEFINITIONS, kinds

ANNOTATIONS: Final = frozenset({"default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Keywords that say something of a value, refuse none, and are not in the subset."""
_BESIDE: Final = ANNOTATIONS | {"title", "description", "$comment"}
"""What may stand beside a reference and change no value."""


class CannotFitError(Exception):
    """The strict subset has no schema of the same meaning."""


class Absence(Enum):
    """How a property that is optional says that it is absent, where it has to be there."""

    AS_NULL = "null"
    """It is null, which is no value of its own."""
    WRAPPED = "wrapped"
    """It is null; its value, which may be null too, stands in an object."""
    NOT_NEEDED = "not needed"
    """Not at all: to be absent means its default, which it can say."""


class SchemaDocument:
    """One schema with all that is in it."""

    def __init__(self, schema: bytes) -> None:
        """Raises `msgspec.DecodeError` and `RecursionError`."""
        self.root = _normalised(msgspec.json.decode(schema))
        self._nullable: dict[str, bool] = {}
        """Whether null is valid under what a reference leads to."""

    def target(self, reference: str) -> Any:
        """What a reference leads to. Only the whole and its definitions keep their place and their meaning."""
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
        """`schema`: of a property that is optional."""
        nullable = self._allows_null(schema)
        if "default" in schema and schema["default"] in [*([None] if nullable else []), *_only_value(schema)]:
            return Absence.NOT_NEEDED
        return Absence.WRAPPED if nullable else Absence.AS_NULL

    def _allows_null(self, schema: Any) -> bool:
        """Whether null is valid under a schema of the subset's keywords."""
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
    """The text that a value has to be, where it can be nothing else."""
    values = schema.get("enum", [schema.get("const")])
    return values if isinstance(values, list) and len(values) == 1 and isinstance(values[0], str) else []


def _normalised(schema: Any) -> Any:
    """The schema with `anyOf` in place of `allOf` of one schema, and around a reference with annotations beside it."""
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
