"""An error quotes only the beginning of what a client wrote, wherever that stood in the request."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.requests import PIXEL
from tests.http.serving import fake_proxy

LONG = "y" * 12_000
MAX_BYTES = 4_000
"""The most bytes of an error. Its longest texts list all names that a field takes."""

FUNCTION = {"name": "f", "parameters": {"type": "object"}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCHEMA = {"name": "s", "schema": {"type": "object"}}
CHAT: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "system", "content": "x", "name": "n"},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}],
            },
            {"role": "user", "content": [{"type": "file", "file": {"file_data": "eA==", "filename": "n"}}]},
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "tools": [
            {"type": "function", "function": FUNCTION},
            {"type": "custom", "custom": {"name": "g", "format": {"type": "text"}}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    },
    {
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "x"},
        ],
        "functions": [FUNCTION],
        "function_call": {"name": "f"},
    },
    {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
        },
        "reasoning_effort": "low",
        "service_tier": "auto",
        "verbosity": "low",
        "stop": ["x"],
        "modalities": ["text"],
    },
    {
        "messages": [{"role": "user", "content": "[[fake:text say='{}']]"}],
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    },
]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
]
RESPONSES: list[dict[str, Any]] = [
    {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]},
            {"role": "user", "content": [{"type": "input_file", "file_data": "eA==", "filename": "n"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "namespace": "n", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}]},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        ],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "g", "namespace": "n"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "service_tier": "auto",
        "truncation": "auto",
        "text": {"verbosity": "low"},
    },
    {
        "input": "x",
        "tools": TOOLS,
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "f"}],
        },
    },
    {"input": "[[fake:text say='{}']]", "text": {"format": {"type": "json_schema", **SCHEMA}}},
    {"input": [{"type": "item_reference", "id": "msg_1"}]},
    {"input": "x", "previous_response_id": "resp_1"},
    {"input": "x", "conversation": {"id": "conv_1"}},
    {"input": "x", "metadata": {"workdir": "/nowhere"}},
    {"input": "x", "tools": [{"type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1:1/"}]},
    {"input": [{"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}]},
    {"input": [{"type": "mcp_call", "server_label": "s", "name": "f", "arguments": "{}", "output": "x"}]},
]
MESSAGES: list[dict[str, Any]] = [
    {
        "max_tokens": 9,
        "system": [{"type": "text", "text": "x"}],
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]},
            {
                "role": "user",
                "content": [
                    {"type": "document", "source": {"type": "text", "data": "x"}, "title": "t"},
                    {
                        "type": "image",
                        "source": {
                            "type": "base64",
                            "media_type": "image/png",
                            "data": PIXEL.partition(",")[2],
                        },
                    },
                ],
            },
        ],
        "tools": [{"type": "custom", "name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
    },
    {
        "messages": [{"role": "user", "content": "[[fake:text say='{}']]"}],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    },
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}]},
]
BODIES = [
    *(("/v1/chat/completions", body) for body in CHAT),
    *(("/v1/responses", body) for body in RESPONSES),
    ("/v1/responses/input_tokens", RESPONSES[0]),
    *(("/v1/messages", body) for body in MESSAGES),
    ("/v1/messages/count_tokens", MESSAGES[0]),
    ("/v1/conversations", {"metadata": {"k": "v"}, "items": RESPONSES[0]["input"]}),
]


def lengthened_copies(value: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a JSON value in which one string, or one name of a member, is very long, each with its path."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        for path, longer in [("", LONG)] if isinstance(each, str) else lengthened_copies(each):
            whole = copy.copy(value)
            whole[key] = longer
            yield f".{key}{path}", whole
        if isinstance(key, str):
            yield f".{key} (name)", {**value, LONG: each}
            yield f".{key} (renamed)", {LONG if name == key else name: more for name, more in value.items()}


@pytest.mark.parametrize("within", ["choice", pytest.param("", marks=pytest.mark.exhaustive)])
async def test_an_error_quotes_only_the_beginning_of_what_a_client_wrote(tmp_path: Path, within: str) -> None:
    """Wherever it stands in the request; by default where a tool is chosen."""
    sizes = {}
    async with fake_proxy(tmp_path) as proxy:
        for path, body in BODIES:
            for place, changed in lengthened_copies({"model": "codex-5", **body}):
                if within not in place:
                    continue
                answer = await proxy.send("POST", path, changed)
                if answer.status >= 400:
                    sizes[f"{path} {place}"] = len(answer.text)
                assert sum(len(name) + len(each) for name, each in answer.headers.items()) < MAX_BYTES
    assert len(sizes) > (10 if within else 200), "most of the requests are refused"
    assert {place: size for place, size in sizes.items() if size > MAX_BYTES} == {}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models/{}"),
        ("GET", "/v1/responses/{}"),
        ("DELETE", "/v1/responses/{}"),
        ("POST", "/v1/responses/{}/cancel"),
        ("GET", "/v1/responses/resp_1/input_items?after={}"),
        ("GET", "/v1/conversations/{}"),
        ("GET", "/v1/conversations/{}/items/{}"),
        ("GET", "/v1/{}"),
        ("{}", "/v1/models"),
    ],
)
async def test_an_error_about_an_address_quotes_only_its_beginning(
    tmp_path: Path, method: str, path: str
) -> None:
    long = "y" * 3_500
    async with fake_proxy(tmp_path) as proxy:
        answer = await proxy.send(method.replace("{}", "Y" * 3_500), path.replace("{}", long))
    assert answer.status >= 400
    assert long not in answer.text
    assert len(answer.text) < 1_000


@pytest.mark.parametrize(
    "header", ["X-Codex-Mode", "X-Codex-Sandbox", "X-Codex-Workdir", "Authorization", "Origin"]
)
async def test_an_error_about_a_header_quotes_only_its_beginning(tmp_path: Path, header: str) -> None:
    async with fake_proxy(tmp_path) as proxy:
        answer = await proxy.send(
            "POST",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}]},
            headers={header: "y" * 6_000},
        )
    assert len(answer.text) < 1_000
