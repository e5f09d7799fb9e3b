"""Records the golden transcripts of Anthropic's Messages API anew: `test-results/messages/`.

    .venv/bin/python -m scripts.generate_messages_transcripts [--output DIR]

`scripts/transcripts` records these and all others.

Each is one request to a real server on a real port, whose agent is the deterministic fake one. What differs from
run to run (ids, and the state in which there are ids) is replaced; the rest is kept to the letter. The contract tests
compare live answers with these files and never write them. What the answers mean: docs/messages.md.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple

import aiohttp

from scripts.golden import DYNAMIC_ID, RESULTS, Transcript, command, server

OUTPUT = RESULTS / "messages"
PATH = "/v1/messages?beta=true"
HEADERS = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219"}
STATE = "<state>"

WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WEATHER_PROMPT = "What is the weather in Paris and in Rome?"
STREAM: dict[str, Any] = {"stream": True}
TOOLS: dict[str, Any] = {"tools": [WEATHER]}
THINKING: dict[str, Any] = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}
LOOP = [
    {"role": "user", "content": f"{WEATHER_PROMPT} [[fake:tool_calls]]"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I look.", "signature": "EqQBCgIYAhIM"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}},
            {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {"city": "Rome"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such city", "is_error": True},
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sunny"}]},
        ],
    },
]


class Scenario(NamedTuple):
    """One transcript: its file's name, what it shows, the fake agent's scenario and dialect, and the request."""

    name: str
    about: str
    scenario: str
    request: dict[str, Any]
    dialect: Literal["proto", "app-server"] = "proto"


def _scenario(name: str, about: str, scenario: str, prompt: str, **fields: Any) -> Scenario:
    content = f"{prompt} [[fake:{scenario}]]"
    messages = [{"role": "user", "content": content}]
    request = {"model": "codex-5", "max_tokens": 1024, "messages": messages, **fields}
    return Scenario(name, about, scenario.partition(" ")[0], request)


SCENARIOS: tuple[Scenario, ...] = (
    _scenario("nonstream-minimal", "A whole answer.", "text say=Hello! in=6 out=2 cached=0", "Say hello."),
    _scenario("nonstream-cached", "Usage with cached tokens.", "text in=100 cached=80 out=7", "Say hello."),
    _scenario("nonstream-length", "A whole answer that was cut.", "length", "Tell a story."),
    _scenario(
        *("nonstream-stop-sequence", "Ended by a stop sequence.", 'text say="one two three"', "Count."),
        stop_sequences=["two"],
    ),
    _scenario("nonstream-tool-use", "Two calls, whole.", "tool_calls", WEATHER_PROMPT, **TOOLS),
    _scenario("nonstream-refusal", "Stopped by the filter.", "content_filter", "Say it."),
    _scenario("nonstream-unsupported-tool", "A tool of Anthropic's own servers: 400.", "text", "Run it.",
              tools=[{"type": "code_execution_20250825", "name": "code_execution"}]),
    _scenario("nonstream-prompt-too-long", "A context that is too long: 400.", "context_length", "Read on."),
    _scenario("nonstream-rate-limit", "The account's limit: 429.", "usage_limit", "Go on."),
    _scenario("streaming-minimal", "A stream.", "text in=11 out=7", "Say hello.", **STREAM),
    _scenario("streaming-thinking", "Thinking, its signature, then text.", "reasoning", "Think.", **STREAM, **THINKING),
    _scenario("streaming-tool-use", "Two calls, streamed.", "tool_calls", WEATHER_PROMPT, **STREAM, **TOOLS),
    _scenario("streaming-max-tokens", "A stream that was cut.", "length", "Go on.", **STREAM),
    _scenario("streaming-error", "A failure in mid-stream.", "error_mid_text", "Say hello.", **STREAM),
    Scenario("nonstream-tool-results", "Results, one of them an error.", "tool_calls",
             {"model": "codex-5", "max_tokens": 1024, "messages": LOOP, **TOOLS}),
    _scenario("app-server/streaming-thinking", "The other dialect.", "reasoning", "Think.", **STREAM, **THINKING)
    ._replace(dialect="app-server"),
    _scenario("app-server/nonstream-tool-use", "Two calls, whole.", "tool_calls", WEATHER_PROMPT, **TOOLS)
    ._replace(dialect="app-server"),
)  # fmt: skip


async def answer_to(session: aiohttp.ClientSession, url: str, request: Any) -> tuple[int, dict[str, Any]]:
    """The status, and `response` or `stream` as a transcript keeps them."""
    async with session.post(url + PATH, json=request, headers=HEADERS) as reply:
        text = await reply.text()
        if reply.content_type == "text/event-stream":
            return reply.status, {"stream": [sanitised(event) for event in events_of(text)]}
        return reply.status, {"response": sanitised(json.loads(text))}


def events_of(text: str) -> list[Any]:
    """The events of a stream."""
    return [json.loads(line[len("data: ") :]) for line in text.split("\n") if line.startswith("data: ")]


def sanitised(value: Any) -> Any:
    """The value, with what differs from run to run replaced: ids of answers, calls and requests, and the state."""

    if isinstance(value, list):
        return [sanitised(each) for each in value]
    if not isinstance(value, dict):
        return value
    replaced = {name: sanitised(each) for name, each in value.items()}
    if str(value.get("id", "")).startswith("msg_") or (value.get("type") == "tool_use" and "id" in value):
        replaced["id"] = DYNAMIC_ID
    if "request_id" in value:
        replaced["request_id"] = DYNAMIC_ID
    if value.get("type") == "redacted_thinking":
        replaced["data"] = STATE
    return replaced


def served(dialect: str) -> AbstractAsyncContextManager[str]:
    """The URL of a server whose fake agent speaks this dialect."""
    return server(fake_dialect=dialect)


async def transcripts() -> AsyncIterator[Transcript]:
    """Every scenario, played."""
    timeout = aiohttp.ClientTimeout(total=60)
    for dialect in ("proto", "app-server"):
        async with served(dialect) as url, aiohttp.ClientSession(timeout=timeout) as session:
            for each in (each for each in SCENARIOS if each.dialect == dialect):
                status, answer = await answer_to(session, url, each.request)
                content = {"request": each.request, **answer}
                yield Transcript(
                    f"{each.name}.json", each.about, each.scenario, dialect, True, status, content
                )


main = command(__doc__.partition("\n")[0], OUTPUT, transcripts)

if __name__ == "__main__":
    main()
