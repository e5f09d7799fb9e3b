"""A turn that the agent itself ends early keeps its text on every API, and the client learns what has happened."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.claude import claude_proxy
from tests.http.serving import Answer, Proxy, fake_proxy, frames_of, user
from tests.model_server import chunk, event, proxy_before, stream, upstream
from tests.waiting import PATIENCE

TEXT = "Half an"
HEADER = "x-codex-empty"
ENDS = {
    "chat": "stop",
    "completions": "stop",
    "responses": "cancelled",
    "messages": "end_turn",
    "ollama": "stop",
    "generate": "stop",
}
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
    "generate": "/api/generate",
}
AGENTS = ["acp", "proto", "app-server", "claude-code", "openai-chat", "openai-responses"]
ABORTED = stream({"content": "Half"}, {"content": " an"}, finish="abort")
SILENT = (
    b"".join(map(event, [chunk({"role": "assistant", "content": ""}), chunk({}, "abort")]))
    + b"data: [DONE]\n\n"
)


def response_events(*texts: str) -> bytes:
    message = {"type": "message", "id": "m", "role": "assistant", "status": "incomplete", "content": []}
    events: list[dict[str, Any]] = []
    if texts:
        events.append({"type": "response.output_item.added", "output_index": 0, "item": message})
    events += [
        {
            "type": "response.output_text.delta",
            "item_id": "m",
            "output_index": 0,
            "content_index": 0,
            "delta": each,
        }
        for each in texts
    ]
    events.append({"type": "response.cancelled", "response": {"object": "response", "status": "cancelled"}})
    return b"".join(map(event, events))


ANSWERS = {
    "openai-chat": {TEXT: ABORTED, "": SILENT},
    "openai-responses": {TEXT: response_events("Half", " an"), "": response_events()},
}


@asynccontextmanager
async def serving(agent: str, folder: Path, text: str) -> AsyncIterator[Proxy]:
    """A server whose agent ends each turn early, behind `text`."""
    async with AsyncExitStack() as stack:
        if agent in ANSWERS:
            served = await stack.enter_async_context(upstream())
            served.script = [ANSWERS[agent][text]] * 20
            made = proxy_before(served.url, folder, agent=agent)
        elif agent == "claude-code":
            made = claude_proxy(folder)
        else:
            made = fake_proxy(folder, fake_dialect=agent)
        yield await stack.enter_async_context(made)


def body(api: str, text: str, *, stream: bool) -> dict[str, Any]:
    asked = f"[[fake:text say='{text}' finish=interrupted]]"
    model = {"model": "codex-5", "stream": stream}
    if api == "responses":
        return {**model, "input": asked}
    if api in ("completions", "generate"):
        return {**model, "prompt": asked}
    return {**user(asked, **model), **({"max_tokens": 100} if api == "messages" else {})}


def end_of(answer: Answer, api: str, *, stream: bool) -> tuple[str, str]:
    """Returns the answer's text, and the word of its end."""
    if not stream:
        whole = answer.body
        match api:
            case "chat":
                return whole["choices"][0]["message"]["content"], whole["choices"][0]["finish_reason"]
            case "completions":
                return whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]
            case "responses":
                parts = [part["text"] for item in whole["output"] for part in item["content"]]
                return "".join(parts), whole["status"]
            case "messages":
                return "".join(each["text"] for each in whole["content"]), whole["stop_reason"]
            case "ollama":
                return whole["message"]["content"], whole["done_reason"]
        return whole["response"], whole["done_reason"]
    if api in ("ollama", "generate"):
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert lines[-1]["done"]
        return "".join(
            line["message"]["content"] if api == "ollama" else line["response"] for line in lines
        ), lines[-1]["done_reason"]
    if api in ("chat", "completions"):
        choices = [each["choices"][0] for each in frames_of(answer.text)[:-1] if each["choices"]]
        texts = [each.get("text") or each.get("delta", {}).get("content") or "" for each in choices]
        return "".join(texts), choices[-1]["finish_reason"]
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    events = [json.loads(each) for each in data]
    assert all(each["type"] != "error" for each in events), events
    if api == "messages":
        texts = [each["delta"]["text"] for each in events if each["type"] == "content_block_delta"]
        (end,) = [each["delta"]["stop_reason"] for each in events if each["type"] == "message_delta"]
        return "".join(texts), end
    texts = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
    return "".join(texts), events[-1]["response"]["status"]


