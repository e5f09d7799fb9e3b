"""Bodies of both surfaces: whole ones that use everything, and Hypothesis strategies that spoil them."""

from __future__ import annotations

import copy
from typing import Any, Final

from hypothesis import strategies as st

PIXEL: Final = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}

MESSAGES: Final[dict[str, Any]] = {
    "model": "codex-5",
    "max_tokens": 1000,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is the weather?"},
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.partition(",")[2]},
                },
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "All."}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "cxp1"},
                {"type": "redacted_thinking", "data": "AQ=="},
                {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny", "is_error": False}
            ],
        },
        {"role": "system", "content": "Be kind.", "output_config": {"effort": "low"}},
    ],
    "tools": [
        {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA, "strict": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": ["END"],
    "metadata": {"user_id": "me"},
}

CHAT: Final[dict[str, Any]] = {
    "model": "codex-5",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is the weather?"},
                {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {"type": "function", "id": "call_1", "function": {"name": "get_weather", "arguments": "{}"}},
                {"type": "custom", "id": "call_2", "custom": {"name": "shell", "input": "ls"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "a b"}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "It is "}, {"type": "refusal", "refusal": "No."}],
        },
        {"role": "user", "content": "Thank you."},
    ],
    "n": 2,
    "stream": False,
    "stop": ["END", "STOP"],
    "max_completion_tokens": 100,
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather.",
                "parameters": SCHEMA,
                "strict": True,
            },
        },
        {
            "type": "custom",
            "custom": {
                "name": "shell",
                "format": {"type": "grammar", "grammar": {"definition": "a", "syntax": "lark"}},
            },
        },
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "auto",
            "tools": [{"type": "function", "function": {"name": "get_weather"}}],
        },
    },
    "parallel_tool_calls": True,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
    },
    "reasoning": {"effort": "low", "summary": "auto"},
    "reasoning_effort": "low",
    "verbosity": "low",
    "service_tier": "auto",
    "modalities": ["text"],
    "audio": None,
    "logprobs": False,
    "top_logprobs": None,
    "metadata": {"purpose": "test", "nothing": None},
    "store": False,
    "user": "somebody",
    "temperature": 1,
    "top_p": 0.5,
    "presence_penalty": -2,
    "frequency_penalty": 2.0,
    "logit_bias": {"50256": -100},
    "seed": 7,
    "prediction": {"type": "content", "content": "x"},
}
"""A chat request with every field that goes with the others."""

LEGACY: Final[dict[str, Any]] = {
    "messages": [
        {"role": "user", "content": "What is the weather?"},
        {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}},
        {"role": "function", "name": "get_weather", "content": "Sunny."},
    ],
    "functions": [{"name": "get_weather", "parameters": SCHEMA}],
    "function_call": {"name": "get_weather"},
    "stream": True,
    "stream_options": {"include_usage": True},
    "stop": "END",
}
"""One of the older generation."""

