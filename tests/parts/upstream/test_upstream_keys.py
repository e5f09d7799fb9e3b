"""The key of a model server is in nothing that leaves this server, wherever that server repeats it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.parts.upstream.failures import HIDDEN, Secrets, SecretsReader
from tests.http.conftest import log_lines as log_lines
from tests.http.serving import Proxy, user
from tests.model_server import (
    DONE,
    USAGE,
    Case,
    Upstream,
    chunk,
    event,
    proxy_before,
    python_spelling,
    respelled,
    upstream,
)
from tests.parts.upstream.test_openai_chat_pass_through import cut
from tests.response_events import CALL_ITEM, THOUGHT, message, response_with
from tests.response_events import event as of_responses
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER

KEY = "sk-operators_own.0123456789"
HEADER = "team/secret/9876543210"


def with_key(value: Any) -> Iterator[Any]:
    """The same JSON with the key in one place: in each of its texts, and in the name of a further field."""
    if isinstance(value, str):
        yield from (KEY, f"Before {KEY} behind")
    elif isinstance(value, dict):
        yield {**value, KEY: 1}
        for name, inner in value.items():
            yield from ({**value, name: each} for each in with_key(inner))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from ([*value[:place], each, *value[place + 1 :]] for each in with_key(inner))


CALL = {
    "index": 0,
    "id": "call_a",
    "type": "function",
    "function": {"name": "get_weather", "arguments": "{}"},
}
CITED = {"type": "url_citation", "url_citation": {"url": "https://example.com", "title": "A"}}
DELTA = {"role": "assistant", "content": "Hi", "reasoning": "Hm", "refusal": "No", "annotations": [CITED]}
CHUNK = chunk(DELTA, system_fingerprint="fp", service_tier="default", provider="x")
ERROR = {
    "error": {
        "message": "No.",
        "type": "bad_request",
        "code": "a_code",
        "param": "a.param",
        "metadata": {"raw": "x"},
    }
}


def chat_streams() -> Iterator[bytes]:
    """Streams of Chat Completions with the key in one place, in one spelling and the other."""
    for n, each in enumerate(compact_streams()):
        yield respelled(each, python_spelling) if n // 2 % 2 else each


def compact_streams() -> Iterator[bytes]:
    end = event(chunk({}, "stop")) + event({"choices": [], "usage": USAGE}) + DONE
    for each in (*with_key(CHUNK), *with_key(chunk({"tool_calls": [CALL]})), *with_key(ERROR)):
        yield event(each) + end
        yield event(chunk({"content": "Hi"})) + event(each) + end


def chat_objects() -> Iterator[bytes]:
    """Whole answers of Chat Completions."""
    choice = {"index": 0, "message": {**DELTA, "tool_calls": [CALL]}, "finish_reason": "stop"}
    for each in with_key({"id": "x", "model": "m", "system_fingerprint": "fp", "choices": [choice]}):
        yield json.dumps(each).encode()


def responses_streams() -> Iterator[bytes]:
    """Streams of the Responses API."""
    for item in (message("Hi"), THOUGHT, CALL_ITEM):
        for each in with_key(item):
            done = of_responses("response.output_item.done", output_index=0, item=each)
            yield done + of_responses(
                "response.completed", response={"status": "completed", "output": [each]}
            )
    for each in with_key(ERROR["error"]):
        yield response_with(status="failed", error=each)


def refusals() -> Iterator[Case]:
    """Errors with a status, in several shapes."""
    shapes = [ERROR, {"error": "No."}, {"detail": [{"loc": ["body", "a"], "msg": "No."}]}, {"message": "No."}]
    for status in (400, 401, 404, 422, 429, 500, 503):
        for shape in shapes:
            for each in with_key(shape):
                yield Case(status, {}, [json.dumps(each)], [], "stop")


def written(answers: Iterator[bytes]) -> list[bytes]:
    """Each of them as JSON may write the key: as it is, with some of its characters escaped, or all."""
    ways = (KEY, KEY.replace("o", "\\u006f"), "".join(f"\\u{ord(char):04X}" for char in KEY))
    return [answer.replace(KEY.encode(), ways[n % 3].encode()) for n, answer in enumerate(answers)]


SAID: dict[str, tuple[str, list[Any]]] = {
    "streams of Chat Completions": ("openai-chat", written(chat_streams())),
    "objects of Chat Completions": ("openai-chat", written(chat_objects())),
    "streams of Responses": ("openai-responses", written(responses_streams())),
    "errors": ("openai-chat", list(refusals())),
    "errors of Responses": ("openai-responses", list(refusals())),
}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", user() | {"model": "small"}),
    ("/v1/chat/completions", user() | {"model": "small", "tools": [CHAT_WEATHER]}),
    (
        "/v1/responses",
        {
            "model": "small",
            "input": "Hi",
            "tools": [RESPONSES_WEATHER],
            "include": ["reasoning.encrypted_content"],
        },
    ),
    ("/v1/messages", {"model": "small", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
]


def assert_hidden(text: str) -> None:
    """The key is not in the text, however JSON writes it."""
    unescaped = re.sub(r"\\\\u00([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), text)
    assert KEY not in unescaped.replace("\\\\", "").replace("\\/", "/"), text


async def answers_to(proxy: Proxy, server: Upstream, said: Any, *, stream: bool) -> list[str]:
    """What each API makes of this answer."""
    texts = []
    for path, body in REQUESTS:
        server.script = [said]
        answer = await proxy.send("POST", path, body | {"stream": stream})
        texts.append(answer.text + str(answer.headers))
    return texts


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", SAID)
async def test_a_key_that_an_upstream_repeats_anywhere_reaches_nobody(
    name: str, tmp_path: Path, log_lines: list[Any]
) -> None:
    agent, answers = SAID[name]
    async with upstream() as server:
        settings: dict[str, Any] = {
            "upstream_key": KEY,
            "log_level": "debug",
            "agent": agent,
            "stream_metrics": False,
        }
        async with proxy_before(server.url, tmp_path, **settings) as proxy:
            for number, said in enumerate(answers):
                for text in await answers_to(proxy, server, said, stream=bool(number % 2)):
                    assert_hidden(text)
            assert_hidden(str(log_lines))
            await proxy.settled()
    for file in (tmp_path / "state").rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


@pytest.mark.usefixtures("each_spelling")
@pytest.mark.parametrize("tools", [[], [CHAT_WEATHER]], ids=["passed on", "rendered"])
async def test_a_key_that_a_model_says_in_pieces_is_not_recognised(tools: list[Any], tmp_path: Path) -> None:
    """The limit: each piece is a part of the model's text, and only the client joins them."""
    halves = (KEY[:9], KEY[9:])
    said = b"".join(event(chunk({"content": half})) for half in halves) + event(chunk({}, "stop")) + DONE
    async with upstream() as server, proxy_before(server.url, tmp_path, upstream_key=KEY) as proxy:
        server.script = [said]
        more: dict[str, Any] = {"tools": tools} if tools else {}
        answer = await proxy.ask(user() | {"model": "small", "stream": True} | more)
        texts = [each["delta"].get("content") for frame in answer.frames[:-1] for each in frame["choices"]]
        assert "".join(filter(None, texts)) == KEY


