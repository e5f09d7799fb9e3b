"""Clients of sessions of the Managed Agents API: requests as they are on the wire, and readers of streams. Every object
and event that comes by is held to the SDK's types, and the events of a log to the order that the API promises.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from anthropic.types.beta import BetaManagedAgentsSession
from anthropic.types.beta.sessions import (
    BetaManagedAgentsSessionEvent,
    BetaManagedAgentsSessionThread,
    BetaManagedAgentsStreamSessionEvents,
)

from tests.http.serving import Answer, Proxy
from tests.parts.managed_agents.driving import HEADERS, WEATHER
from tests.parts.sessions.sdk_values import differences
from tests.waiting import PATIENCE

IDLE: Final = "session.status_idle"
RUNNING: Final = "session.status_running"
TURN: Final = ("user.message", RUNNING)
STEP: Final = ("span.model_request_start", "agent.message", "span.model_request_end")
PREVIEWS: Final = ("event_start", "event_delta")
INTERRUPT: Final = {"type": "user.interrupt"}


class ManagedClient:
    """Requests to a proxy, with their answers as they are on the wire."""

    def __init__(self, proxy: Proxy, key: str = "") -> None:
        self.proxy = proxy
        self.headers = HEADERS | ({"x-api-key": key} if key else {})
        self._environment = ""

    async def ask(self, method: str, path: str, body: Any = None, **more: str) -> Answer:
        """A request, with `more` headers; the whole answer."""
        return await self.proxy.send(method, f"/v1{path}", body, headers=self.headers | more)

    async def well(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.status == 200, answer.text
        return answer.body

    async def refused(self, status: int, path: str, body: Any = None, method: str = "POST") -> str:
        """The message of a request that has to be refused with this status."""
        answer = await self.ask(method, path, body)
        assert answer.status == status, answer.text
        assert answer.body["type"] == "error"
        return str(answer.body["error"]["message"])

    async def environment(self) -> str:
        if not self._environment:
            made = await self.well("POST", "/environments", {"name": "here"})
            self._environment = made["id"]
        return self._environment

    async def new_agent(self, *tools: dict[str, Any], **more: Any) -> str:
        body = {"name": "Agent", "model": "codex-5", "tools": list(tools), **more}
        return str((await self.well("POST", "/agents", body))["id"])

    async def new_session(self, *texts: str, tools: Iterable[Any] = (WEATHER,), **more: Any) -> str:
        """The id of a session, with messages from which it begins."""
        body = {
            "agent": await self.new_agent(*tools),
            "environment_id": await self.environment(),
            "initial_events": [message(text) for text in texts],
        }
        made = await self.well("POST", "/sessions", body | more)
        check(made, BetaManagedAgentsSession)
        return str(made["id"])

    async def session(self, id: str) -> Any:
        found = await self.well("GET", f"/sessions/{id}")
        check(found, BetaManagedAgentsSession)
        return found

    async def send(self, id: str, *events: Any) -> list[Any]:
        """Sends events, which have to be accepted. Returns them as they were answered."""
        sent = await self.well("POST", f"/sessions/{id}/events", {"events": events})
        for event in sent["data"]:
            check(event, BetaManagedAgentsSessionEvent)
        assert [event["type"] for event in sent["data"]] == [event["type"] for event in events]
        return list(sent["data"])

    async def events(self, id: str, limit: int = 1000, query: str = "", thread: str = "") -> list[Any]:
        """All events of a session, or of one of its threads, whose order is checked."""
        found: list[Any] = []
        path = f"/sessions/{id}/threads/{thread}/events" if thread else f"/sessions/{id}/events"
        page = ""
        while True:
            answer = await self.well("GET", f"{path}?limit={limit}{query}{page}")
            found += answer["data"]
            if answer["next_page"] is None:
                break
            assert len(answer["data"]) == limit
            page = f"&page={answer['next_page']}"
        if not query:
            check_log(found)
        return found

    async def threads(self, id: str) -> list[Any]:
        found = (await self.well("GET", f"/sessions/{id}/threads"))["data"]
        for each in found:
            check(each, BetaManagedAgentsSessionThread)
        return list(found)

    @asynccontextmanager
    async def stream(self, id: str, query: str = "", path: str = "events/stream") -> AsyncIterator[Stream]:
        url = f"{self.proxy.url}/v1/sessions/{id}/{path}{query}"
        async with self.proxy.session.get(url, headers=self.headers) as reply:
            assert reply.status == 200, await reply.text()
            yield Stream(reply)

    async def turn(self, id: str, *events: Any) -> list[Any]:
        """Sends events, and returns what happens until the session rests. Calls get the result `sunny`."""
        async with self.stream(id) as stream:
            await self.send(id, *events)
            return await self.until_rest(id, stream)

    async def until_rest(self, id: str, stream: Stream) -> list[Any]:
        while not stream.rests:
            event = await stream.next()
            if event["type"] == IDLE and event["stop_reason"]["type"] == "requires_action":
                for use in event["stop_reason"]["event_ids"][:1]:
                    await self.send(id, result(use))
        return stream.events


class Stream:
    """A stream of events, as they come."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._lines = reply.content
        self.events: list[Any] = []
        self.frames: list[Any] = []
        """Those with previews, too."""
        self.at_end = False

    @property
    def rests(self) -> bool:
        last = self.events[-1] if self.events else {}
        return last.get("type") == IDLE and last["stop_reason"]["type"] != "requires_action"

    async def next(self) -> Any:
        """The next event; None at the end."""
        kind = ""
        while True:
            async with asyncio.timeout(PATIENCE):
                line = (await self._lines.readline()).decode()
            if not line:
                self.at_end = True
                return None
            if line.startswith("event: "):
                kind = line[7:].strip()
            elif line.startswith("data: ") and kind != "ping":
                event = json.loads(line[6:])
                assert event["type"] == kind
                check(event, BetaManagedAgentsStreamSessionEvents)
                self.frames.append(event)
                if kind not in PREVIEWS:
                    self.events.append(event)
                return event

    async def until(self, kind: str) -> Any:
        while True:
            event = await self.next()
            assert event is not None, f"the stream ended before {kind}"
            if event["type"] == kind:
                return event

    async def whole(self) -> list[Any]:
        while not self.at_end:
            await self.next()
        return self.events


