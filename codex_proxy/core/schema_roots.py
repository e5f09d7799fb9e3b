"""Whether the answers of a JSON schema are objects."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import value_at

MAX_REFERENCES: Final = 16
"""How deep, and how wide, a schema is followed to learn whether its root is an object."""


def allows_only_objects(schema: bytes | msgspec.Raw) -> bool:
    """Whether an answer of the schema is always an object, as far as it is known within some steps."""
    root = msgspec.json.decode(schema)
    return _allows_only_objects(root, root, MAX_REFERENCES)


def _allows_only_objects(schema: Any, root: Any, left: int) -> bool:
    if not isinstance(schema, dict) or left <= 0:
        return False
    if isinstance(reference := schema.get("$ref"), str):
        found = root if reference == "#" else value_at(root, *_steps_of(reference))
        return _allows_only_objects(found, root, left - 1)
    kinds = schema.get("type")
    if kinds is not None:
        return kinds in ("object", ["object"])
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(branches := schema.get(name), list):
            found = [_allows_only_objects(each, root, left // 2) for each in branches[:left]]
            return any(found) if name == "allOf" else all(found) and len(branches) <= left
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return all(isinstance(each, dict) for each in values)
    return "properties" in schema


def _steps_of(reference: str) -> list[str]:
    steps = reference.removeprefix("#/").split("/")
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]
