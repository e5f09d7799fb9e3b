"""What the clients of a torture ask for: ordinary requests, faults of the agent by name, and hostile bodies.

Everything here is made from a `random.Random`, so that a run with the same seed asks for the same.
"""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

Body = dict[str, Any]

SCENARIOS = (
    *(
        "text",
        "text",
        "text",
        "count",
        "reasoning",
        "refusal",
        "unicode",
        "multi_message",
        "activity",
        "course",
    ),
    *("error_500", "error_rate_limit", "error_mid_text", "content_filter", "truncation", "empty", "quota"),
    *("retry_after_text_same", "retry_after_text_different", "revised_text", "usage_missing", "no_deltas"),
)
FAULTS = (
    *(
        "crash",
        "eof_without_end",
        "torn",
        "hang",
        "deaf",
        "close_stdout",
        "garbage",
        "bad_utf8",
        "unknown_events",
    ),
    *("strangers", "wrong_types", "duplicate", "repeat", "split", "joined", "stderr_flood"),
    *("grandchild,crash", "plain_grandchild,crash", "deaf,ignore_sigterm,grandchild"),
)
"""Of the fake agent; see fake_proto/README.md."""
TOOL_SCENARIOS = (
    "tool_call",
    "tool_calls",
    "tool_calls_after_text",
    "tool_call_unreadable",
    "tool_calls_one_wrong",
)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def prompt(random: Random, *, faulty: bool) -> str:
    """Words with a marker that makes the fake agent do something."""
    name = random.choice(SCENARIOS)
    marker = f"[[fake:{name}"
    if faulty:
        marker += f" misbehave={random.choice(FAULTS)} at={random.randrange(12)}"
    return f"{random.randrange(10**9):09d} words {marker}]]"


def chat(random: Random, *, faulty: bool) -> Body:
    """A chat request."""
    body: Body = {"model": "codex-5", "stream": random.random() < 0.6}
    body["messages"] = [{"role": "user", "content": prompt(random, faulty=faulty)}]
    if random.random() < 0.2:
        body["n"] = 2
    if random.random() < 0.2:
        body["tools"] = [{"type": "function", "function": _tool(strict=random.random() < 0.5)}]
        body["messages"][0]["content"] = f"[[fake:{random.choice(TOOL_SCENARIOS)}]]"
    if random.random() < 0.1:
        body["stop"] = ["word3", "\n\n"]
    return body


def response(random: Random, *, faulty: bool) -> Body:
    """A Responses request."""
    body: Body = {"model": "codex-5", "stream": random.random() < 0.5, "input": prompt(random, faulty=faulty)}
    if random.random() < 0.2:
        body["tools"] = [{"type": "function", **_tool(strict=random.random() < 0.5)}]
        body["input"] = f"[[fake:{random.choice(TOOL_SCENARIOS)}]]"
    return body


def _tool(*, strict: bool) -> Body:
    return {"name": "get_weather", "parameters": WEATHER, "strict": strict}


def with_image(random: Random, megabytes: int) -> Body:
    """A chat request with an image of this size, which the server may refuse."""
    data = random.randbytes(64).hex() * (megabytes * 8192)
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [{"type": "text", "text": "[[fake:text]]"}, part]
    return {"model": "codex-5", "messages": [{"role": "user", "content": content}]}


@cache
def hostile() -> tuple[bytes, ...]:
    """Chat bodies that are cheap to send and were dear to check, each below half a megabyte or so."""
    mixed = [number if number % 2 else str(number) for number in range(22_000)]
    draft_04 = {"$schema": "http://json-schema.org/draft-04/schema#", "enum": mixed}
    anchors = {
        "$defs": {f"d{number}": {"$anchor": f"a{number}"} for number in range(400)},
        "allOf": [{"$ref": f"#a{number}"} for number in range(400)],
    }
    dynamic = {
        "$defs": {f"d{number}": {"$dynamicAnchor": f"a{number}"} for number in range(400)},
        "allOf": [{"$dynamicRef": f"#a{number}"} for number in range(400)],
    }
    doubling = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(40)}
    doubled = {"$defs": {**doubling, "d40": {"type": "string"}}, "$ref": "#/$defs/d0"}
    pattern = {"type": "object", "properties": {"city": {"type": "string", "pattern": "^(a+)+$"}}}
    nested: Any = {"type": "string"}
    for _ in range(400):
        nested = {"type": "object", "properties": {"a": nested}}
    schemas = (draft_04, anchors, dynamic, doubled, pattern, nested)
    return (
        *(_encoded(_answering_in(schema)) for schema in schemas),
        *(_encoded(_offering([schema])) for schema in schemas),
        _encoded(_offering([_large_schema(number) for number in range(128)])),
        _encoded({**_asking(), "stop": ["a" * 900_000 + end for end in "bcde"]}),
        _encoded({**_asking(), "messages": [{"role": "user", "content": "\\" * 32_768}]}),
        b'{"model": "codex-5", "messages": ' + b"[" * 100_000,
        b'{"model": "codex-5", "messages": [' + b"1," * 200_000 + b"1]}",
    )


def _asking() -> Body:
    return {"model": "codex-5", "messages": [{"role": "user", "content": "[[fake:text]]"}]}


def _answering_in(schema: Body) -> Body:
    format = {"type": "json_schema", "json_schema": {"name": "hostile", "schema": schema}}
    text = f"[[fake:text say={json.dumps(json.dumps({'city': 'a' * 600 + 'b'}))}]]"
    return {**_asking(), "messages": [{"role": "user", "content": text}], "response_format": format}


def _offering(schemas: list[Body]) -> Body:
    functions = [
        {"name": f"tool_{number}", "parameters": schema, "strict": True}
        for number, schema in enumerate(schemas)
    ]
    text = '[[fake:tool_call name=tool_0 args=\'{"city": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}\']]'
    tools = [{"type": "function", "function": each} for each in functions]
    return {**_asking(), "messages": [{"role": "user", "content": text}], "tools": tools}


def _large_schema(number: int) -> Body:
    names = [f"property_{number}_{place}" for place in range(400)]
    properties = {name: {"type": "string", "maxLength": 10} for name in names}
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _encoded(body: Body) -> bytes:
    return json.dumps(body).encode()


GARBAGE = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /\x1b]0;title\x07 HTTP/1.1\r\nHost: localhost\r\n\r\n",
)
"""What is nearly HTTP, or none."""