def reason_of(answer: Answer) -> str | None:
    """Returns what the header, a comment, or the last line of a stream of JSON lines says."""
    if HEADER in answer.headers:
        return answer.headers[HEADER]
    lines = answer.text.splitlines()
    comments = [line.removeprefix(f": {HEADER}: ") for line in lines if line.startswith(f": {HEADER}: ")]
    if comments or not answer.headers["Content-Type"].startswith("application/x-ndjson"):
        return comments[0] if comments else None
    said: str | None = json.loads(lines[-1]).get(HEADER)
    return said


async def answers_of(agent: str, folder: Path, text: str) -> AsyncIterator[tuple[str, bool, Answer]]:
    """Yields API, whether it is streamed, and the answer of each API that does not go on to an upstream's own."""
    async with serving(agent, folder, text) as proxy:
        for api, path in PATHS.items():
            if api == "completions" and agent in ANSWERS:
                continue
            for streamed in (False, True):
                yield api, streamed, await proxy.send("POST", path, body(api, text, stream=streamed))


@pytest.mark.parametrize("agent", AGENTS)
async def test_the_text_is_kept_and_the_end_is_told_on_every_api(agent: str, tmp_path: Path) -> None:
    found, expected = {}, {}
    async for api, streamed, answer in answers_of(agent, tmp_path, TEXT):
        assert answer.status == 200, (api, streamed, answer.text)
        found[api, streamed] = *end_of(answer, api, stream=streamed), reason_of(answer)
        # A request that an upstream serves itself gets its own word.
        is_forwarded = (agent, api) == ("openai-chat", "chat")
        expected[api, streamed] = TEXT, "abort" if is_forwarded else ENDS[api], "cancelled"
    assert found == expected


@pytest.mark.parametrize("agent", AGENTS)
async def test_without_a_text_it_is_an_empty_answer_as_any_other(agent: str, tmp_path: Path) -> None:
    async for api, streamed, answer in answers_of(agent, tmp_path, ""):
        if answer.status != 200 or reason_of(answer) is None:
            assert "reported no call of its model" in answer.text, (api, streamed)
        else:
            assert reason_of(answer) == "cancelled", (api, streamed)


@pytest.mark.parametrize("said", [TEXT, ""])
async def test_the_last_event_of_a_websocket_tells_it(said: str, tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, fake_dialect="app-server") as proxy,
        proxy.session.ws_connect(f"{proxy.url}/v1/responses") as socket,
    ):
        await socket.send_json({"type": "response.create", **body("responses", said, stream=True)})
        last: dict[str, Any] = {}
        while last.get("type") not in (
            "response.incomplete",
            "response.completed",
            "response.failed",
            "error",
        ):
            last = await socket.receive_json(timeout=PATIENCE)
        assert (last["response"]["status"], last[HEADER]) == ("cancelled", "cancelled")


@pytest.mark.part("acp")
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_of_several_choices_tells_it_too(tmp_path: Path, stream: bool) -> None:
    async with fake_proxy(tmp_path, fake_dialect="acp") as proxy:
        answer = await proxy.ask(body("chat", TEXT, stream=stream) | {"n": 2})
        assert answer.status == 200
        assert reason_of(answer) == "cancelled"
        empty = await proxy.ask(user("[[fake:empty in=10 out=1]]", stream=stream, n=2))
        assert reason_of(empty) == "no-output"
