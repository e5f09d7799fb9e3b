"""The end of a response that another server runs, in the log of its stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from codex_proxy.core.event_rows import encode_row
from codex_proxy.core.events import Event, ItemStarted, Stop, TextDelta, TurnEnded
from codex_proxy.core.items import Message
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.responses import saving
from codex_proxy.responses.follow import Follower
from codex_proxy.responses.saving import BEFORE_ALL, StoredLog, end_for_another, end_stored_response
from codex_proxy.runs.event_log import TAKEN_AT_ONCE
from codex_proxy.store.values import StoredResponse
from codex_proxy.surfaces.responses.kept_log import FIRST, LAST
from codex_proxy.surfaces.responses.response_object import cancelled_response
from tests.http.serving import fake_proxy
from tests.http_responses.asking import create, events_of, prompt_for

SAID: list[Event] = [ItemStarted(Message("m")), TextDelta("m", "one")]


async def test_text_that_a_server_wrote_while_another_one_cancelled_is_in_stream_and_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_proxy(tmp_path) as proxy:
        service = proxy.app[RESPONSES]
        store = service.store
        assert store is not None
        events = events_of((await create(proxy, prompt_for("one"), background=True, stream=True)).text)
        [start] = [event for event in events if event["type"] == "response.created"]
        id = start["response"]["id"]
        rows = await store.frames("local", id, after=BEFORE_ALL)
        assert (rows[0][0], rows[-1][0]) == (FIRST, LAST)
        await store.delete_response("local", id)
        running = {**start["response"], "status": "in_progress"}
        json = msgspec.json.encode(running)
        await store.add_response(
            StoredResponse(
                owner="local", id=id, status="in_progress", created=1.0, json=json, background=True
            )
        )
        await store.append_frames("local", id, [(FIRST, rows[0][1]), (FIRST + 1, encode_row(SAID))])

        async def late(*given: Any, **more: Any) -> bool:
            await store.append_frames("local", id, [(FIRST + 2, encode_row([TextDelta("m", " two")]))])
            return await end_stored_response(*given, **more)

        monkeypatch.setattr(saving, "end_stored_response", late)
        await end_for_another(
            service, store, "local", cancelled_response(running), TurnEnded(Stop.INTERRUPTED)
        )
        found = (await proxy.send("GET", f"/v1/responses/{id}")).body
        stream = events_of((await proxy.send("GET", f"/v1/responses/{id}?stream=true")).text)
        assert await StoredLog(store, "local", id).renderer() is not None
    assert found["status"] == "cancelled"
    assert found["output"][0]["content"][0]["text"] == "one two"
    assert stream[-1]["response"] == found


async def test_a_resumed_stream_is_taken_in_parts_while_others_are_served(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        sent = (await create(proxy, "[[fake:count n=2000 size=100]]", background=True, stream=True)).text
        id = events_of(sent)[0]["response"]["id"]
        follower, parts = Follower(proxy.app[RESPONSES], "local", id, -1), list[bytes]()
        while not follower.finished:
            await follower.wait()
            parts.append(follower.take())
        follower.close()
    assert b"".join(parts).decode() == sent
    end = len(b"event: done\ndata: [DONE]\n\n")
    assert all(len(part) <= TAKEN_AT_ONCE + end or part.count(b"\nevent: ") <= 1 for part in parts)