def check(value: Any, annotation: Any) -> None:
    found = differences(value, annotation)
    assert not found, (found, value)


def check_log(events: Iterable[Any]) -> None:
    """Ids do not repeat, and times do not go back; each call has at most one result, each result a call before it; each
    model request that has begun ends once; who waits names what for.
    """
    seen, at = set[str](), ""
    calls: dict[str, bool] = {}
    step = ""
    for event in events:
        check(event, BetaManagedAgentsSessionEvent)
        assert event["id"] not in seen, event
        assert event["processed_at"] > at
        seen.add(event["id"])
        at, kind = event["processed_at"], event["type"]
        if kind.endswith("tool_use"):
            calls[event["id"]] = False
        elif kind.endswith("tool_result"):
            (use,) = (value for name, value in event.items() if name.endswith("tool_use_id"))
            assert calls[use] is False, event
            calls[use] = True
        elif kind == "span.model_request_start":
            assert not step
            step = event["id"]
        elif kind == "span.model_request_end":
            assert event["model_request_start_id"] == step
            step = ""
        elif kind == IDLE:
            assert not step
            reason = event["stop_reason"]
            if reason["type"] == "requires_action":
                assert reason["event_ids"]
                assert not any(calls[each] for each in reason["event_ids"])


def message(text: str) -> dict[str, Any]:
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def result(use: str, text: str = "sunny", **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"type": "user.custom_tool_result", "custom_tool_use_id": use, "content": content, **more}


def confirm(use: str, result: str = "allow", **more: Any) -> dict[str, Any]:
    return {"type": "user.tool_confirmation", "tool_use_id": use, "result": result, **more}


def kinds(events: Iterable[Any]) -> list[str]:
    return [event["type"] for event in events]


def said(events: Iterable[Any], kind: str = "agent.message") -> list[str]:
    """The texts of messages."""
    return ["".join(block["text"] for block in event["content"]) for event in events if event["type"] == kind]


def result_texts(events: Iterable[Any]) -> dict[str, str]:
    """The texts of the results of the agent's calls, by the calls."""
    return {
        event["tool_use_id"]: "".join(block["text"] for block in event["content"])
        for event in events
        if event["type"] == "agent.tool_result"
    }
