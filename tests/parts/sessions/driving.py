"""Clients of the Agents API: requests as they are on the wire, readers of streams, and the real SDK. Every object and
event that comes by is held to the SDK's types.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

import aiohttp
import openai
from openai.types.beta import (
    Agent,
    AgentDeleted,
    AgentSession,
    AgentSessionDeleted,
    AgentSessionEvent,
    Subagent,
)
from openai.types.beta.agent_session_item import AgentSessionItem
from openai.types.beta.agents.sessions.turn import Turn

from scripts.gen_api import whole_document
from tests.http.serving import Answer, Proxy
from tests.parts.sessions.sdk_values import differences
from tests.waiting import PATIENCE

BETA: Final = {"OpenAI-Beta": "agents=v1"}
WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "name": "get_weather",
    "description": "Returns the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
AGENT: Final[dict[str, Any]] = {"model": "codex-5", "tools": [WEATHER]}
ENDS: Final = ("agent.session.idle", "agent.session.failed")
TURN_ENDS: Final = tuple(f"agent.session.turn.{name}" for name in ("completed", "failed", "cancelled"))

_TYPES: Final[Mapping[str, Any]] = {
    "agent": Agent,
    "agent.deleted": AgentDeleted,
    "agent.session": AgentSession,
    "agent.session.deleted": AgentSessionDeleted,
    "agent.session.subagent": Subagent,
    "agent.session.turn": Turn,
}


def check_object(value: Any) -> None:
    """Fails if an answer differs from the SDK's type of it."""
    if value["object"] == "list":
        for each in value["data"]:
            if "object" in each:
                check_object(each)
            else:
                check_item(each)
        assert value.keys() == {"object", "data", "has_more", "first_id", "last_id"}
        return
    found = differences(value, _TYPES[value["object"]])
    assert not found, (found, value)


def check_item(value: Any) -> None:
    found = differences(value, AgentSessionItem)
    assert not found, (found, value)


def check_event(value: Any) -> None:
    found = differences(value, AgentSessionEvent)
    assert not found, (found, value)


@cache
def _patterns() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    paths: dict[str, dict[str, Any]] = whole_document()["paths"]
    return [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), item) for path, item in paths.items()]


def _conflicts(path: str) -> set[tuple[str, bool]]:
    """Returns the methods of a path, each with whether the document has a conflict among its answers."""
    items = [item for pattern, item in _patterns() if pattern.fullmatch(path.partition("?")[0])]
    return {
        (method.upper(), "409" in operation["responses"])
        for item in items
        for method, operation in item.items()
        if isinstance(operation, dict)
    }


