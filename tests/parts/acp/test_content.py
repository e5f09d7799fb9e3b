"""What an agent says in another form than text: nothing of it vanishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.events import ItemStarted, ReasoningDelta, TextDelta
from codex_proxy.core.items import Message
from codex_proxy.parts.acp.content import text_of
from tests.http.serving import Proxy, fake_proxy, frames_of, user
from tests.parts.acp.replayer import PlayedTurn, begin_and_open

PIXEL = "iVBORw0KGgo="
LINK = {
    "type": "resource_link",
    "uri": "file:///tmp/a b(1).md",
    "name": "notes [1].md",
    "mimeType": "text/markdown",
}
IMAGE = {"type": "image", "mimeType": "image/png", "data": PIXEL}
CONTENTS: list[tuple[Any, str]] = [
    (LINK, r"[notes \[1\].md](file:///tmp/a%20b%281%29.md)"),
    ({**LINK, "title": "Notes"}, "[Notes](file:///tmp/a%20b%281%29.md)"),
    (
        {"type": "resource_link", "uri": "https://example.org/"},
        "[https://example.org/](https://example.org/)",
    ),
    ({"type": "resource", "resource": {"uri": "file:///a.txt", "text": "Its words."}}, "Its words."),
    (
        {
            "type": "resource",
            "resource": {"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": PIXEL},
        },
        "[The agent sent a file (file:///a.pdf, application/pdf, 9 bytes), which is not part of this answer.]",
    ),
    (
        {"type": "resource", "resource": {"uri": "https://example.org/a.pdf", "blob": PIXEL}},
        "[https://example.org/a.pdf](https://example.org/a.pdf)",
    ),
    (IMAGE, "[The agent sent an image (image/png, 9 bytes), which is not part of this answer.]"),
    (
        {**IMAGE, "uri": "https://example.org/a.png"},
        "![https://example.org/a.png](https://example.org/a.png)",
    ),
    (
        {"type": "audio", "mimeType": "audio/wav", "data": PIXEL},
        "[The agent sent audio (audio/wav, 9 bytes), which is not part of this answer.]",
    ),
    (
        {"type": "video", "x": 1},
        "[The agent sent content of the type video, which is not part of this answer.]",
    ),
    ({"type": "later", "text": "Its words."}, "Its words."),
    (
        {"type": "text", "text": 5},
        "[The agent sent content of the type text, which is not part of this answer.]",
    ),
    ({"type": ["image"]}, "[The agent sent content, which is not part of this answer.]"),
    ({"type": "resource", "resource": [1]}, "[The agent sent a file, which is not part of this answer.]"),
    ([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}], "One.\n\nTwo."),
    ("Bare words.", "Bare words."),
]
NAMES = [json.dumps(content)[:40] for content, _ in CONTENTS]
EACH = pytest.mark.parametrize(("content", "text"), CONTENTS, ids=NAMES)


@EACH
def test_content_of_every_type_has_a_text(content: Any, text: str) -> None:
    assert text_of(content) == text


@pytest.mark.parametrize("nothing", [None, "", [], {"type": "text", "text": ""}])
def test_no_content_has_no_text(nothing: Any) -> None:
    assert text_of(nothing) == ""


def test_the_names_in_a_sentence_stay_short() -> None:
    assert len(text_of({"type": "image", "mimeType": "x\n" * 10_000, "uri": "u" * 10_000})) < 1000


def said(played: PlayedTurn, *contents: Any, kind: str = "agent_message_chunk") -> PlayedTurn:
    session = played.last_request("session/prompt")["params"]["sessionId"]
    for content in contents:
        update = {"sessionUpdate": kind, "content": content}
        params = {"sessionId": session, "update": update}
        played.receive([{"jsonrpc": "2.0", "method": "session/update", "params": params}])
    return played


def test_it_is_a_paragraph_of_the_message_that_it_comes_in() -> None:
    words = [{"type": "text", "text": text} for text in ("See", " this:", "and", " that.")]
    played = said(begin_and_open("opencode-text"), *words[:2], LINK, IMAGE, *words[2:])
    text = "".join(event.text for event in played.log if isinstance(event, TextDelta))
    assert text == f"See this:\n\n{text_of(LINK)}\n\n{text_of(IMAGE)}\n\nand that."
    assert (
        sum(isinstance(event, ItemStarted) and isinstance(event.item, Message) for event in played.log) == 1
    )


def test_it_is_no_error_and_ends_the_text_that_may_be_one() -> None:
    played = begin_and_open("qwen-text")
    resource = {"type": "resource", "resource": {"text": "Error: as in the file"}}
    said(played, {"type": "text", "text": "Info: half"}, resource)
    assert "".join(event.text for event in played.log if isinstance(event, TextDelta)) == (
        "Info: half\n\nError: as in the file"
    )


def test_a_thought_has_it_too() -> None:
    played = said(begin_and_open("opencode-text"), LINK, kind="agent_thought_chunk")
    assert "".join(event.text for event in played.log if isinstance(event, ReasoningDelta)) == text_of(LINK)


# --- through the server ---------------------------------------------------------------------------

PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"]


async def text_by(proxy: Proxy, path: str, prompt: str, *, stream: bool) -> str:
    body = {**user(prompt, stream=stream), "max_tokens": 1000}
    if path == "/v1/responses":
        body = {"model": "codex-5", "input": prompt, "stream": stream}
    answer = await proxy.send("POST", path, body)
    assert answer.status == 200, answer.text
    assert "x-codex-empty" not in answer.headers
    assert "x-codex-empty" not in answer.text
    match path, stream:
        case "/v1/chat/completions", False:
            return str(answer.body["choices"][0]["message"]["content"])
        case "/v1/chat/completions", True:
            choices = [each["choices"][0] for each in frames_of(answer.text)[:-1]]
            return "".join(choice["delta"].get("content") or "" for choice in choices)
        case "/v1/responses", False:
            return str(answer.body["output"][-1]["content"][0]["text"])
        case "/v1/messages", False:
            return str(answer.body["content"][0]["text"])
        case "/api/chat", False:
            return str(answer.body["message"]["content"])
        case "/api/chat", True:
            return "".join(json.loads(line)["message"]["content"] for line in answer.text.splitlines())
    data = [json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    if path == "/v1/responses":
        return "".join(each["delta"] for each in data if each["type"] == "response.output_text.delta")
    return "".join(each["delta"]["text"] for each in data if each["type"] == "content_block_delta")


@pytest.mark.sampled(every=4)
@EACH
async def test_an_answer_of_it_alone_is_no_empty_answer_on_any_api(
    tmp_path: Path, content: Any, text: str
) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": content}
    params = {"sessionId": "<sessionId>", "update": update}
    evil = tmp_path / "evil"
    evil.write_text(json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}) + "\n")
    async with fake_proxy(tmp_path, {"FAKE_CODEX_EVIL": str(evil)}, fake_dialect="acp") as proxy:
        for path in PATHS:
            for stream in (False, True):
                prompt = "[[fake:empty in=10 out=1 misbehave=evil at=1]]"
                assert await text_by(proxy, path, prompt, stream=stream) == text, (path, stream)
