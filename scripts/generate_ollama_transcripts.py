"""Records the golden transcripts of Ollama's API anew: `test-results/ollama/`.

    .venv/bin/python -m scripts.generate_ollama_transcripts [--output DIR]

`scripts/transcripts` records these and all others. What differs from run to run (times, ids) is replaced. What the
answers mean: docs/ollama.md.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp

from scripts.golden import DYNAMIC_ID, RESULTS, TIMESTAMP, Transcript, command, server

OUTPUT = RESULTS / "ollama"
WHOLE: dict[str, Any] = {"stream": False}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
HELLO = "text say=Hello! in=6 out=2"


class Scenario(NamedTuple):
    """One transcript: its file's name, what it shows, the fake agent's scenario, the path and the request."""

    name: str
    about: str
    scenario: str
    path: str
    request: dict[str, Any]


def _chat(name: str, about: str, scenario: str, **fields: Any) -> Scenario:
    messages = [{"role": "user", "content": f"Go on. [[fake:{scenario}]]"}]
    request = {"model": "codex-5", "messages": messages, **fields}
    return Scenario(name, about, scenario.partition(" ")[0], "/api/chat", request)


def _generate(name: str, about: str, scenario: str, **fields: Any) -> Scenario:
    request = {"model": "codex-5", "prompt": f"Go on. [[fake:{scenario}]]", **fields}
    return Scenario(name, about, scenario.partition(" ")[0], "/api/generate", request)


SCENARIOS = (
    _chat("chat", "A stream, which is the default.", HELLO),
    _chat("chat-whole", "A whole answer.", HELLO, **WHOLE),
    _chat("chat-thinking", "Thinking, then text.", "reasoning", think=True),
    _chat("chat-tools", "Two calls.", "tool_calls", tools=TOOLS),
    _chat("chat-length", "An answer that was cut.", "length", **WHOLE),
    _chat("chat-error", "A failure in mid-stream.", "error_mid_text"),
    _chat("chat-limit", "The account's limit: 429.", "usage_limit"),
    _generate("generate", "A completion as a stream.", HELLO),
    _generate("generate-whole", "A whole completion.", HELLO, **WHOLE),
    Scenario(
        "load", "A request that loads a model.", "", "/api/generate", {"model": "codex-5", "prompt": ""}
    ),
    Scenario("no-such-model", "An unknown model: 404.", "", "/api/chat", {"model": "llama3:latest"}),
)


async def answer_to(
    session: aiohttp.ClientSession, url: str, scenario: Scenario
) -> tuple[int, dict[str, Any]]:
    """Returns the status, and the answer's lines or its one object, without what differs from run to run."""
    async with session.post(url + scenario.path, json=scenario.request) as reply:
        lines = [sanitised(json.loads(line)) for line in (await reply.text()).splitlines()]
        kind = "stream" if reply.content_type == "application/x-ndjson" else "response"
        return reply.status, {kind: lines if kind == "stream" else lines[0]}


def sanitised(line: dict[str, Any]) -> dict[str, Any]:
    """Returns a line with its times and the ids of its calls replaced."""
    durations = {name: 0 for name in line if name.endswith("_duration")}
    made = {"created_at": TIMESTAMP} if "created_at" in line else {}
    for call in line.get("message", {}).get("tool_calls", ()):
        call["id"] = DYNAMIC_ID
    return {**line, **durations, **made}


async def transcripts() -> AsyncIterator[Transcript]:
    """Every scenario, played."""
    async with server() as url, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        for each in SCENARIOS:
            status, answer = await answer_to(session, url, each)
            content = {"path": each.path, "request": each.request, **answer}
            yield Transcript(f"{each.name}.json", each.about, each.scenario, "proto", True, status, content)


main = command(__doc__.partition("\n")[0], OUTPUT, transcripts)

if __name__ == "__main__":
    main()
