"""Plays a golden transcript of the Agents API: a session, what its client sends meanwhile, its streams and lists.

A transcript has the `request` that creates the session and, in `sent`, what the client does behind an event: `after` is
the type of the event, and `events` are sent then. The answers are `stream`, without the events of `subagents`, which
come at any moment between the others; then the lists of the session's `turns` and `items`, oldest first, and those of
each subagent. Neighbouring pieces of one text are one, and the folder of the session is `<folder>`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

KEY: Final = "the-key-of-the-transcripts"
AGENTS: Final = {"OpenAI-Beta": "agents=v1", "Authorization": f"Bearer {KEY}"}
FOLDER: Final = "<folder>"
_SECONDS: Final = 60.0
_SUBAGENT: Final = "agent.session.subagent."

Json = dict[str, Any]


class Naming(Protocol):
    """Names in place of what differs from run to run."""

    def replace(self, value: Any) -> Any: ...

    def put_back(self, request: Any) -> Any: ...


async def play_session(url: str, folder: Path, recorded: Json, names: Naming) -> tuple[Json, list[int]]:
    """Returns the content of a transcript with today's answers, and the status of the creation. `folder`: where the
    session works.
    """
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(f"{url}/v1/agents/", headers=AGENTS, timeout=timeout) as http:
        body, to_send = _in_folder(recorded["request"], folder), list(recorded["sent"])
        told = list[Json]()
        async with http.post("sessions", json=body) as reply:
            async for event in _events(reply):
                named = names.replace(event)
                told.append(named)
                if to_send and to_send[0]["after"] == event["type"]:
                    await _send(http, told[0]["session"]["id"], to_send.pop(0)["events"], names)
        assert not to_send, f"the session has ended before {to_send}"
        session = f"sessions/{names.put_back(told[0]['session']['id'])}"
        lists = {name: await _list(http, f"{session}/{name}") for name in ("turns", "items")}
        children = [
            {"subagent": each}
            | {name: await _list(http, f"{session}/subagents/{each['id']}/{name}") for name in lists}
            for each in await _list(http, f"{session}/subagents")
        ]
    answers = {
        "stream": _joined([each for each in told if not each["type"].startswith(_SUBAGENT)]),
        "subagents": [each for each in told if each["type"].startswith(_SUBAGENT)],
        **names.replace(lists),
        "lists_of_subagents": names.replace(children),
    }
    asked = {"request": recorded["request"], "sent": recorded["sent"]}
    return {**asked, **json.loads(json.dumps(answers).replace(str(folder), FOLDER))}, [reply.status]


def _in_folder(body: Json, folder: Path) -> Json:
    found: Json = json.loads(json.dumps(body).replace(FOLDER, str(folder)))
    return found


async def _events(reply: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    async for line in reply.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def _send(http: aiohttp.ClientSession, session: str, events: list[Json], names: Naming) -> None:
    path = f"sessions/{names.put_back(session)}/events"
    async with http.post(path, json={"events": names.put_back(events)}) as reply:
        assert reply.status == 202, await reply.text()


async def _list(http: aiohttp.ClientSession, path: str) -> list[Json]:
    async with http.get(path, params={"order": "asc", "limit": "100"}) as reply:
        found: list[Json] = (await reply.json())["data"]
        return found


def _joined(events: list[Json]) -> list[Json]:
    """Returns events with one event for neighbouring pieces of a text: where it is cut depends on the moment."""
    found = list[Json]()
    for event in events:
        before = found[-1] if found else {}
        if "delta" in event and {**before, "delta": ""} == {**event, "delta": ""}:
            found[-1] = {**event, "delta": before["delta"] + event["delta"]}
        else:
            found.append(event)
    return found
