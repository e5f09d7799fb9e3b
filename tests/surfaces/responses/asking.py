"""Asks the parser, as a client would: fields in, what was understood or what was wrong out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints, RequestSettings
from codex_proxy.surfaces.responses.history import history_of
from codex_proxy.surfaces.responses.parse import ParsedResponse, parse, turn_of
from tests.surfaces.catalogs import catalog_of

CATALOG = catalog_of(
    models=(
        AgentModel(id="gpt-5.5", is_default=True, service_tiers=("flex", "priority")),
        AgentModel(id="gpt-5.4-mini"),
    ),
    aliases=(("gpt-4o", "codex-5"),),
)
DEFAULTS = RequestSettings()
NO_HINTS = RequestHints()
HELLO = {"role": "user", "content": "hello"}


def ask_bytes(
    body: bytes, settings: RequestSettings = DEFAULTS, hints: RequestHints = NO_HINTS
) -> ParsedResponse:
    return parse(body, context=ParseContext(settings, CATALOG, hints))


def ask(
    settings: RequestSettings = DEFAULTS, hints: RequestHints = NO_HINTS, **fields: Any
) -> ParsedResponse:
    """What a request with these fields means; a greeting where it has no input."""
    return ask_bytes(json.dumps({"model": "codex-5", "input": "hello", **fields}).encode(), settings, hints)


def turn(**fields: Any) -> Turn:
    """The turn of a request that has nothing before it."""
    parsed = ask(**fields)
    return turn_of(parsed, history_of(parsed.input_items))


def history(*items: dict[str, Any]) -> tuple[HistoryItem, ...]:
    """The history that these input items tell."""
    return turn(input=list(items)).history


def refusal_of(
    settings: RequestSettings = DEFAULTS, hints: RequestHints = NO_HINTS, **fields: Any
) -> Failure:
    """The fault of a request with these fields."""
    with pytest.raises(Fault) as raised:
        turn(settings=settings, hints=hints, **fields)
    return raised.value.failure


def function_tool(name: str = "get_weather", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


def call(call_id: str = "call_1", name: str = "get_weather", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str = "call_1", text: Any = "sunny") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}