RESPONSE: Final[dict[str, Any]] = {
    "model": "codex-5",
    "input": [
        {"role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "id": "msg_1",
            "status": "completed",
            "content": [
                {"type": "input_text", "text": "What is the weather?"},
                {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
            ],
        },
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": None,
        },
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "shell", "input": "ls", "namespace": "x"},
        {
            "type": "custom_tool_call_output",
            "call_id": "call_2",
            "output": [{"type": "input_text", "text": "a"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Sunny."}, {"type": "refusal", "refusal": "No."}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "Thank you."}]},
    ],
    "instructions": "Be kind.",
    "max_output_tokens": 100,
    "max_tool_calls": 3,
    "tools": [
        {
            "type": "function",
            "name": "get_weather",
            "description": None,
            "parameters": SCHEMA,
            "strict": False,
        },
        {
            "type": "custom",
            "name": "shell",
            "format": {"type": "grammar", "syntax": "regex", "definition": "a"},
        },
        {"type": "web_search", "search_context_size": "low", "user_location": {"type": "approximate"}},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_weather"}],
    },
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": "auto", "generate_summary": None},
    "text": {
        "format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True},
        "verbosity": "low",
    },
    "truncation": "auto",
    "metadata": {"purpose": "test"},
    "user": "somebody",
    "store": False,
    "background": False,
    "stream": False,
    "include": ["reasoning.encrypted_content"],
    "service_tier": "auto",
    "prompt_cache_key": "key",
    "safety_identifier": "somebody",
    "top_logprobs": 0,
    "temperature": 1.0,
    "top_p": 1,
    "top_k": -1,
    "min_p": 0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "stop": ["END"],
}
"""A Responses request with every field that goes with the others."""

ITEMS: Final[dict[str, Any]] = {
    "model": "codex-5",
    "input": [
        {"type": "item_reference", "id": "msg_1"},
        {"id": "msg_2"},
        {"type": "mcp_list_tools", "server_label": "a", "tools": [{"name": "b"}], "error": None},
        {"type": "mcp_call", "server_label": "a", "name": "b", "arguments": "{}", "output": "c"},
        {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "a", "name": "b", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True, "reason": "x"},
        {"type": "compaction", "encrypted_content": "x"},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "exec"}]},
        {"type": "tool_search_call", "call_id": "call_9", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "call_9", "execution": "client", "tools": []},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}},
        {"type": "codex:activity", "kind": "command", "text": "ls", "output": ""},
        {"type": "shell_call", "call_id": "call_7", "action": {"commands": ["ls"], "timeout_ms": 5}},
        {
            "type": "shell_call_output",
            "call_id": "call_7",
            "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        {
            "type": "apply_patch_call",
            "call_id": "call_8",
            "status": "completed",
            "operation": {"type": "update_file", "path": "a", "diff": "+a"},
        },
        {"type": "apply_patch_call_output", "call_id": "call_8", "status": "failed", "output": "a"},
    ],
    "conversation": {"id": "conv_1"},
    "tools": [
        {
            "type": "mcp",
            "server_label": "a",
            "server_url": "https://example.org",
            "headers": {"a": "b"},
            "allowed_tools": ["b"],
            "require_approval": {"never": {"tool_names": ["b"]}},
        },
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
        {"type": "tool_search", "execution": "client", "parameters": {"type": "object"}},
        {"type": "shell", "environment": {"type": "local", "skills": []}, "allowed_callers": ["direct"]},
        {"type": "apply_patch"},
    ],
    "tool_choice": "auto",
}
"""One with the other kinds of items."""

ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, -0.5, 10**30, -(10**30), 1e300, 2**31, 2**63),
    *("", "x", "a b", "a" * 65, "é" * 257, "conv_1", "\x00", "\U0001f600", "auto", "text", "none"),
    *([], [None], ["x"], [[]], {}, {"id": "x"}, {"type": "text"}, {"type": "message"}, {"role": "user"}),
    {"type": "item_reference", "id": "x"},
    {"type": "input_audio", "input_audio": {}},
    {"type": "code_interpreter"},
)
"""What takes the place of something: of each type, too small, too large, and what is right elsewhere."""

WORDS: Final = tuple(
    sorted(
        {
            *(
                "text",
                "image_url",
                "refusal",
                "input_text",
                "output_text",
                "input_image",
                "input_file",
                "function",
            ),
            *(
                "custom",
                "mcp",
                "message",
                "reasoning",
                "function_call",
                "function_call_output",
                "item_reference",
            ),
            *("user", "assistant", "system", "developer", "tool", "required", "auto", "none", "json_object"),
        }
    )
)


def paths_to(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a body, the body itself left out."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    found = [place] if place else []
    for key, child in children:
        found += paths_to(child, (*place, key))
    return found


@st.composite
def corrupt_bodies(draw: st.DrawFn, *bodies: dict[str, Any]) -> dict[str, Any]:
    """One of the bodies with up to three things in it changed, taken away or added."""
    body: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(bodies)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from(paths_to(body)))
        holder: Any = body
        for step in place[:-1]:
            holder = holder[step]
        match draw(st.sampled_from(["change", "change", "word", "take", "add"])):
            case "change":
                holder[place[-1]] = copy.deepcopy(draw(st.sampled_from(ODD)))
            case "word":
                holder[place[-1]] = draw(st.sampled_from(WORDS))
            case "take":
                del holder[place[-1]]
            case _:
                if isinstance(holder, dict):
                    holder[draw(st.sampled_from(["type", "id", "role", "content", "name", "extra"]))] = (
                        copy.deepcopy(draw(st.sampled_from(ODD)))
                    )
                else:
                    holder.append(copy.deepcopy(holder[0]))
        if not paths_to(body):
            break
    return body
