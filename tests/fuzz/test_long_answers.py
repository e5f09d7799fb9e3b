"""Others are served while an answer of 30 MB ends: on each API, streamed and whole, stored or not."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.cpu_time import seconds_of
from tests.fuzz.conftest import ServerThread
from tests.fuzz.test_long_streams import send
from tests.waiting import PATIENCE

MAX_ENCODINGS: Final = 1.0
"""The most CPU time of a callback, in that of `json.dumps` of a text as long as the answer, taken in the same run."""

DELTAS: Final = {
    "many": "[[fake:count n=60000 size=250 times=2]]",
    "few": "[[fake:count n=15 size=1000000 times=2]]",
}
"""Two messages of 15 MB: an agent's line has 20 MiB at most."""
TEXT: Final = ["." * 30_000_000]

CHAT: Final = "/v1/chat/completions", {"messages": [{"role": "user", "content": "{}"}]}
COMPLETIONS: Final = "/v1/completions", {"prompt": "{}"}
MESSAGES: Final = "/v1/messages", {**CHAT[1], "max_tokens": 100_000_000}
OLLAMA: Final = "/api/chat", CHAT[1]
RESPONSES: Final = "/v1/responses", {"input": "{}"}
WAYS: Final[dict[str, tuple[tuple[str, dict[str, Any]], dict[str, Any]]]] = {
    "chat, streamed": (CHAT, {"stream": True}),
    "chat, streamed with usage": (CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
    "chat, whole": (CHAT, {}),
    "completions, streamed": (COMPLETIONS, {"stream": True}),
    "completions, whole": (COMPLETIONS, {}),
    "messages, streamed": (MESSAGES, {"stream": True}),
    "messages, whole": (MESSAGES, {}),
    "ollama, streamed": (OLLAMA, {}),
    "ollama, whole": (OLLAMA, {"stream": False}),
    "responses, streamed": (RESPONSES, {"stream": True, "store": False}),
    "responses, whole": (RESPONSES, {"store": False}),
    "responses, streamed and stored": (RESPONSES, {"stream": True}),
    "responses, whole and stored": (RESPONSES, {}),
    "responses, streamed in the background": (RESPONSES, {"stream": True, "background": True}),
    "responses, whole in the background": (RESPONSES, {"background": True}),
}

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerThread]:
    made = ServerThread(tmp_path_factory.mktemp("long"))
    with made.holds, made:
        yield made


def ask(thread: ServerThread, path: str, body: dict[str, Any]) -> int:
    """Returns the bytes of the answer. One that is stored is read again."""
    answer = send(thread, "POST", path, body)
    if path == RESPONSES[0] and body.get("store", True) and not body.get("background"):
        (id,) = set(re.findall(rb"resp_[0-9a-f]{32}", answer))
        assert len(send(thread, "GET", f"{path}/{id.decode()}")) > len(TEXT[0])
    if body.get("background") and not body.get("stream"):
        path = f"{path}/{json.loads(answer)['id']}"
        until = time.monotonic() + 2 * PATIENCE
        while len(answer) < len(TEXT[0]):
            assert time.monotonic() < until, answer[:500]
            answer = send(thread, "GET", path)
    return len(answer)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("deltas", DELTAS)
def test_others_are_served_while_an_answer_of_30_mb_ends(thread: ServerThread, way: str, deltas: str) -> None:
    (path, asked), more = WAYS[way]
    body = json.loads(json.dumps({"model": "codex-5", **asked, **more}).replace("{}", DELTAS[deltas]))
    tries: list[float] = []
    while len(tries) < 3 and not any(each < MAX_ENCODINGS for each in tries):
        thread.finish_callback()
        thread.holds.forget()
        assert ask(thread, path, body) > len(TEXT[0])
        thread.finish_callback()
        tries.append(thread.holds.longest / min(seconds_of(lambda: json.dumps(TEXT)) for _ in range(3)))
    assert min(tries) < MAX_ENCODINGS, (tries, thread.holds.who)
