"""Every option of the table, through every API to every kind of agent: it has its effect, is refused with `param`, or
is named in `x-codex-ignored-params` (over a WebSocket in the last event).

An effect means that the code of the agent reads the option from the turn, or that a model server gets it. Options that
no capability is needed for may be read by this server's own code instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from codex_proxy.core.options import OPTIONS, Api, Option
from codex_proxy.core.turn import Turn
from codex_proxy.http import turns
from codex_proxy.http.openapi import REQUESTS, body_schemas, property_at
from codex_proxy.surfaces.requests import options
from tests.examples.test_oneshot_agent import EXAMPLE, PLUGIN
from tests.http.claude import claude_proxy
from tests.http.serving import Answer, Proxy, fake_proxy
from tests.model_server import Upstream, proxy_before, upstream
from tests.response_events import message, response_with
from tests.waiting import PATIENCE

CODE: Final = Path(options.__file__).parents[2]
OWN_WORK: Final = tuple(str(CODE / name) for name in ("admission", "core", "responses", "runs", "tools"))
AGENTS: Final = (str(CODE / "agents"), str(CODE / "parts"), str(EXAMPLE))
NO_EFFECT: Final = "idle_sessions.py"
"""Compares the options of turns, and does nothing with them."""
FIELDS: Final = frozenset(Turn.__struct_fields__)
reads: set[tuple[str, str]] = set()
"""The fields of turns that were read, each with the file of the code that did."""


class WatchedTurn(Turn, frozen=True, kw_only=True):
    """A turn that notes who reads it."""

    def __getattribute__(self, name: str) -> Any:
        if name in FIELDS:
            reads.add((name, sys._getframe(1).f_code.co_filename))
        return super().__getattribute__(name)


VALUES: Final[dict[str, Any]] = {
    "effort": "high",
    "summary": "auto",
    "service_tier": "flex",
    "web_search_options": {},
    "parallel_tool_calls": True,
    "tool_choice.disable_parallel_tool_use": True,
    "stop": ["END"],
    "max_tokens": 1000,
    "max_server_calls": 3,
    "logit_bias": {"5": 1},
    "seed": 7,
    "prediction": {"type": "content", "content": "x"},
    "top_k": 5,
}
"""Values of options, by the field of the turn or the name in the request; others are the last of an enumeration."""
FUNCTION: Final = {"name": "f", "parameters": {"type": "object"}}
TOOLS: Final[dict[Api, dict[str, Any]]] = {
    "chat": {"type": "function", "function": FUNCTION},
    "responses": {"type": "function", **FUNCTION},
    "messages": {"name": "f", "input_schema": {"type": "object"}},
    "ollama": {"type": "function", "function": FUNCTION},
}
SEARCH: Final[dict[Api, dict[str, Any]]] = {
    "responses": {"type": "web_search"},
    "messages": {"type": "web_search_20250305", "name": "web_search"},
}
ASKED: Final = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
BODIES: Final[dict[Api, tuple[str, dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", {"messages": ASKED["messages"]}),
    "completions": ("/v1/completions", {"prompt": "Hi"}),
    "responses": ("/v1/responses", {"input": "Hi"}),
    "messages": ("/v1/messages", ASKED),
    "ollama": ("/api/chat", {"messages": ASKED["messages"]}),
}
NOT_ASKED: Final = frozenset({"model", "history", "tools", "tool_choice", "output_schema", "choices"})
"""Fields of every request, or that tests of their own ask for."""


SERVED_HERE: Final = frozenset({"parallel_tool_calls"})
"""What this server does where the agent cannot: it keeps calls apart."""
SHOWN_ANYWAY: Final[dict[str, frozenset[str]]] = dict.fromkeys(
    ("claude-code", "openai-chat"), frozenset({"reasoning.summary"})
)
"""Agents with efforts show their reasoning, whichever summary is asked for."""


def optional_in(api: Api) -> Iterator[Option]:
    for option in OPTIONS:
        known = api != "completions" or option.field not in ("effort", "summary")
        if api in option.names and option.field not in NOT_ASKED and known:
            yield option


def last_value(path: str, api: Api) -> Any:
    assert api in REQUESTS, f"add a value for {path} to VALUES"
    schemas = body_schemas(max_choices=1)
    schema = property_at(path, schemas[REQUESTS[api][0]], schemas) or {}
    (values,) = (each["enum"] for each in schema["anyOf"] if "enum" in each)
    return values[-1]


def put(body: dict[str, Any], option: Option, api: Api) -> None:
    """Asks for an option in a request."""
    name = option.names[api]
    if name == "tools[web_search]":
        body.setdefault("tools", []).append(SEARCH[api])
        return
    if option.only_with == "tools":
        body.setdefault("tools", []).append(TOOLS[api])
    if api == "ollama" and option.field == "sampling":
        name = f"options.{name}"
    value = VALUES.get(name, VALUES.get(option.field, VALUES.get(option.names[api])))
    if value is None:
        value = 0.5 if option.field == "sampling" else last_value(name, api)
    inside = body
    for part in name.split(".")[:-1]:
        inside = inside.setdefault(part, {"type": "auto"} if part == "tool_choice" else {})
    inside[name.rpartition(".")[2]] = value


@asynccontextmanager
async def before_upstream(folder: Path, agent: str) -> AsyncIterator[tuple[Proxy, Upstream]]:
    async with upstream() as server, proxy_before(server.url, folder, agent=agent) as proxy:
        if agent == "openai-responses":
            server.script = [response_with(message("Hello."))] * 50
        yield proxy, server


@asynccontextmanager
async def proxy_of_family(family: str, folder: Path) -> AsyncIterator[tuple[Proxy, Upstream | None]]:
    if family.startswith("openai-"):
        async with before_upstream(folder, family) as both:
            yield both
        return
    made = {
        "plug-in": partial(fake_proxy, folder, **dict[str, Any](PLUGIN)),
        "claude-code": partial(claude_proxy, folder),
    }
    async with made.get(family, partial(fake_proxy, folder, fake_dialect=family))() as proxy:
        yield proxy, None


async def ask_by_websocket(proxy: Proxy, body: dict[str, Any]) -> Answer:
    """Returns what the last event says as an answer over HTTP would."""
    async with proxy.session.ws_connect(f"{proxy.url}/v1/responses") as socket:
        await socket.send_json({"type": "response.create", **body})
        event: dict[str, Any] = {"type": ""}
        while event["type"] not in ("response.completed", "response.failed", "error"):
            event = await socket.receive_json(timeout=PATIENCE)
        return Answer(event.get("status", 200), event, json.dumps(event))


def has_path(body: Any, path: str) -> bool:
    for name in path.split("."):
        body = body.get(name) if isinstance(body, dict) else None
    return body is not None


def has_effect(option: Option, name: str, sent: dict[str, Any]) -> bool:
    """Whether an agent has read the option, or a model server was `sent` it."""
    if any(path and has_path(sent, path) for path in (name, option.chat_body, option.responses_body)):
        return True
    folders = AGENTS if option.needs and option.field not in SERVED_HERE else (*AGENTS, *OWN_WORK)
    files = {file for field, file in reads if field == option.field and not file.endswith(NO_EFFECT)}
    return any(file.startswith(folders) for file in files)


async def lost_options(
    proxy: Proxy, server: Upstream | None, api: Api, *, by_websocket: bool = False
) -> list[str]:
    """Returns the options of one request with all of them that neither had an effect nor are named."""
    path, asked = BODIES[api]
    wanted, stream = list(optional_in(api)), {"stream": False}
    while True:
        body = {"model": "small" if server else "codex-5", **json.loads(json.dumps(asked))} | stream
        for option in wanted:
            put(body, option, api)
        reads.clear()
        if by_websocket:
            answer = await ask_by_websocket(proxy, {name: body[name] for name in body if name != "stream"})
        else:
            answer = await proxy.send("POST", path, body)
        if answer.status == 200:
            break
        assert "does not support" in answer.text
        error = answer.error  # of Anthropic's API: without `param`, so its message names the field
        param = error.get("param") or next(name for name in ("tools",) if name in error["message"])
        refused = [each for each in wanted if param in (each.only_with, each.names[api].split("[")[0])]
        kept = [each for each in wanted if each not in refused]
        assert len(kept) < len(wanted), answer.text
        wanted = kept
    named = answer.headers.get("x-codex-ignored-params", "").split(", ")
    sent = server.requests[-1].body if server else {}
    return [
        option.names[api]
        for option in wanted
        if option.names[api] not in named and not has_effect(option, option.names[api], sent)
    ]


FAMILIES: Final = (
    *("app-server", "proto", "acp", "claude-code", "openai-chat", "openai-responses"),
    "plug-in",
)


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setattr(options, "Turn", WatchedTurn)


@pytest.mark.parametrize("family", FAMILIES)
async def test_no_option_is_lost_in_silence(family: str, tmp_path: Path) -> None:
    lost: dict[str, list[str]] = {}
    async with proxy_of_family(family, tmp_path) as (proxy, server):
        for api in BODIES:
            if api == "completions" and server is not None:
                continue  # the body goes to the model server as it is
            lost[api] = await lost_options(proxy, server, api)
        lost["websocket"] = await lost_options(proxy, server, "responses", by_websocket=True)
    shown = SHOWN_ANYWAY.get(family, frozenset())
    assert {api: {*names} - shown for api, names in lost.items()} == {api: set() for api in lost}


@pytest.mark.parametrize("family", ["plug-in", "acp"])
async def test_an_option_that_no_agent_reads_and_nobody_names_is_found(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if somebody had added `verbosity`, and written down that every agent can do it."""
    planted = tuple(each._replace(needs=()) for each in OPTIONS if each.field == "verbosity")
    kept = tuple(each for each in OPTIONS if each.field != "verbosity")
    monkeypatch.setattr(f"{__name__}.OPTIONS", (*kept, *planted))
    monkeypatch.setattr(turns, "_OPTIONAL", [each for each in kept if each.needs])
    async with proxy_of_family(family, tmp_path) as (proxy, server):
        assert await lost_options(proxy, server, "chat") == ["verbosity"]
        assert await lost_options(proxy, server, "responses") == ["text.verbosity"]
        assert await lost_options(proxy, server, "responses", by_websocket=True) == ["text.verbosity"]
