"""The format of the answer's text that a client wants, and what the model is told of it."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from codex_proxy.core.items import HistoryItem, HistoryMessage, TextPart
from codex_proxy.surfaces.base import schema_json

JSON_OBJECT_WORDS: Final = (
    "Answer with exactly one JSON object: no text before or after it, and no code fence around it."
)


class Format(msgspec.Struct, frozen=True):
    """The format of the answer's text, and the schema that it must follow."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    schema: msgspec.Raw | None = None


JSON_OBJECT: Final = Format("json_object", msgspec.Raw(b'{"type":"object"}'))
"""No agent has a knob for it: it is told, and the answer is held to a schema that any object follows."""


def json_schema_format(schema: dict[str, Any], name: str, description: str | None) -> Format:
    """A schema with the name and the description that the client gives it. No agent has a field for them, so they
    stand in the schema itself, where the model reads them; what the schema says of itself stays."""
    about = {"title": name, **({} if description is None else {"description": description})}
    return Format("json_schema", schema_json({**about, **schema}))


def with_json_hint(history: tuple[HistoryItem, ...], wanted: Format) -> tuple[HistoryItem, ...]:
    """For a JSON object there is no knob: the model is told first of all."""
    if wanted.kind != "json_object":
        return history
    return (HistoryMessage("developer", (TextPart(JSON_OBJECT_WORDS),)), *history)
