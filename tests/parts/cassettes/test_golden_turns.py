"""Every golden turn, recorded through Chat Completions, is replayed on every API, with another `stop`, and with strict
tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest

from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.app.server import Server
from codex_proxy.core.events import Event, ItemStarted, ToolCallRequested
from codex_proxy.core.items import ToolCall
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes import player
from codex_proxy.parts.cassettes.file_lines import Line
from codex_proxy.parts.cassettes.player import PlayedDialect, PlayedTransport, WholeCalls
from codex_proxy.parts.cassettes.replay import Folder
from tests.parts.cassettes.golden_turns import DIALECTS, events_of, names_of_turns
from tests.parts.cassettes.talking import running_server

PARTS: Final = 6
ANY: Final = {"type": "object", "properties": {}, "additionalProperties": True}
NEVER: Final = {
    "type": "object",
    "properties": {"never": {"type": "string"}},
    "required": ["never"],
    "additionalProperties": False,
}
Said = dict[str, Any]
"""What an answer says on any API: its status, text, and calls."""


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_golden_turn_is_replayed_on_every_api_with_other_stops_and_strict_tools(
    dialect: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "BATCH", 1)  # the recording ends where the turn does
    folder = tmp_path / "cassettes"
    turns = {name: events_of(dialect, name) for name in names_of_turns(dialect)[part::PARTS]}
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        aiohttp.ClientSession() as web,
    ):
        plays_golden_turns(server, turns)
        recorded = {name: await ask(web, server, "chat", name, events) for name, events in turns.items()}
    files = {_name_in(cassette.content): name for name, cassette in Folder(folder).cassettes.items()}
    async with (
        running_server(tmp_path, cassettes={"replay": folder}) as server,
        aiohttp.ClientSession() as web,
    ):
        for name in files:
            events, said = turns[name], recorded[name]
            for api in APIS:
                asked = await ask(web, server, api, name, events)
                assert _essence(asked) == _essence(said), (name, api)
                assert api != "chat" or asked == said, name
            text, calls = said["text"], said["calls"]
            if text:
                first = text.partition("\n")[0] or text
                stop = first[len(first) // 2 :][:3]
                asked = await ask(web, server, "chat", name, events, stop=[stop])
                assert asked["text"] == text.partition(stop)[0], name
            if calls:
                by_name = {"x-codex-cassette": files[name]}
                asked = await ask(web, server, "chat", name, events, headers=by_name, strict=ANY)
                assert asked == said, name
                asked = await ask(web, server, "chat", name, events, headers=by_name, strict=NEVER)
                assert (asked.get("code"), asked["calls"]) == ("cassette_invalid", []), (name, asked)


def _essence(said: Said) -> tuple[Any, ...]:
    """What an answer says on each API: errors have other codes there, and messages are joined in other ways."""
    return "code" in said, "".join(said["text"].split("\n")) or said.get("refusal", ""), said["calls"]


def plays_golden_turns(server: Server, turns: dict[str, list[Event]]) -> None:
    """Makes a server's agent say the events of the turn that is asked for."""

    async def open_golden(turn: Turn) -> AgentSession:
        said = "".join(getattr(part, "text", "") for part in turn.history[-1].parts)  # type: ignore[union-attr]
        lines = [Line(0, "events", [event]) for event in turns[said]]
        dialect = PlayedDialect(WholeCalls(turn, turns[said], takes_replies=True), "")
        return AgentSession(turn, dialect, PlayedTransport("golden", lines, dialect, lambda _: 0.0))

    async def release(session: AgentSession, *, finished: bool) -> None:
        await session.transport.release(finished=finished)

    server.agent.open = open_golden  # type: ignore[method-assign]
    server.agent.release = release  # type: ignore[method-assign]


def _name_in(content: dict[str, Any]) -> str:
    return str(content["messages"][-1]["text"])


APIS: Final = ("chat", "responses", "messages", "ollama")


async def ask(
    web: aiohttp.ClientSession,
    server: Server,
    api: str,
    name: str,
    events: Sequence[Event],
    *,
    stop: Sequence[str] = (),
    strict: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> Said:
    """Asks for a golden turn, with the tools that it calls."""
    items = [event.item for event in events if isinstance(event, ItemStarted)]
    requests = [event for event in events if isinstance(event, ToolCallRequested)]
    names = sorted(
        {each.name for each in (*items, *requests) if isinstance(each, ToolCall | ToolCallRequested)}
    )
    own = {"strict": True} if strict else {}
    functions = [{"name": each, "parameters": strict or ANY, **own} for each in names]
    messages = [{"role": "user", "content": name}]
    wrapped = [{"type": "function", "function": each} for each in functions]
    requests_by_api: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("v1/chat/completions", {"messages": messages, "tools": wrapped, "stop": list(stop)}),
        "responses": (
            "v1/responses",
            {"input": name, "tools": [{"type": "function", **each} for each in functions]},
        ),
        "messages": (
            "v1/messages",
            {
                "messages": messages,
                "max_tokens": 100_000,
                "tools": [{"name": each, "input_schema": ANY} for each in names],
            },
        ),
        "ollama": ("api/chat", {"messages": messages, "tools": wrapped, "stream": False}),
    }
    path, body = requests_by_api[api]
    body = {"model": "codex-5", **{key: value for key, value in body.items() if value != []}}
    url = f"http://127.0.0.1:{server.port}/{path}"
    async with web.post(url, json=body, headers=headers) as reply:
        answer = await reply.json()
    return {"status": reply.status, **_said(api, answer)} if reply.status == 200 else _failed(answer)


def _failed(answer: dict[str, Any]) -> Said:
    error = answer["error"]
    return {"code": error.get("code") if isinstance(error, dict) else "", "text": "", "calls": []}


def _said(api: str, answer: dict[str, Any]) -> Said:
    calls: list[tuple[str, Any]]
    refusal = ""
    if api == "chat":
        message = answer["choices"][0]["message"]
        text, given = message.get("content"), message.get("tool_calls") or []
        refusal = message.get("refusal") or ""
        calls = [(each["function"]["name"], each["function"]["arguments"]) for each in given]
    elif api == "responses":
        items = answer["output"]
        text = "".join(
            part.get("text", part.get("refusal", ""))
            for each in items
            if each["type"] == "message"
            for part in each["content"]
        )
        calls = [(each["name"], each["arguments"]) for each in items if each["type"] == "function_call"]
    elif api == "messages":
        text = "".join(each["text"] for each in answer["content"] if each["type"] == "text")
        calls = [(each["name"], each["input"]) for each in answer["content"] if each["type"] == "tool_use"]
    else:
        text, given = answer["message"]["content"], answer["message"].get("tool_calls") or []
        calls = [(each["function"]["name"], each["function"]["arguments"]) for each in given]
    own = {"refusal": refusal} if refusal else {}
    return {"text": text or "", "calls": [(name, _object(given)) for name, given in calls], **own}


def _object(arguments: Any) -> Any:
    return msgspec.json.decode(arguments) if isinstance(arguments, str) else arguments
