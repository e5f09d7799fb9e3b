"""What a client sees of an answer without text, refusal and call: an error, or a header that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.http.serving import fake_proxy, user

APIS = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
HONEST = "[[fake:empty in=10 out=1]]"
UNEXPLAINED = '[[fake:usage_missing say=""]]'


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
