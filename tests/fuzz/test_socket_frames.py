"""Frames on the WebSocket of `/v1/responses` that nobody means: an error frame each, and the connection lives on."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import aiohttp
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzz.requests import ITEMS, ODD, RESPONSE, corrupt_bodies
from tests.waiting import PATIENCE

GOOD: Final = {"type": "response.create", "model": "codex-5", "input": "Hello.", "store": False}
ENDS: Final = frozenset({"error", "response.completed", "response.incomplete", "response.failed"})
OF_THE_MODEL: Final = frozenset({"invalid_structured_output", "tool_choice_not_honoured"})
STEADY: Final = settings(
    max_examples=settings().max_examples // 2,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

FRAMES: Final = (
    st.binary(max_size=60)
    | st.text(max_size=60)
    | st.sampled_from(ODD).map(json.dumps)
    | st.sampled_from(ODD).map(lambda odd: json.dumps({"type": odd}))
    | st.sampled_from(ODD).map(lambda odd: json.dumps({**GOOD, "background": odd, "generate": odd}))
    | corrupt_bodies(RESPONSE, ITEMS).map(
        lambda body: json.dumps({"type": "response.create", **body, "store": False})
    )
)


async def answer_to(socket: aiohttp.ClientWebSocketResponse, frame: str | bytes) -> dict[str, Any]:
    """The last event of what this frame starts."""
    await (socket.send_bytes(frame) if isinstance(frame, bytes) else socket.send_str(frame))
    while True:
        event: dict[str, Any] = await socket.receive_json()
        if event["type"] in ENDS:
            return event


async def talk(port: int, frames: list[str | bytes]) -> None:
    url = f"http://127.0.0.1:{port}/v1/responses"
    async with (
        asyncio.timeout(PATIENCE),
        aiohttp.ClientSession() as session,
        session.ws_connect(url) as socket,
    ):
        for frame in frames:
            event = await answer_to(socket, frame)
            if event["type"] == "error":
                error = event["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert event["status"] < 500 or error["code"] in OF_THE_MODEL, event
        assert (await answer_to(socket, json.dumps(GOOD)))["type"] == "response.completed"


@STEADY
@given(st.lists(FRAMES, max_size=4))
@example(["", b"", "{", "[]", b"\xff\xfe", '{"type":"response.create"}', '"\\ud800"'])
@example(['{"type":"response.create","model":"\\ud800","input":"\\udfff"}', "[" * 5000, "9" * 5000, "NaN"])
@example(
    [
        json.dumps({**GOOD, "previous_response_id": "resp_none"}),
        json.dumps({**GOOD, "max_tool_calls": 10**30}),
    ]
)
def test_any_frames_are_answered_and_the_next_good_one_too(port: int, frames: list[str | bytes]) -> None:
    asyncio.run(talk(port, frames))