async def test_a_list_of_models_does_not_hold_the_key(tmp_path: Path, log_lines: list[Any]) -> None:
    for each in with_key({"id": "a", "owned_by": "b", "meta": {"x": "y"}}):
        async with upstream() as server:
            server.models = [each]
            async with proxy_before(server.url, tmp_path, upstream_key=KEY) as proxy:
                for path in ("/v1/models", "/healthz", "/readyz"):
                    assert_hidden((await proxy.send("GET", path)).text)
                assert_hidden((await proxy.ask(user() | {"model": "b"})).text)
    assert_hidden(str(log_lines))


@given(
    st.lists(st.sampled_from([KEY, KEY[:9], "\\/", "x", "é", "\n", HEADER, HEADER[:5]]), max_size=8),
    st.lists(st.integers(0, 500), max_size=20),
    st.booleans(),
)
def test_a_secret_is_replaced_wherever_the_bytes_are_cut(
    texts: list[str], places: list[int], escaped: bool
) -> None:
    said = "".join(texts)
    body = said.encode()
    if escaped and len(places) % 2:
        body = json.dumps(said).replace("/", "\\/")[1:-1].encode()
    elif escaped:
        body = "".join(f"\\u{ord(char):04x}" for char in said).encode()
    reader = SecretsReader(Secrets([KEY, HEADER]))
    out = b"".join([*map(reader.feed, cut(body, places)), reader.close()])
    hidden = said.replace(KEY, HIDDEN).replace(HEADER, HIDDEN)
    assert (json.loads(b'"%b"' % out) if escaped else out.decode()) == hidden


@pytest.mark.parametrize("text", ["lm-studio", "EMPTY", "none", "sk-1234"])
async def test_a_placeholder_for_a_key_is_a_word_like_any_other(text: str, tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path, upstream_key=text) as proxy:
        server.echoes = True
        answer = await proxy.ask(user(f"What is {text}?") | {"model": "small"})
        assert answer.body["choices"][0]["message"]["content"] == f"What is {text}?"
