"""Conversations of very many items: whatever API they come by and whichever agent gets them, others are served while
they are read, compared and written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cpu_time import slowness
from tests.fuzz.conftest import ServerThread
from tests.fuzz.holds import MAX_HOLD_SECONDS
from tests.parts.test_evil_agents import ask, server

PROMPT: Final = "[[fake:text]]"
MANY_BLOCKS: Final = 30_000
MANY_MESSAGES: Final = 9_900
"""Nearly as many as the server takes."""
SCHEMA: Final = {"type": "object", "properties": {}}
CHAT_TOOL: Final = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
"""Upstreams get a request of Chat Completions with a tool in their own form, others as they came."""


def by_turns() -> list[dict[str, Any]]:
    said = [{"role": ("user", "assistant")[index % 2], "content": "Hello."} for index in range(MANY_MESSAGES)]
    return [*said, {"role": "user", "content": PROMPT}]


def of_calls(*, results: bool) -> dict[str, Any]:
    """A body for Anthropic's API: very many calls in one answer, and perhaps their results."""
    count = 20_000 if results else MANY_BLOCKS
    calls = [
        {"type": "tool_use", "id": f"toolu_{index}", "name": "add", "input": {}} for index in range(count)
    ]
    given = [
        {"type": "tool_result", "tool_use_id": f"toolu_{index}", "content": "3"} for index in range(count)
    ]
    return {
        "max_tokens": 100,
        "tools": [{"name": "add", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": "Add."},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": [*(given if results else ()), {"type": "text", "text": PROMPT}]},
        ],
    }


def chat_of_calls() -> dict[str, Any]:
    ids = [f"call_{index}" for index in range(MANY_MESSAGES // 2)]
    function = {"name": "add", "arguments": '{"b": 2, "a": 1}'}
    return {
        "messages": [
            {"role": "user", "content": "Add."},
            {
                "role": "assistant",
                "tool_calls": [{"id": id, "type": "function", "function": function} for id in ids],
            },
            *({"role": "tool", "tool_call_id": id, "content": "3"} for id in ids),
            {"role": "user", "content": PROMPT},
        ]
    }


def calls_without_ids() -> list[dict[str, Any]]:
    call = {"function": {"name": "add", "arguments": {"b": 2, "a": 1}}}
    step: list[dict[str, Any]] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "add", "content": "3"},
    ]
    return [
        {"role": "user", "content": "Add."},
        *step * (MANY_MESSAGES // 2 - 1),
        {"role": "user", "content": PROMPT},
    ]


CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "messages, calls": ("/v1/messages", of_calls(results=False)),
    "messages, calls and results": ("/v1/messages", of_calls(results=True)),
    "messages, by turns": ("/v1/messages", {"max_tokens": 100, "messages": by_turns()}),
    "chat, by turns": ("/v1/chat/completions", {"messages": by_turns()}),
    "chat, calls": ("/v1/chat/completions", chat_of_calls()),
    "chat, calls of tools": ("/v1/chat/completions", chat_of_calls() | {"tools": [CHAT_TOOL]}),
    "responses, by turns": ("/v1/responses", {"input": by_turns(), "store": False}),
    "ollama, by turns": ("/api/chat", {"messages": by_turns(), "stream": False}),
    "ollama, calls": ("/api/chat", {"messages": calls_without_ids(), "stream": False}),
}


UPSTREAMS: Final = ("openai-chat", "openai-responses")


@pytest.fixture(scope="module", params=["app-server", "acp", "claude-code", *UPSTREAMS])
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The port of an agent's server, and its thread. The upstream is such a server, too."""
    folder: Path = tmp_path_factory.mktemp("long")
    evil = folder / "evil"
    evil.write_text("")
    with ExitStack() as running:
        if request.param in UPSTREAMS:
            upstream = running.enter_context(ServerThread(tmp_path_factory.mktemp("upstream")))
            url = f"http://127.0.0.1:{upstream}/v1"
            thread = ServerThread(folder, agent=request.param, upstream_url=url)
        else:
            thread = server(request.param, folder, evil)
        running.enter_context(thread.holds)
        yield running.enter_context(thread), thread


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("case", CASES)
def test_a_conversation_of_very_many_items_holds_nobody_up(
    agent: tuple[int, ServerThread], case: str
) -> None:
    port, thread = agent
    path, body = CASES[case]
    tries: list[float] = []
    limit = MAX_HOLD_SECONDS
    while len(tries) < 3 and not any(each < limit for each in tries):
        thread.finish_callback()
        thread.holds.forget()
        answer = ask(port, path, {"model": "codex-5", **body})
        # This upstream takes at most so many values and items.
        assert json.loads(answer).get("error") is None or "maximum" in answer, answer
        thread.finish_callback()
        tries.append(thread.holds.longest / slowness())
    assert min(tries) < limit, (tries, thread.holds.who)
