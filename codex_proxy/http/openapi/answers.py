"""The JSON schemas of this server's answers, made from their types (see `surfaces/answer_types.py`). Tests check the
answers of a running server against them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from codex_proxy.http.endpoint import AnswerType, Schema


def answer_schemas(types: Iterable[AnswerType]) -> tuple[dict[AnswerType, Schema], dict[str, Schema]]:
    """Returns a reference to the schema of each type, and the schemas of these types and of their parts, by name."""
    known = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(known, ref_template="#/components/schemas/{name}")
    for component in components.values():
        component.pop("title", None)
        if "description" in component:
            component["description"] = " ".join(component["description"].split())
    return dict(zip(known, schemas, strict=True)), components
