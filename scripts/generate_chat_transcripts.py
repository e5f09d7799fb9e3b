"""Records the golden transcripts of Chat Completions anew: `test-results/chat-completions/`.

    .venv/bin/python -m scripts.generate_chat_transcripts [--output DIR]

`scripts/transcripts` records these and all others.

Each is one request to a real server on a real port, whose agent is the deterministic fake one. What differs from
run to run (`id`, `created`) is replaced; the rest is kept to the letter, so that two recordings differ in their
metadata only. The contract tests compare live answers with these files and never write them. Those of
`PROXY_CHAT_PROFILE=codex-completions-api` are in a folder of that name. Source:
docs/contract.md#golden-transcripts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import aiohttp

from codex_proxy.surfaces.chat.render import ChatProfile
from scripts.golden import DYNAMIC_ID, RESULTS, TIMESTAMP, Transcript, command, server

OUTPUT = RESULTS / "chat-completions"
PATH = "/v1/chat/completions"
PROFILE: ChatProfile = "codex-completions-api"
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

WEATHER_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather",
    "parameters": WEATHER_PARAMETERS,
}
GT_WEATHER = {
    **WEATHER,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
        "required": ["city", "unit"],
    },
}
ALIASES = "gpt-4o=codex-5"
"""The model of the examples in docs/contract.md#golden-examples."""
TOOLS: dict[str, Any] = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "auto"}
FUNCTIONS: dict[str, Any] = {"functions": [WEATHER], "function_call": "auto"}


class Scenario(NamedTuple):
    """One transcript: its file's name, what it shows, the fake agent's scenario, and the request."""

    name: str
    about: str
    scenario: str
    request: dict[str, Any]
    profile: ChatProfile = "openai"


def _scenario(name: str, about: str, scenario: str, prompt: str, **fields: Any) -> Scenario:
    content = f"{prompt} [[fake:{scenario}]]"
    request = {"model": "codex-5", "messages": [{"role": "user", "content": content}], **fields}
    return Scenario(name, about, scenario.partition(" ")[0], request)


WEATHER_PROMPT = "What is the weather in Paris and in Rome?"

SCENARIOS: tuple[Scenario, ...] = (
    _scenario(
        "nonstream-minimal",
        "A whole answer.",
        "text say=Hello! in=6 out=2 cached=0 reasoning=0",
        "Say hello.",
    ),
    _scenario("nonstream-truncation", "A whole answer that was cut.", "truncation", "Tell a story."),
    _scenario("nonstream-tool-calls", "Two calls, whole.", "tool_calls", WEATHER_PROMPT, **TOOLS),
    _scenario(
        *("nonstream-function-call", "The legacy call, whole.", "function_call", WEATHER_PROMPT), **FUNCTIONS
    ),
    _scenario("nonstream-content-filter", "Stopped by the filter.", "content_filter", "Say it."),
    Scenario("nonstream-invalid-request", "No messages: 400 that names them.", "none", {"model": "codex-5"}),
    _scenario(
        "streaming-usage",
        "A stream with its usage chunk.",
        "text in=11 out=7 cached=3 reasoning=2",
        "Say hello.",
        **USAGE,
    ),
    _scenario("streaming-usage-length", "A stream that was cut, with usage.", "length", "Go on.", **USAGE),
    _scenario(
        "streaming-tool-calls",
        "Two calls, their arguments in increments.",
        "tool_calls",
        WEATHER_PROMPT,
        **TOOLS,
        **USAGE,
    ),
    _scenario(
        "streaming-tool-calls-sequential",
        "Without parallel calls: one consolidated delta.",
        "tool_calls_sequential calls=1",
        "What is the weather in Paris?",
        **TOOLS,
        **USAGE,
        parallel_tool_calls=False,
    ),
    _scenario(
        "streaming-function-call",
        "The legacy call, in increments.",
        "function_call",
        WEATHER_PROMPT,
        **FUNCTIONS,
        **USAGE,
    ),
    _scenario(
        "streaming-content-filter", "Stopped by the filter, streamed.", "content_filter", "Say it.", **USAGE
    ),
    _scenario(
        *(
            "streaming-multi-choice",
            "Two choices that hear the same.",
            "text in=11 out=7 cached=3 reasoning=2",
            "Say hello.",
        ),
        n=2,
        **USAGE,
    ),
    _scenario("streaming-error", "A failure in mid-stream.", "error_mid_text", "Say hello.", **USAGE),
)


