"""docs/sdk-types.md says of every type in the unions of the newest SDKs what becomes of it, and it is so.

A release of an SDK with another type fails here until the type is served or refused, and the page says which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Required

import pytest
from anthropic.types import ToolChoiceParam, beta
from anthropic.types.content_block import ContentBlock
from anthropic.types.raw_content_block_delta import RawContentBlockDelta
from anthropic.types.raw_message_stream_event import RawMessageStreamEvent
from openai.types import chat as openai_chat
from openai.types.responses import ResponseIncludable, ResponseOutputItem, ResponseStreamEvent
from openai.types.responses.response_create_params import ToolChoice
from openai.types.responses.response_input_content_param import ResponseInputContentParam
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.responses_client_event_param import ResponsesClientEventParam
from openai.types.responses.tool_param import ToolParam
from typing_extensions import TypedDict

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.surfaces.responses import mcp
from codex_proxy.surfaces.responses.events import refused_steer
from codex_proxy.surfaces.responses.output import HOSTED_TYPES, KINDS
from tests.pictures import PIXEL
from tests.sdk_types import kinds, smallest
from tests.surfaces.chat import asking as chat
from tests.surfaces.messages import asking as messages
from tests.surfaces.responses import asking as responses

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "sdk-types.md").read_text()

FILLED: Final[Mapping[tuple[str, str], Any]] = {
    ("input items", "message"): {"role": "user", "content": "hello"},
    ("input items", "item_reference"): {"id": "msg_1"},
    ("input items", "local_shell_call"): {
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "env": {}},
    },
    **{
        ("input items", kind): {"call_id": "x"}
        for kind in ("tool_search_call", "tool_search_output", "local_shell_call_output")
    },
    ("input items", "apply_patch_call"): {"operation": {"type": "delete_file", "path": "a"}},
    ("input items", "function_call_output"): {
        "call_id": "x",
        "name": "x",
        "arguments": "{}",
    },
    ("tools", "mcp"): {"server_url": "https://mcp.example"},
    ("tool choices", "allowed_tools"): {"tools": [{"type": "function", "name": "x"}]},
    ("content parts", "input_image"): {"image_url": PIXEL},
    ("content parts", "input_file"): {"filename": "a.txt", "file_data": "aGVsbG8="},
    ("Chat parts", "image_url"): {"image_url": {"url": PIXEL}},
    ("Chat parts", "file"): {"file": {"filename": "a.txt", "file_data": "aGVsbG8="}},
    ("Chat tool choices", "allowed_tools"): {
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}
    },
    ("Messages blocks", "image"): {"source": {"type": "url", "url": "https://example.com/a.png"}},
    ("Messages blocks", "document"): {"source": {"type": "text", "media_type": "text/plain", "data": "x"}},
    ("Messages blocks", "compaction"): {"content": "A summary."},
}
"""What the smallest value of a type lacks to mean anything."""


def row(union: str) -> tuple[list[str], list[str]]:
    """The types of a union that the page calls served, and those that it calls not served."""
    found = re.search(rf"^\| {re.escape(union)} \|(.*)\|(.*)\|$", PAGE, re.MULTILINE)
    assert found, f"docs/sdk-types.md has no row: {union}"
    served, refused = (re.findall(r"`([^`]+)`", cell) for cell in found.groups())
    return served, refused


def sample(union: str, kind: str, allowed: Any, field: str = "type") -> dict[str, Any]:
    """The smallest value that means something."""
    made = smallest(allowed, kind, field)
    return {**made, **FILLED.get((union, kind), {})}


def item_is_read(kind: str, item: dict[str, Any]) -> None:
    """Behind a greeting, with its output if it is a call, and with its call if it is an output."""
    if kind == "item_reference":  # only the store knows what it refers to
        responses.ask(input=[responses.HELLO, item])
        return
    other = OTHER_HALVES.get(kind)
    pair = [item] if other is None else [item, {**other, "call_id": "x"}]
    if kind == "mcp_approval_response":
        pair.reverse()
    responses.turn(input=[responses.HELLO, *pair])


_COMMAND: Final = {"type": "exec", "command": ["ls"], "env": {}}
OTHER_HALVES: Final[Mapping[str, dict[str, Any]]] = {
    "mcp_approval_response": {
        "type": "mcp_approval_request",
        "id": "x",
        "server_label": "x",
        "name": "x",
        "arguments": "{}",
    },
    "function_call": {"type": "function_call_output", "output": "x"},
    "custom_tool_call": {"type": "custom_tool_call_output", "output": "x"},
    "custom_tool_call_output": {"type": "custom_tool_call", "name": "x", "input": "x"},
    "tool_search_call": {"type": "tool_search_output", "tools": []},
    "tool_search_output": {"type": "tool_search_call", "arguments": {}},
    "local_shell_call": {"type": "local_shell_call_output", "output": "x"},
    "local_shell_call_output": {"type": "local_shell_call", "status": "completed", "action": _COMMAND},
    "shell_call": {"type": "shell_call_output", "output": []},
    "shell_call_output": {"type": "shell_call", "action": {"commands": ["ls"]}},
    "apply_patch_call": {"type": "apply_patch_call_output", "status": "completed"},
    "apply_patch_call_output": {
        "type": "apply_patch_call",
        "status": "completed",
        "operation": {"type": "delete_file", "path": "a"},
    },
}


def choice_is_read(kind: str, choice: Any) -> None:
    own = {"custom": {"type": "custom", "name": "x"}, "mcp": {**MCP, "server_label": "x"}}
    others = [own[kind]] if kind in own else [responses.function_tool("x")]
    hosted = {name.removesuffix("_call") for name in HOSTED_TYPES}
    if kind in ("local_shell", "shell", "apply_patch", *hosted) or kind.startswith("web_search"):
        others = [{"type": kind}]
    responses.turn(tools=others, tool_choice=choice)


MCP: Final = {"type": "mcp", "server_url": "https://mcp.example"}
CHAT_TOOLS: Final = {
    "custom": {"type": "custom", "custom": {"name": "x"}},
    "function": chat.function_tool("x"),
}


def chat_choice_is_read(kind: str, choice: Any) -> None:
    chat.ask(tools=[CHAT_TOOLS.get(kind, CHAT_TOOLS["function"])], tool_choice=choice)


def role_is_read(kind: str, message: dict[str, Any]) -> None:
    calling = {"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": NO_ARGUMENTS}]}
    legacy = {"role": "assistant", "function_call": NO_ARGUMENTS}
    earlier: dict[str, list[dict[str, Any]]] = {"tool": [calling], "function": [legacy]}
    before = earlier.get(kind, [])
    chat.ask(messages=[chat.HELLO, *before, {"content": "x", **message}])


NO_ARGUMENTS: Final = {"name": "x", "arguments": "{}"}


def block_is_read(kind: str, block: dict[str, Any]) -> None:
    """A block of the role that has it: in the newest message of the user, or in an earlier answer."""
    if kind in ANSWER_BLOCKS:
        asked = messages.ask(
            messages=[messages.HELLO, {"role": "assistant", "content": [block]}, messages.HELLO]
        )
    else:
        asked = messages.ask(messages=[{"role": "user", "content": [block, {"type": "text", "text": "hi"}]}])
    left_out = [name for name in asked.ignored if name.startswith("messages[].content[]")]
    if left_out:
        raise bad_request(f"left out: {left_out}")


ANSWER_BLOCKS: Final = frozenset(
    {"thinking", "redacted_thinking", "tool_use", "server_tool_use", "fallback", "mcp_tool_use", "compaction"}
    | {kind for kind in kinds(beta.BetaContentBlockParam) if kind.endswith("_tool_result")}
)


def frame_is_read(kind: str, frame: dict[str, Any]) -> None:
    if refused_steer(json.dumps(frame)) is not None:
        raise bad_request(f"refused: {kind}")


def block_choice_is_read(kind: str, choice: dict[str, Any]) -> None:
    messages.ask(tools=[{"name": "x", "input_schema": {"type": "object"}}], tool_choice=choice)


READ: Final[Mapping[str, tuple[Any, str, Callable[[str, Any], object]]]] = {
    "input items": (ResponseInputItemParam, "type", item_is_read),
    "content parts": (
        ResponseInputContentParam,
        "type",
        lambda kind, part: responses.turn(input=[{"role": "user", "content": [part]}]),
    ),
    "tools": (ToolParam, "type", lambda kind, tool: responses.turn(tools=[tool])),
    "tool choices": (ToolChoice, "type", choice_is_read),
    "include": (
        ResponseIncludable,
        "type",
        lambda kind, name: responses.turn(include=[kind]),
    ),
    "WebSocket frames": (ResponsesClientEventParam, "type", frame_is_read),
    "Chat parts": (
        openai_chat.ChatCompletionContentPartParam,
        "type",
        lambda kind, part: chat.ask(messages=[{"role": "user", "content": [part]}]),
    ),
    "Chat tools": (
        openai_chat.ChatCompletionToolUnionParam,
        "type",
        lambda kind, tool: chat.ask(tools=[tool]),
    ),
    "Chat tool choices": (openai_chat.ChatCompletionToolChoiceOptionParam, "type", chat_choice_is_read),
    "Chat roles": (openai_chat.ChatCompletionMessageParam, "role", role_is_read),
    "Messages blocks": (beta.BetaContentBlockParam, "type", block_is_read),
    "Messages tools": (beta.BetaToolUnionParam, "type", lambda kind, tool: messages.ask(tools=[tool])),
    "Messages tool choices": (ToolChoiceParam, "type", block_choice_is_read),
}
"""What clients send: the union, the field that tells its types apart, and how a value is read (`Fault`: it is not)."""

MADE: Final[Mapping[str, Any]] = {
    "output items": ResponseOutputItem,
    "Messages answers": ContentBlock,
    "events": ResponseStreamEvent,
    "Messages events": RawMessageStreamEvent,
    "Messages deltas": RawContentBlockDelta,
}
"""What answers are made of."""

CASES: Final = [
    (union, kind, allowed)
    for union, (types, field, _) in READ.items()
    for kind, allowed in kinds(types, field).items()
]


@pytest.mark.parametrize("union", [*READ, *MADE])
def test_the_page_has_each_type_of_the_newest_sdk_once_and_no_other(union: str) -> None:
    types, field = (READ[union][0], READ[union][1]) if union in READ else (MADE[union], "type")
    served, refused = row(union)
    assert sorted([*served, *refused]) == sorted(kinds(types, field))


@pytest.mark.parametrize(
    ("union", "kind", "allowed"), CASES, ids=[f"{union}: {kind}" for union, kind, _ in CASES]
)
def test_a_type_is_served_or_refused_as_the_page_says(union: str, kind: str, allowed: Any) -> None:
    _, field, read = READ[union]
    is_word = allowed is None or not hasattr(allowed, "__annotations__")
    value = kind if is_word else sample(union, kind, allowed, field)
    try:
        read(kind, value)
        reason = ""
    except Fault as fault:
        reason = fault.failure.message
    assert kind in row(union)[1 if reason else 0], reason


def test_the_page_names_the_items_that_answers_are_made_of() -> None:
    own = {"codex:activity"}
    assert set(row("output items")[0]) == {*KINDS, *HOSTED_TYPES, "compaction"} - own


@pytest.mark.part("upstream")
def test_the_page_names_the_events_that_are_sent() -> None:
    from codex_proxy.parts.upstream.openai_responses.answer import HOSTED_EVENTS

    source = "".join(
        path.read_text() for path in (ROOT / "codex_proxy" / "surfaces" / "responses").glob("*.py")
    )
    staged = {
        f"response.{kind}.{stage}" for kind in STAGED for stage in ("in_progress", "completed", "failed")
    }
    made = {f"response.{end}" for end in ("completed", "incomplete", "failed")} | staged
    sent = {name for name in kinds(ResponseStreamEvent) if f'"{name}"' in source} | made | {*HOSTED_EVENTS}
    assert set(row("events")[0]) == sent


STAGED: Final = (mcp.LIST_TYPE, mcp.CALL_TYPE)


def test_a_type_that_is_new_in_an_sdk_is_missing_on_the_page() -> None:
    """The monitor finds what it is for."""

    class NewItem(TypedDict, total=False):
        type: Required[Literal["hologram_call"]]

    served, refused = row("input items")
    assert {*kinds(ResponseInputItemParam | NewItem)} - {*served, *refused} == {"hologram_call"}
