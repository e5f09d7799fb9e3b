"""What a client of an API without questions sees of what its agent was not permitted: a header, or a comment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import Proxy, fake_proxy, user
from tests.waiting import PATIENCE

APIS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"]
HEADER = "x-codex-declined"
AGENT = {"X-Codex-Mode": "agent"}


async def ask(proxy: Proxy, path: str, text: str, *, stream: bool) -> Any:
    body = {**user(text, stream=stream), "max_tokens": 100}
    if path == "/v1/responses":
        body = {"model": "codex-5", "input": text, "stream": stream}
    answer = await proxy.send("POST", path, body, headers=AGENT)
    assert answer.status == 200, answer.text
    return answer


@pytest.mark.parametrize("path", APIS)
async def test_a_whole_answer_says_what_was_declined(tmp_path: Path, path: str) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        command = await ask(proxy, path, "[[fake:approval]]", stream=False)
        assert command.headers[HEADER] == "command"
        patch = await ask(proxy, path, "[[fake:approval_patch]]", stream=False)
        assert patch.headers[HEADER] == "file_change"
        two = await ask(proxy, path, "[[fake:approvals]]", stream=False)
        assert two.headers[HEADER] == "command", "each kind is named once"
        assert HEADER not in (await ask(proxy, path, "Hello.", stream=False)).headers


@pytest.mark.part("acp")
@pytest.mark.parametrize("path", APIS)
async def test_a_stream_says_in_its_head_what_is_known_and_else_at_its_end(tmp_path: Path, path: str) -> None:
    async with fake_proxy(tmp_path, fake_dialect="acp") as proxy:
        for said, kinds in (
            ("[[fake:approval delay=20]]", "command"),
            ("[[fake:activity delay=20]]", "command, file_change"),
            ("Hello.", None),
        ):
            answer = await ask(proxy, path, said, stream=True)
            head, comments = answer.headers.get(HEADER), re.findall(f"\n: {HEADER}: (.*)\n\n", answer.text)
            if path == "/api/chat":
                last = json.loads(answer.text.splitlines()[-1])
                assert (last["done"], last.get(HEADER)) == (True, kinds)
                continue
            assert [head, *comments][-1] == kinds
            assert len(comments) == (1 if kinds != head else 0), answer.text


async def test_a_streamed_response_in_the_background_goes_on_where_something_was_declined(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        body = {"model": "codex-5", "input": "[[fake:approval]]", "stream": True, "background": True}
        answer = await proxy.send("POST", "/v1/responses", body, headers=AGENT)
        assert '"response.completed"' in answer.text


async def test_the_last_event_of_a_websocket_says_what_was_declined(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, fake_dialect="app-server") as proxy,
        proxy.session.ws_connect(f"{proxy.url}/v1/responses", headers=AGENT) as socket,
    ):
        for said, kinds in (("[[fake:approval]]", "command"), ("Hello.", None)):
            await socket.send_json({"type": "response.create", "model": "codex-5", "input": said})
            event: dict[str, Any] = {}
            while event.get("type") != "response.completed":
                event = await socket.receive_json(timeout=PATIENCE)
            assert event.get(HEADER) == kinds
