"""The WebSocket of `/v1/responses`: events as frames, turns in order, chains without a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai.types.responses import ResponseSteerFailedEvent
from openai.types.responses.responses_client_event import ResponseCreate

from codex_proxy.surfaces.responses.wire import ResponseRequest
from tests.http.serving import Proxy, fake_proxy, until
from tests.http_responses.asking import EVENT, check_events, prompt_for
from tests.waiting import PATIENCE

Socket = aiohttp.ClientWebSocketResponse
LAST = ("response.completed", "response.incomplete", "response.failed")


def open_socket(proxy: Proxy, **headers: str) -> Any:
    return proxy.session.ws_connect(f"{proxy.url}/v1/responses", headers=headers)


async def send(socket: Socket, input: Any, **fields: Any) -> None:
    await socket.send_json({"type": "response.create", "model": "codex-5", "input": input, **fields})


async def events_of(socket: Socket) -> list[dict[str, Any]]:
    """The events of one turn."""
    events: list[dict[str, Any]] = []
    while not (events and events[-1]["type"] in LAST):
        events.append(await socket.receive_json(timeout=PATIENCE))
    return check_events(events)


async def answer_to(socket: Socket, input: Any, **fields: Any) -> dict[str, Any]:
    """The final object."""
    await send(socket, input, **fields)
    response: dict[str, Any] = (await events_of(socket))[-1]["response"]
    return response


async def error_of(socket: Socket) -> dict[str, Any]:
    frame = await socket.receive_json(timeout=PATIENCE)
    assert (frame["type"], set(frame)) == ("error", {"type", "status", "error"})
    return {"status": frame["status"], **frame["error"]}


async def test_a_turn_is_reported_in_the_events_of_a_stream(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        await send(socket, prompt_for("one two"))
        events = await events_of(socket)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "one two"
    stored = await proxy.send("GET", f"/v1/responses/{events[-1]['response']['id']}")
    assert stored.body == events[-1]["response"]


async def test_the_newest_response_is_continued_from_the_connections_memory(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        first = await answer_to(socket, prompt_for("Blue."), store=False)
        second = await answer_to(socket, prompt_for("Red."), store=False, previous_response_id=first["id"])
        third = await answer_to(socket, "[[fake:echo]]", store=False, previous_response_id=second["id"])
        echo = json.dumps(third["output"])
        assert "Blue." in echo
        assert "Red." in echo
        await send(socket, "Again.", store=False, previous_response_id=first["id"])
        assert (await error_of(socket))["code"] == "previous_response_not_found"


async def test_memory_ends_with_the_connection(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        first = await answer_to(socket, prompt_for("Blue."), store=False)
    async with open_socket(proxy) as socket:
        await send(socket, "Go on.", previous_response_id=first["id"])
        assert (await error_of(socket))["status"] == 400


async def test_a_continuation_that_fails_makes_the_response_forgotten(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        first = await answer_to(socket, prompt_for("Blue."), store=False)
        failed = await answer_to(
            socket, "[[fake:error_mid_text]]", store=False, previous_response_id=first["id"]
        )
        assert failed["status"] == "failed"
        await send(socket, "Again.", store=False, previous_response_id=first["id"])
        assert (await error_of(socket))["code"] == "previous_response_not_found"


@pytest.mark.parametrize("store", [True, False])
async def test_a_deleted_response_is_not_continued_from_memory(proxy: Proxy, store: bool) -> None:
    async with open_socket(proxy) as socket:
        first = await answer_to(socket, prompt_for("Blue."))
        await proxy.send("DELETE", f"/v1/responses/{first['id']}")
        await send(socket, "[[fake:echo]]", store=store, previous_response_id=first["id"])
        assert (await error_of(socket))["code"] == "previous_response_not_found"
        assert (await answer_to(socket, "Hi."))["status"] == "completed"


async def test_a_response_that_continues_an_unstored_one_cannot_be_stored(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        first = await answer_to(socket, prompt_for("Blue."), store=False)
        await send(socket, "Go on.", previous_response_id=first["id"])
        assert (await error_of(socket))["param"] == "store"


async def test_turns_are_answered_one_after_the_other(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        await send(socket, prompt_for("One."))
        await send(socket, prompt_for("Two."))
        texts = [(await events_of(socket))[-1]["response"]["output"][0]["content"][0]["text"] for _ in "12"]
    assert texts == ["One.", "Two."]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "frame", ["no json", "[]", '{"type": "response.cancel"}', '{"type": "response.create"}']
)
async def test_a_wrong_frame_is_an_error_and_the_connection_goes_on(proxy: Proxy, frame: str) -> None:
    async with open_socket(proxy) as socket:
        await socket.send_str(frame)
        assert (await error_of(socket))["status"] == 400
        assert (await answer_to(socket, prompt_for("Hi.")))["status"] == "completed"


async def test_a_fault_before_the_first_event_is_an_error_frame(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        await send(socket, "[[fake:error_500]]")
        assert (await error_of(socket))["status"] >= 500


async def test_a_client_that_leaves_ends_its_turn(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with fake_proxy(tmp_path, environment) as proxy:
        async with open_socket(proxy) as socket:
            await send(socket, '[[fake:text say="one two" hold=1]]')
            EVENT.validate_python(await socket.receive_json(timeout=PATIENCE))
        await until(lambda: proxy.server.runs.running == 0)


async def test_a_web_page_cannot_open_a_websocket(proxy: Proxy) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with open_socket(proxy, Origin="https://example.com"):
            pass
    assert refused.value.status == 403


async def test_a_page_that_the_operator_lists_can(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, allowed_origins="https://example.com") as proxy,
        open_socket(proxy, Origin="https://example.com") as socket,
    ):
        assert (await answer_to(socket, prompt_for("Hi.")))["status"] == "completed"


async def test_a_websocket_without_the_key_of_the_server_is_401(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="secret") as proxy:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with open_socket(proxy):
                pass
        assert refused.value.status == 401
        async with open_socket(proxy, Authorization="Bearer secret") as socket:
            assert (await answer_to(socket, prompt_for("Hi.")))["status"] == "completed"


async def test_while_the_server_stops_none_is_opened_and_the_refusal_is_that_of_any_turn(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path) as proxy:
        proxy.server.runs.begin_drain()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await open_socket(proxy)
    assert (refused.value.status, refused.value.message) == (503, "Invalid response status")
    assert refused.value.headers is not None
    assert refused.value.headers["connection"] == "close"
    assert int(refused.value.headers["retry-after"]) > 0


async def test_a_get_without_an_upgrade_is_a_405(proxy: Proxy) -> None:
    assert (await proxy.send("GET", "/v1/responses")).status == 405


@pytest.mark.parametrize("field", [{"background": True}, {"generate": False}, {"stream_id": "lane_a"}])
async def test_what_a_connection_cannot_do_is_refused_and_the_next_turn_runs(
    proxy: Proxy, field: dict[str, Any]
) -> None:
    async with open_socket(proxy) as socket:
        await send(socket, "Hi.", **field)
        refusal = await error_of(socket)
        assert (refusal["status"], refusal["param"]) == (400, *field)
        assert (await answer_to(socket, "Hi."))["status"] == "completed"


async def test_input_that_would_steer_a_running_turn_comes_back_at_once(proxy: Proxy) -> None:
    async with open_socket(proxy) as socket:
        await send(socket, "[[fake:count n=200 delay=100]]")
        created = await socket.receive_json(timeout=PATIENCE)
        steer = {"previous_response_id": created["response"]["id"], "input": "More."}
        await socket.send_json({"type": "response.steer", **steer})
        while (event := await socket.receive_json(timeout=PATIENCE))["type"] != "response.steer.failed":
            assert event["type"] not in LAST
    failed = ResponseSteerFailedEvent.model_validate(event)
    assert (failed.error.code, failed.steer.to_dict()) == ("steering_not_supported", steer)


def test_every_field_of_the_sdks_frames_is_served_or_refused() -> None:
    own = {"type", "generate", "stream_id"}
    known = {field.alias or name for name, field in ResponseRequest.model_fields.items()}
    assert set(ResponseCreate.model_fields) - known == own
