"""Asks the parser, as a client would: fields in, what was understood or what was wrong out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.surfaces.chat.parse import ParsedChat, parse
from codex_proxy.surfaces.models import ModelCatalog
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints, RequestSettings
from tests.surfaces.catalogs import catalog_of

HELLO = {"role": "user", "content": "hello"}
CATALOG = catalog_of(
    models=(
        AgentModel(
            id="gpt-5.5",
            is_default=True,
            service_tiers=("flex", "priority"),
            context_window=272_000,
            efforts=("low", "high"),
        ),
        AgentModel(id="gpt-5.4-mini"),
    ),
    aliases=(("gpt-4o", "codex-5"),),
)
DEFAULTS = RequestSettings()
STRUCTURED_OUTPUT = RequestSettings(structured_output=True)
NO_HINTS = RequestHints()


def ask(
    settings: RequestSettings = DEFAULTS,
    catalog: ModelCatalog = CATALOG,
    hints: RequestHints = NO_HINTS,
    **fields: Any,
) -> ParsedChat:
    """What a request with these fields means; a greeting where it has no messages."""
    body = json.dumps({"model": "codex-5", "messages": [HELLO], **fields}).encode()
    return parse(body, context=ParseContext(settings, catalog, hints))


def refusal_of(
    settings: RequestSettings = DEFAULTS,
    catalog: ModelCatalog = CATALOG,
    hints: RequestHints = NO_HINTS,
    **fields: Any,
) -> Failure:
    """The fault of a request with these fields."""
    with pytest.raises(Fault) as raised:
        ask(settings, catalog, hints, **fields)
    return raised.value.failure


def function_tool(name: str = "get_weather", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def call(call_id: str = "call_1", name: str = "get_weather", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}


def answer(call_id: str = "call_1", content: Any = "sunny") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}
