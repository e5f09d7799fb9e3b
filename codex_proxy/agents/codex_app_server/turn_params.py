"""The parameters of `thread/start`, `thread/inject_items` and `turn/start`, from a `Turn`.

A turn has one of two modes. In the mode `model` (a plain-model turn) Codex adds no prompt and no tools to the
client's; in the mode `agent` it works with its own prompt and tools in a folder.

The conversion avoids three effects of the agent: it drops system messages silently, refuses all items of a request
because of one empty message, and replaces images of low detail by a text. Source: experiments with releases 0.163
and 0.169.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from codex_proxy.agents.codex_app_server.calls import agent_name, custom_arguments, dynamic_tool
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
from codex_proxy.core.turn import Sandbox, Turn

MAX_TURN_INPUT = 1_000_000
"""The most characters of text that are sent in `turn/start.input`. The agent refuses more than 1,048,576, but
injected items may have any size."""

MENTION = re.compile("[$@]")
"""The beginning of what the agent looks for in `turn/start.input`, anywhere in a text: `$NAME` adds the SKILL.md of an
installed skill to the prompt, and there are mentions of apps and plugins. Injected items are not searched."""

ID_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_"}
"""The prefix of an item's id that the provider requires, by type."""
MAX_ID_CHARS = 64
"""The most characters of an id that the model provider accepts."""


def history_items(history: Sequence[HistoryItem], *, first: int = 0) -> list[Any]:
    """Converts a history to Responses items, in order. Empty messages are left out, since the agent refuses them.

    An item without an id gets one that is computed from its content and its position in the conversation; `first`
    is the position of the first item. Ids made by the agent would differ each time, so the provider could not use
    its prompt cache.
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
    """Returns the client's id of an item, or None if the provider would refuse it. `type` is the type of the item."""
    fits = id is not None and id.startswith(ID_PREFIXES[type]) and len(id) <= MAX_ID_CHARS
    return id if fits else None


def _digest(index: int, item: dict[str, Any]) -> str:
    """Returns a hash of an item and its position, as 32 hex digits."""
    content = json.dumps([index, item], ensure_ascii=True).encode()
    return hashlib.sha256(content).hexdigest()[:32]


def _history_item(item: HistoryMessage | HistoryCall | HistoryOutput) -> dict[str, Any] | None:
    """Converts one item to a Responses item without an id; returns None for an empty message."""
    if isinstance(item, HistoryMessage):
        return _message(item)
    if isinstance(item, HistoryOutput):
        return {"type": "function_call_output", "call_id": item.call_id, "output": _output(item.parts)}
    name = agent_name(item.name)
    call: dict[str, Any] = {"type": "function_call", "call_id": item.call_id, "name": name}
    # The agent has no custom tools: a custom call goes in as a call of a function with one string.
    call["arguments"] = item.arguments if item.kind == "function" else custom_arguments(item.arguments)
    return call


def _message(item: HistoryMessage) -> dict[str, Any] | None:
    """Converts a message to a Responses item of the type `message`, without an id; returns None if it has no parts."""
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
    """Returns the detail of an image. Returns `auto` for `low`, because the agent replaces images of low detail by
    a text.
    """
    return "auto" if part.detail in (None, "low") else str(part.detail)


def _output(parts: Sequence[Part]) -> Any:
    """Converts a tool's output to the `output` of a Responses item: a string if it is at most one text, otherwise a
    list of content parts.
    """
    if all(isinstance(part, TextPart) for part in parts) and len(parts) <= 1:
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return [_part(part, "input_text") for part in parts]


def split_input(
    turn: Turn, history: Sequence[HistoryItem], *, first: int = 0
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Splits a history into the items for `thread/inject_items` and the `input` of `turn/start`, and returns both.

    `history` is the whole history of the turn, or the part that the thread has not received yet; `first` is the
    position of its first item in the whole history, from which ids are computed. In the mode `agent`, the input is
    the last item if that is a user message of at most `MAX_TURN_INPUT` characters without a `MENTION`, and the other
    items are injected. In all other cases every item is injected and the input is empty; in the mode `model`, the
    model thus sees exactly the client's items.
    """
    if turn.mode == "agent" and history:
        last = history[-1]
        if isinstance(last, HistoryMessage) and last.role == "user" and last.parts:
            texts = [part.text for part in last.parts if isinstance(part, TextPart)]
            if sum(map(len, texts)) <= MAX_TURN_INPUT and not any(MENTION.search(text) for text in texts):
                return history_items(history[:-1], first=first), [_input(part) for part in last.parts]
    return history_items(history, first=first), []


def _input(part: Part) -> dict[str, Any]:
    """Converts a part of a user message to an entry of the `input` of `turn/start`, of the type `text` or `image`."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text, "text_elements": []}
    return {"type": "image", "url": part.url}


def thread_params(turn: Turn) -> dict[str, Any]:
    """Returns the parameters of `thread/start` for the mode, model, tools, sandbox, verbosity and web search of a
    turn.
    """
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
        config["web_search"] = "live"  # replaces the process's setting, which is for turns without it
    return params | {"config": config} if config else params


def plain_thread_params(
    cwd: str, *, model: str | None, tools: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Returns the parameters of `thread/start` for a plain-model turn: no base prompt, no environment, only the
    client's `tools`. `model` is None for Codex's default.

    `cwd` should be an empty folder, because Codex looks there for a project's configuration.
    """
    return _thread_params(cwd, model, "read-only") | {
        "environments": [],
        "baseInstructions": "",
        "dynamicTools": list(tools),
    }


def agent_thread_params(
    cwd: str, *, model: str | None, sandbox: Sandbox = "read-only", permissions: str | None = None
) -> dict[str, Any]:
    """Returns the parameters of `thread/start` for an agent turn: Codex with its own prompt and tools, working in
    `cwd`. `model` is None for Codex's default.

    `permissions` names a permission profile of the process, which replaces the `sandbox`; None to use the sandbox.
    """
    params = _thread_params(cwd, model, sandbox)
    if permissions is not None:
        del params["sandbox"]  # Codex refuses both
        params["permissions"] = permissions
    return params


def _thread_params(cwd: str, model: str | None, sandbox: Sandbox) -> dict[str, Any]:
    params: dict[str, Any] = {
        "cwd": cwd,
        "ephemeral": True,  # nothing of the client's conversation is written to the user's home
        "approvalPolicy": "never",  # nobody is there to be asked
        "sandbox": sandbox,
        # usage per model call, and the only sure sign that no further tool call of a step will come
        "experimentalRawEvents": True,
    }
    if model is not None:
        params["model"] = model
    return params


def turn_settings(turn: Turn) -> dict[str, Any]:
    """Returns the optional parameters of `turn/start` that the turn sets: `effort`, `summary`, `serviceTier` and
    `outputSchema`.
    """
    optional = {
        "effort": turn.effort,
        "summary": turn.summary,
        "serviceTier": turn.service_tier,
        "outputSchema": turn.output_schema,
    }
    return {name: value for name, value in optional.items() if value is not None}
