"""Records the golden transcripts of Responses anew: `test-results/responses/`.

    .venv/bin/python -m scripts.generate_responses_transcripts [--output DIR]

`scripts/transcripts` records these and all others.

Each is one request (one of them with the request that it continues) to a real server on a real port, whose agent is
the deterministic fake one. Ids and times are replaced, each id by a name of its own, so that one can still see what
belongs together; the rest is kept to the letter. `gt-1` and `gt-2` are those of docs/contract.md#golden-examples.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp

from scripts.golden import RESULTS, TIMESTAMP, Transcript, command, server

OUTPUT = RESULTS / "responses"
PATH = "/v1/responses"
ALIASES = "gpt-4o=codex-5"
"""The model of the examples in docs/contract.md#golden-examples."""

TIMES = frozenset({"created_at", "completed_at"})
OURS = re.compile(r"(resp|msg|rs|fc|ctc|item)_[0-9a-f]{32}")

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
UNICORN = "Write a one-sentence bedtime story about a unicorn."
LUNA = "Under the soft glow of the moon, Luna the unicorn…"
LUNA_TOLD = f'text say="{LUNA}" in=12 out=24 cached=0 reasoning=0'


class Scenario(NamedTuple):
    """One transcript: its file's name, what it shows, the fake agent's scenario, the request, and the one before."""

    name: str
    about: str
    scenario: str
    request: dict[str, Any]
    earlier: dict[str, Any] | None = None


def _scenario(name: str, about: str, scenario: str, prompt: str, **fields: Any) -> Scenario:
    return Scenario(name, about, scenario.partition(" ")[0], _request(scenario, prompt, **fields))


def _request(scenario: str, prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": "codex-5", "input": f"{prompt} [[fake:{scenario}]]", **fields}


SCENARIOS: tuple[Scenario, ...] = (
    _scenario(
        "nonstream-minimal",
        "A whole answer.",
        "text say=Hello! in=6 out=2 cached=0 reasoning=0",
        "Say hello.",
    ),
    _scenario(
        "nonstream-tool-call",
        "A call of the client's function.",
        "tool_call name=get_weather",
        "What is the weather in Paris?",
        tools=[WEATHER],
        tool_choice="auto",
    ),
    Scenario(
        "nonstream-previous-response",
        "The output of a call, with the response that made it.",
        "tool_call",
        {
            "model": "codex-5",
            "previous_response_id": "<resp-1>",
            "input": [{"type": "function_call_output", "call_id": "call_1_0", "output": "sunny"}],
            "tools": [WEATHER],
        },
        _request("tool_call name=get_weather", "What is the weather in Paris?", tools=[WEATHER]),
    ),
    _scenario(
        "streaming-text", "A text, piece by piece.", 'text say="Hello there."', "Say hello.", stream=True
    ),
    _scenario(
        "streaming-tool-call",
        "The arguments of a call, piece by piece.",
        "tool_call name=get_weather",
        "What is the weather in Paris?",
        stream=True,
        tools=[WEATHER],
    ),
    _scenario(
        "streaming-reasoning",
        "A summary of the reasoning in two parts, then the text.",
        "reasoning",
        "What is six times seven?",
        stream=True,
        reasoning={"effort": "medium", "summary": "auto"},
    ),
    _scenario(
        "streaming-error",
        "A stream that breaks off: error, then failed.",
        "error_mid_text",
        "Say hello.",
        stream=True,
    ),
    _scenario("streaming-incomplete", "Cut at the output limit.", "truncation", "Say much.", stream=True),
    Scenario(
        "gt-1-nonstream-text",
        "GT-1 of the contract.",
        "text",
        {**_request(LUNA_TOLD, UNICORN), "model": "gpt-4o"},
    ),
    Scenario(
        "gt-2-streaming-text",
        "GT-2 of the contract.",
        "text",
        {
            **_request(f'text say="{LUNA}" in=12 out=24 cached=0 reasoning=0', UNICORN),
            "model": "gpt-4o",
            "stream": True,
        },
    ),
)


async def recorded(
    session: aiohttp.ClientSession, url: str, scenario: Scenario
) -> tuple[int, dict[str, Any]]:
    """The status, and the transcript without its metadata."""
    names = Names()
    content: dict[str, Any] = {}
    if scenario.earlier is not None:
        _, earlier = await _answer(session, url, scenario.earlier, names)
        content["earlier"] = {"request": scenario.earlier, **earlier}
    status, answer = await _answer(session, url, names.put_back(scenario.request), names)
    return status, {**content, "request": scenario.request, **answer}


async def _answer(
    session: aiohttp.ClientSession, url: str, request: Any, names: Names
) -> tuple[int, dict[str, Any]]:
    async with session.post(url + PATH, json=request) as reply:
        text = await reply.text()
        if reply.content_type == "text/event-stream":
            return reply.status, {"stream": [names.sanitised(event) for event in events_of(text)]}
        return reply.status, {"response": names.sanitised(json.loads(text))}


def events_of(text: str) -> list[Any]:
    """The events of a stream, `event` beside `data`; the end is a text. Comments are left out."""
    events: list[Any] = []
    for block in text.split("\n\n"):
        head, _, data = block.partition("\n")
        if head.startswith("event: "):
            data = data.removeprefix("data: ")
            data = data if data == "[DONE]" else json.loads(data)
            events.append({"event": head.removeprefix("event: "), "data": data})
    return events


class Names:
    """The names that stand for the ids of one recording."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def sanitised(self, value: Any) -> Any:
        """The value, with what differs from run to run replaced."""
        if isinstance(value, dict):
            return {
                key: TIMESTAMP if key in TIMES and isinstance(each, int) else self.sanitised(each)
                for key, each in value.items()
            }
        if isinstance(value, list):
            return [self.sanitised(each) for each in value]
        if isinstance(value, str) and OURS.fullmatch(value):
            return self._names.setdefault(value, self._new(value.partition("_")[0]))
        return value

    def put_back(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request, with the ids in the places of their names."""
        ids = {name: id for id, name in self._names.items()}
        return {
            key: ids.get(value, value) if isinstance(value, str) else value for key, value in request.items()
        }

    def _new(self, kind: str) -> str:
        return f"<{kind}-{sum(name.startswith(f'<{kind}-') for name in self._names.values()) + 1}>"


async def transcripts() -> AsyncIterator[Transcript]:
    """Every scenario, played. A response always tells of its tokens."""
    timeout = aiohttp.ClientTimeout(total=60)
    async with server(model_aliases=ALIASES) as url, aiohttp.ClientSession(timeout=timeout) as session:
        for each in SCENARIOS:
            status, content = await recorded(session, url, each)
            yield Transcript(f"{each.name}.json", each.about, each.scenario, "proto", True, status, content)


main = command(__doc__.partition("\n")[0], OUTPUT, transcripts)

if __name__ == "__main__":
    main()
