"""The places of an answer at which faults come: each is an event that its client has seen, and no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from tests.http.serving import Proxy

PLACES: Final = ("at once", "behind a keep-alive", "behind a word", "behind a word and a keep-alive")
APIS: Final = ("chat", "responses", "messages")
SOON: Final[dict[str, Any]] = {"heartbeat_interval": 0.02}
"""Settings with which streams get a keep-alive after 20 ms of silence."""
WORD: Final = "Hi"


def kept_alive(text: str) -> bool:
    """Whether a stream has got a keep-alive, a comment or the event of the Messages API."""
    return '"type":"ping"' in text or text.startswith(":") or "\n:" in text


async def answer_at(
    proxy: Proxy, path: str, body: dict[str, Any], place: str, go: Callable[[], None]
) -> tuple[int, str]:
    """The status and the whole text of an answer. `go` is called, and makes the fault come, when the client has got
    what comes before this place; for a place that is none of these, never. An answer that is not streamed shows
    nothing before its end, so its faults come at once.
    """
    text = ""

    def is_there() -> bool:
        last = text.rpartition(WORD)[2] if "word" in place else text
        return ("word" not in place or WORD in text) and ("alive" not in place or kept_alive(last))

    if place == "at once" or (not body["stream"] and place in PLACES):
        go()
    async with proxy.session.post(proxy.url + path, json=body) as reply:
        while piece := await reply.content.readany():
            text += piece.decode()
            if place in PLACES and is_there():
                go()
        return reply.status, text


def assert_failed(api: str, status: int, text: str) -> None:
    """The answer is an error of its API, and nothing in it says that it ended well."""
    if status != 200:
        assert status >= 400
        error = json.loads(text)["error"]
        assert error["message"]
        assert error["type"]
        return
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    kinds = [each.get("type") for each in events]
    assert events, f"an empty success: {text!r}"
    if api == "chat":
        assert "error" in events[-1], text
        assert text.endswith("data: [DONE]\n\n")
        assert not any(
            choice.get("finish_reason") for each in events for choice in each.get("choices", ())
        ), text
    elif api == "responses":
        assert kinds[-1] == "response.failed", text
        assert events[-1]["response"]["error"]["message"]
        assert "response.completed" not in kinds
    else:
        assert kinds[-1] == "error", text
        assert "message_stop" not in kinds
        assert "message_delta" not in kinds
