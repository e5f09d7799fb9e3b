"""JSON schemas in few words, for the descriptions of endpoints and of what they answer."""

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
    """A reference to the component of this name."""
    return {"$ref": f"#/components/schemas/{name}"}


def kind(word: str) -> Schema:
    """The schema of a field that always has this value."""
    return {"type": "string", "const": word}


def one_of(*words: str) -> Schema:
    """The schema of a field that has one of these values."""
    return {"type": "string", "enum": list(words)}


def maybe(schema: Schema) -> Schema:
    """A value of this schema, or null."""
    return {"anyOf": [schema, NULL]}


def array(items: Schema, **more: Any) -> Schema:
    """An array whose items have this schema; `more`: further keywords of the array."""
    return {"type": "array", "items": items, **more}


def record(_required: Schema, _optional: Schema | None = None, /, **more: Any) -> Schema:
    """An object with these properties. Further ones may come with later versions."""
    properties = {**_required, **(_optional or {})}
    return {"type": "object", "properties": properties, "required": list(_required), **more}


def list_of(name: str) -> Schema:
    """OpenAI's list of a component."""
    return record(
        {
            "object": kind("list"),
            "data": array(ref(name)),
            "first_id": maybe(TEXT),
            "last_id": maybe(TEXT),
            "has_more": FLAG,
        }
    )
