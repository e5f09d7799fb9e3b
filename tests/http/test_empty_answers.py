"""What a client sees of an answer without text, refusal and call: an error, or a header that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseCompletedEvent

from tests.http.serving import fake_proxy, user
from tests.waiting import PATIENCE

APIS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"]
HONEST = "[[fake:empty in=10 out=1]]"
UNEXPLAINED = '[[fake:usage_missing say=""]]'


@pytest.mark.part("acp")
@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", APIS)
async def test_every_api_says_why_an_answer_is_empty_or_that_it_failed(
    tmp_path: Path, path: str, stream: bool
) -> None:
    async with fake_proxy(tmp_path, fake_dialect="acp") as proxy:

        def body(text: str) -> dict[str, object]:
            if path == "/v1/responses":
                return {"model": "codex-5", "input": text, "stream": stream}
            return {**user(text, stream=stream), "max_tokens": 100}

        honest = await proxy.send("POST", path, body(HONEST))
        assert honest.status == 200, honest.text
        if not (stream and path == "/v1/responses"):  # whose stream begins before the model has answered
            assert honest.headers["x-codex-empty"] == "no-output"
        failed = await proxy.send("POST", path, body(UNEXPLAINED))
        assert "reported no call of its model" in failed.text
        assert failed.status >= 500 or path == "/v1/responses", "whose object has the failure"


@pytest.mark.part("acp")
async def test_the_last_event_of_a_websocket_says_why_an_answer_is_empty(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, fake_dialect="acp") as proxy,
        proxy.session.ws_connect(f"{proxy.url}/v1/responses") as socket,
    ):
        for said, reason in ((HONEST, "no-output"), ("Hello.", None)):
            await socket.send_json({"type": "response.create", "model": "codex-5", "input": said})
            event: dict[str, Any] = {}
            while event.get("type") != "response.completed":
                event = await socket.receive_json(timeout=PATIENCE)
                assert event["type"] == "response.completed" or "x-codex-empty" not in event
            assert event.get("x-codex-empty") == reason
            assert ResponseCompletedEvent.model_validate(event).response.status == "completed"