def _in_profile(name: str, about: str) -> Scenario:
    """The scenario of that name, in the other profile."""
    plain = next(scenario for scenario in SCENARIOS if scenario.name == name)
    return plain._replace(name=f"{PROFILE}/{name}", about=about, profile=PROFILE)


SCENARIOS += (
    _scenario("streaming-minimal", "A stream without usage.", "text in=11 out=7", "Say hello.", stream=True),
)
SCENARIOS += (
    Scenario(
        "gt-3-nonstream-tool-call",
        "GT-3 of the contract.",
        "tool_call",
        {
            "model": "gpt-4o",
            "messages": [
                {"role": "system", "content": "Use the weather tool when asked about weather."},
                {
                    "role": "user",
                    "content": "What is the weather in Nashville in F? [[fake:tool_call "
                    """args='{"city":"Nashville","unit":"F"}' in=37 out=12]]""",
                },
            ],
            "tools": [{"type": "function", "function": GT_WEATHER}],
            "tool_choice": "auto",
        },
    ),
    Scenario(
        "gt-4-streaming-text",
        "GT-4 of the contract.",
        "text",
        {
            "model": "gpt-4o",
            "messages": [
                {"role": "system", "content": "You are concise."},
                {
                    "role": "user",
                    "content": """Say this is a test [[fake:text pieces='["Thi", "s is a test."]']]""",
                },
            ],
            "stream": True,
        },
    ),
)
PROFILE_SCENARIOS = (
    _in_profile("streaming-minimal", "`usage: null` on every chunk, though nobody asked for usage."),
    _in_profile("streaming-usage", "A stream with its usage chunk."),
    _in_profile("streaming-multi-choice", "Both choices in each chunk."),
    _in_profile("streaming-tool-calls", "Two calls, their arguments in increments."),
    _in_profile("streaming-tool-calls-sequential", "Without parallel calls: one consolidated delta."),
    _in_profile("streaming-error", "A failure in mid-stream."),
)


async def answer_to(session: aiohttp.ClientSession, url: str, request: Any) -> tuple[int, dict[str, Any]]:
    """The status, and `response` or `stream` as a transcript keeps them."""
    async with session.post(url + PATH, json=request) as reply:
        text = await reply.text()
        if reply.content_type == "text/event-stream":
            return reply.status, {"stream": [sanitised(frame) for frame in frames_of(text)]}
        return reply.status, {"response": sanitised(json.loads(text))}


def frames_of(text: str) -> list[Any]:
    """The data lines of a stream; `[DONE]` as it is, comments left out."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def sanitised(value: Any) -> Any:
    """The value, with what differs from run to run replaced: an answer's `id` and `created`."""
    if not isinstance(value, dict):
        return value
    replaced = dict(value)
    if str(value.get("id", "")).startswith("chatcmpl-"):
        replaced["id"] = DYNAMIC_ID
    if isinstance(value.get("created"), int):
        replaced["created"] = TIMESTAMP
    return replaced


def served(profile: ChatProfile) -> AbstractAsyncContextManager[str]:
    """The URL of a server that answers in this profile."""
    return server(chat_profile=profile, model_aliases=ALIASES)


async def transcripts() -> AsyncIterator[Transcript]:
    """Every scenario, played."""
    timeout = aiohttp.ClientTimeout(total=60)
    for scenarios in (SCENARIOS, PROFILE_SCENARIOS):
        profile = scenarios[0].profile
        async with served(profile) as url, aiohttp.ClientSession(timeout=timeout) as session:
            for each in scenarios:
                status, answer = await answer_to(session, url, each.request)
                usage = includes_usage(each.request)
                content = {"request": each.request, **answer}
                file = f"{each.name}.json"
                yield Transcript(file, each.about, each.scenario, "proto", usage, status, content)


def includes_usage(request: dict[str, Any]) -> bool:
    """Whether a usage chunk was asked for."""
    return bool((request.get("stream_options") or {}).get("include_usage"))


main = command(__doc__.partition("\n")[0], OUTPUT, transcripts)

if __name__ == "__main__":
    main()
