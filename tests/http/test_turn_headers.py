"""What the headers say about a turn: in every API the same of a whole answer and of a stream."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.serving import Proxy

MESSAGES = [{"role": "user", "content": "Hello."}]
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "temperature": 0.5}),
    "messages": ("/v1/messages", {"messages": MESSAGES, "max_tokens": 100, "temperature": 0.5}),
    "response": ("/v1/responses", {"input": "Hello.", "temperature": 0.5}),
    "unsaved response": ("/v1/responses", {"input": "Hello.", "store": False, "temperature": 0.5}),
    "ollama": ("/api/chat", {"messages": MESSAGES, "options": {"temperature": 0.5}}),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("api", ASKED)
async def test_a_stream_has_the_headers_of_the_whole_answer(proxy: Proxy, api: str) -> None:
    path, body = ASKED[api]
    said = []
    for stream in (False, True):
        answer = await proxy.send("POST", path, {"model": "codex-5", **body, "stream": stream})
        assert answer.status == 200, answer.text
        said.append(
            {name: value for name, value in answer.headers.items() if name.lower().startswith("x-codex-")}
        )
    whole, streamed = said
    assert whole["x-codex-ignored-params"] == "temperature"
    assert whole["x-codex-agent"] == "fake"
    assert streamed == whole
