"""Asks the parser, as a client would: fields in, what was understood or what was wrong out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput, TextPart
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.messages.parse import ParsedMessages, parse
from codex_proxy.surfaces.models import ModelCatalog
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints, RequestSettings
from tests.surfaces.catalogs import catalog_of
from tests.surfaces.chat.asking import CATALOG

RECORDINGS = Path(__file__).parents[2] / "golden" / "messages"
"""Sessions of real clients; Anthropic's own prompts are replaced by their digests."""

HELLO = {"role": "user", "content": "hello"}
DEFAULTS = RequestSettings()
NO_HINTS = RequestHints()
ANY_MODEL = catalog_of(models=CATALOG.models, any_model=True)


def identity(turn: Turn) -> str:
    return f"codex-app-server/{turn.model}"


def parse_body(body: bytes, catalog: ModelCatalog = CATALOG, **more: Any) -> ParsedMessages:
    """What these bytes mean."""
    given = {"identity": identity, **more}
    context = ParseContext(given.pop("settings", DEFAULTS), catalog, given.pop("headers", NO_HINTS))
    return parse(body, context=context, **given)


def ask(catalog: ModelCatalog = CATALOG, how: dict[str, Any] | None = None, **fields: Any) -> ParsedMessages:
    """What a request with these fields means; a greeting where it has no messages. `how`: arguments of `parse`."""
    return parse_body(
        json.dumps({"model": "codex-5", "max_tokens": 1024, "messages": [HELLO], **fields}).encode(),
        catalog,
        **(how or {}),
    )


def refusal_of(**fields: Any) -> Failure:
    """The fault of a request with these fields."""
    with pytest.raises(Fault) as raised:
        ask(**fields)
    return raised.value.failure


def history(*messages: dict[str, Any], **fields: Any) -> tuple[HistoryItem, ...]:
    """The history that these messages tell."""
    return ask(messages=list(messages), **fields).turn.history


def texts(items: tuple[HistoryItem, ...]) -> list[str]:
    """Messages and outputs as `role: text`, an output's role being its call's id; other items by their class."""
    shown = []
    for item in items:
        if isinstance(item, HistoryMessage | HistoryOutput):
            said = "|".join(part.text for part in item.parts if isinstance(part, TextPart))
            shown.append(f"{item.role if isinstance(item, HistoryMessage) else item.call_id}: {said}")
        else:
            shown.append(type(item).__name__)
    return shown


def recordings(*names: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The requests for messages in the recordings of these names (all of them where none is given), each with where it
    stands: `01-print-session 4`."""
    for path in sorted(RECORDINGS.glob("*.jsonl")):
        if names and path.stem not in names:
            continue
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            asked = entry["kind"] == "request" and entry["path"].partition("?")[0] == "/v1/messages"
            if asked and isinstance(entry["body"], dict):
                yield f"{path.stem} {entry['n']}", entry


def tool(name: str = "get_weather", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "Does it.", "input_schema": {"type": "object"}, **more}


def use(id: str = "call_1", name: str = "get_weather", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id: str = "call_1", content: Any = "sunny", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def message_of(role: str, *blocks: Any, **more: Any) -> dict[str, Any]:
    """A message of blocks; a text stands for a block of text."""
    made = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
    return {"role": role, "content": made, **more}