class AgentsClient:
    """Requests to a proxy as the SDK sends them, and their answers as they are on the wire."""

    def __init__(self, proxy: Proxy, key: str = "") -> None:
        self.proxy = proxy
        self._headers = BETA | ({"Authorization": f"Bearer {key}"} if key else {})

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """A request to a path below /v1/agents; the whole answer."""
        headers = self._headers | more.pop("headers", {})
        answer = await self.proxy.send(method, f"/v1/agents{path}", body, headers=headers, **more)
        if answer.status == 409 and method != "GET":
            assert (method, True) in _conflicts(f"/agents{path}"), (
                f"the document has no 409 of {method} {path}"
            )
        return answer

    async def get(self, path: str) -> Any:
        return await self._well("GET", path)

    async def post(self, path: str, body: Any = None) -> Any:
        return await self._well("POST", path, body)

    async def delete(self, path: str) -> Any:
        return await self._well("DELETE", path)

    async def _well(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.status in (200, 201), answer.text
        check_object(answer.body)
        return answer.body

    async def all(self, path: str) -> list[dict[str, Any]]:
        """Everything in a list, oldest first."""
        found: list[dict[str, Any]] = []
        more, after = True, ""
        while more:
            page = await self.get(f"{path}?order=asc&limit=100{after}")
            found += page["data"]
            more, after = page["has_more"], f"&after={page['last_id']}"
        return found

    async def new_session(self, text: str = "Hello.", **more: Any) -> dict[str, Any]:
        session: dict[str, Any] = await self.post("/sessions", session_body(text, **more))
        return session

    async def idle_session(self, text: str = "Hello.", **more: Any) -> str:
        """The id of a session whose first turn has ended."""
        return (await self.whole_stream(text, **more))[0]["session"]["id"]  # type: ignore[no-any-return]

    async def whole_stream(
        self, text: str = "Hello.", answer: Callable[[dict[str, Any]], Any] | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        """The events of a new session until it is idle. Every call gets the result `sunny`, or what `answer` says."""
        events: list[dict[str, Any]] = []
        async with self.creation(text, **more) as reader:
            async for event in reader:
                events.append(event)
                await self.answer_call(event, answer)
        assert reader.at_end
        return events

    async def answer_call(
        self, event: dict[str, Any], answer: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        """Answers the call of which an event tells, if it tells of one."""
        item = event.get("item", {})
        if event["type"] == "agent.session.turn.item.added" and item["type"] == "function_call":
            output = "sunny" if answer is None else answer(item)
            await self.send(event["session_id"], result(item, output))

    async def send(self, session: str, *events: dict[str, Any], **headers: str) -> Answer:
        """Sends events, which have to be accepted."""
        answer = await self.ask("POST", f"/sessions/{session}/events", {"events": events}, headers=headers)
        assert (answer.status, answer.text) == (202, ""), answer.text
        return answer

    async def refused(self, session: str, *events: dict[str, Any], **headers: str) -> Answer:
        """Sends events, which have to be refused."""
        answer = await self.ask("POST", f"/sessions/{session}/events", {"events": events}, headers=headers)
        assert answer.status >= 400, answer.status
        return answer

    @asynccontextmanager
    async def creation(self, text: str, **more: Any) -> AsyncIterator[Reader]:
        """The stream of a new session."""
        url = f"{self.proxy.url}/v1/agents/sessions"
        body = session_body(text, stream=True, **more)
        async with self.proxy.session.post(url, json=body, headers=self._headers) as reply:
            assert reply.status == 201, await reply.text()
            yield Reader(reply)

    @asynccontextmanager
    async def following(self, session: str, query: str = "") -> AsyncIterator[Reader]:
        """The stream of what happens in a session from now on."""
        url = f"{self.proxy.url}/v1/agents/sessions/{session}/events{query}"
        async with self.proxy.session.get(url, headers=self._headers) as reply:
            assert reply.status == 200, await reply.text()
            yield Reader(reply)

    async def turn(self, session: str, *events: dict[str, Any]) -> list[dict[str, Any]]:
        """Sends events, and returns what happens until the session is idle. Calls get the result `sunny`."""
        told: list[dict[str, Any]] = []
        async with self.following(session) as reader:
            await self.send(session, *events)
            async for event in reader:
                told.append(event)
                await self.answer_call(event)
                if event["type"] in ENDS:
                    break
        return told


class Frames:
    """Reads the data of a stream's events."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._reply = reply
        self._unread = b""
        self.at_end = False
        self.events: list[dict[str, Any]] = []

    async def next_data(self) -> bytes | None:
        """The data of the next event; None at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            while True:
                frame, end, rest = self._unread.partition(b"\n\n")
                if not end:
                    piece = await self._reply.content.readany()
                    if not piece:
                        assert not self._unread
                        self.at_end = True
                        return None
                    self._unread += piece
                    continue
                self._unread = rest
                if not frame.startswith(b":"):
                    assert frame.startswith(b"data: "), frame
                    return frame[6:]


class Reader(Frames):
    """Reads a stream's events, each of which is held to the SDK's types."""

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> dict[str, Any]:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self) -> dict[str, Any] | None:
        """The next event; None at the end of the stream."""
        data = await self.next_data()
        if data is None:
            return None
        event: dict[str, Any] = json.loads(data)
        check_event(event)
        self.events.append(event)
        return event

    async def until(self, *kinds: str) -> dict[str, Any]:
        """The next event of one of these types."""
        async for event in self:
            if event["type"] in kinds:
                return event
        raise AssertionError(f"the stream ended without {kinds}")

    async def rest(self) -> list[dict[str, Any]]:
        """All events up to the end."""
        return [event async for event in self]


def session_body(text: str, **more: Any) -> dict[str, Any]:
    return {"environment": {"type": "none"}, "agent": AGENT, "input": text, **more}


def message(*texts: str) -> dict[str, Any]:
    """An event of a client with a message for each text."""
    messages = [{"role": "user", "content": [{"type": "input_text", "text": text}]} for text in texts]
    return {"type": "agent.session.input.message", "input": messages}


CANCEL: Final = {"type": "agent.session.input.cancel"}


def result(call: Mapping[str, Any], output: Any = "sunny", **more: Any) -> dict[str, Any]:
    """The result of a call, whose item or required action is given."""
    return {
        "type": "agent.session.input.tool_result",
        "turn_id": call["turn_id"],
        "call_id": call["call_id"],
        "success": True,
        "output": output,
        **more,
    }


def text_of(item: Mapping[str, Any]) -> str:
    return "".join(part["text"] for part in item["content"])


def sdk(proxy: Proxy, key: str = "x") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=key, max_retries=0)
