"""The history of a turn as the agent's own items: what goes into `thread/inject_items` and `turn/start`.

Everything here avoids a trap of the agent's: it drops system messages without a word, refuses a whole
batch for one empty content, and replaces an image of low detail by a text. Source: experiments with 0.163
and 0.169 (`inject_history` among the recordings).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from codex_proxy.agents.codex_app_server.client_tools import agent_name, custom_arguments, dynamic_tool
from codex_proxy.agents.codex_app_server.launch import agent_thread_params, plain_thread_params
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.core.turn import Turn

MAX_TURN_INPUT = 1_000_000
"""Characters of text in `turn/start.input`: the agent refuses more than 1,048,576, but injects any size."""

ID_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_"}
MAX_ID_CHARS = 64
"""Ids are the provider's; one of another type's prefix (a custom call's), or a longer one, it refuses."""


def history_items(history: Sequence[HistoryItem], *, first: int = 0) -> list[Any]:
    """Responses items, in order. Messages with nothing in them are left out: the agent refuses them.

    An item without an id gets one from its place (the first of these is number `first` of the conversation)
    and its content: the agent would give it another one each time, and the provider's prompt cache would
    never see the same prefix twice.
    """
    out: list[Any] = []
    for index, each in enumerate(history, first):
        if isinstance(each, RawHistoryItem):
            out.append(msgspec.Raw(each.json))
        elif (item := _history_item(each)) is not None:
            given = None if isinstance(each, HistoryOutput) else each.id
            item["id"] = _usable_id(item["type"], given) or ID_PREFIXES[item["type"]] + _digest(index, item)
            out.append(item)
    return out


def _usable_id(type: str, id: str | None) -> str | None:
    """The id that the client gave, where the provider takes it for an item of this type."""
    fits = id is not None and id.startswith(ID_PREFIXES[type]) and len(id) <= MAX_ID_CHARS
    return id if fits else None


def _digest(index: int, item: dict[str, Any]) -> str:
    content = json.dumps([index, item], ensure_ascii=True).encode()
    return hashlib.sha256(content).hexdigest()[:32]


def _history_item(item: HistoryMessage | HistoryCall | HistoryOutput) -> dict[str, Any] | None:
    if isinstance(item, HistoryMessage):
        return _message(item)
    if isinstance(item, HistoryOutput):
        return {"type": "function_call_output", "call_id": item.call_id, "output": _output(item.parts)}
    name = agent_name(item.name)
    call: dict[str, Any] = {"type": "function_call", "call_id": item.call_id, "name": name}
    # The agent has no custom tools: there a custom call is a function with one string.
    call["arguments"] = item.arguments if item.kind == "function" else custom_arguments(item.arguments)
    return call


def _message(item: HistoryMessage) -> dict[str, Any] | None:
    text_type = "output_text" if item.role == "assistant" else "input_text"
    content = [_part(part, text_type) for part in item.parts]
    if not content:
        return None
    message: dict[str, Any] = {"type": "message", "role": item.role, "content": content}
    if item.phase:
        message["phase"] = item.phase
    return message


def _part(part: Part, text_type: str) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": text_type, "text": part.text}
    return {"type": "input_image", "image_url": part.url, "detail": _detail(part)}


def _detail(part: ImagePart) -> str:
    return "auto" if part.detail in (None, "low") else str(part.detail)


def _output(parts: Sequence[Part]) -> Any:
    if all(isinstance(part, TextPart) for part in parts) and len(parts) <= 1:
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return [_part(part, "input_text") for part in parts]


def split_input(
    turn: Turn, history: Sequence[HistoryItem], *, first: int = 0
) -> tuple[list[Any], list[dict[str, Any]]]:
    """`history`, all of a turn's or what of it is new to a thread, as (items to inject, input of `turn/start`).

    A plain-model turn injects all and starts on nothing: the model then sees exactly the client's items. An
    agent turn gives its newest user message as the turn's input, as a person at the terminal would.
    """
    if turn.mode == "agent" and history:
        last = history[-1]
        if isinstance(last, HistoryMessage) and last.role == "user" and last.parts:
            size = sum(len(part.text) for part in last.parts if isinstance(part, TextPart))
            if size <= MAX_TURN_INPUT:
                return history_items(history[:-1], first=first), [_input(part) for part in last.parts]
    return history_items(history, first=first), []


def _input(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text, "text_elements": []}
    return {"type": "image", "url": part.url}


def thread_params(turn: Turn) -> dict[str, Any]:
    """Parameters of `thread/start`: all of a turn that holds for its thread."""
    model = turn.model or None
    tools = [dynamic_tool(tool) for tool in turn.tools]
    if turn.mode == "model":
        params = plain_thread_params(turn.workdir, model=model, tools=tools)
    else:
        params = agent_thread_params(
            turn.workdir, model=model, sandbox=turn.sandbox, permissions=turn.permissions
        )
        params |= {"dynamicTools": tools} if tools else {}
    config = {"model_verbosity": turn.verbosity} if turn.verbosity else {}
    if turn.web_search:
        config["web_search"] = "live"  # whatever the process says for turns that did not ask
    return params | {"config": config} if config else params


def turn_settings(turn: Turn) -> dict[str, Any]:
    """Parameters of `turn/start` beside the thread and the input: those that the client gave."""
    optional = {
        "effort": turn.effort,
        "summary": turn.summary,
        "serviceTier": turn.service_tier,
        "outputSchema": turn.output_schema,
    }
    return {name: value for name, value in optional.items() if value is not None}
