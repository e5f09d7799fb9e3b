"""Helper functions that build JSON schemas, for the descriptions of endpoints and their answers."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

Schema: TypeAlias = dict[str, Any]

NULL: Final[Schema] = {"type": "null"}
TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
ANYTHING: Final[Schema] = {}
TRUE: Final[Schema] = {"const": True}


def ref(name: str) -> Schema:
    """Returns a reference to the component of this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def kind(word: str) -> Schema:
    """Returns the schema of a field that always has the value `word`."""
    return {"type": "string", "const": word}


def one_of(*words: str) -> Schema:
    """Returns the schema of a field that has one of the values `words`."""
    return {"type": "string", "enum": list(words)}


def maybe(schema: Schema) -> Schema:
    """Returns the schema of a value of `schema`, or null."""
    return {"anyOf": [schema, NULL]}


def array(items: Schema, **more: Any) -> Schema:
    """Returns the schema of an array whose items have the schema `items`; `more` are further keywords of it."""
    return {"type": "array", "items": items, **more}


def record(_required: Schema, _optional: Schema | None = None, /, **more: Any) -> Schema:
    """Returns the schema of an object with these properties. Further properties are allowed, since later versions
    may add some. `more` are further members of the schema.
    """
    properties = {**_required, **(_optional or {})}
    return {"type": "object", "properties": properties, "required": list(_required), **more}


def list_of(name: str) -> Schema:
    """Returns the schema of OpenAI's list object for a component."""
    return record(
        {
            "object": kind("list"),
            "data": array(ref(name)),
            "first_id": maybe(TEXT),
            "last_id": maybe(TEXT),
            "has_more": FLAG,
        }
    )
