"""Bodies that are no JSON, or JSON that nobody means: a 400 or 413 in the error envelope, and never a fault of ours."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzz.requests import CHAT, ITEMS, LEGACY, MESSAGES, ODD, RESPONSE, corrupt_bodies
from tests.waiting import PATIENCE

KEYS: Final = {"message", "type", "param", "code"}
OF_THE_MODEL: Final = {"invalid_structured_output", "tool_choice_not_honoured"}
NOT_HELD: Final = ("schema", "tool call")
"""Words of faults of the model's in Anthropic's API, whose errors have no codes."""
PATHS: Final = (
    *("/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/chat/completions", "/v1/responses", "/v1/responses/compact", "/v1/responses/input_tokens"),
    *("/v1/conversations", "/v1/conversations/conv_none", "/v1/conversations/conv_none/items"),
)
STEADY: Final = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

WORDS: Final = st.sampled_from(
    [
        *(
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b'"',
            b"\\",
            b"\\u",
            b"\\ud800",
            b"\\udc00",
            b"\xff",
            b"\xed\xa0\x80",
        ),
        *(
            b"NaN",
            b"Infinity",
            b"-Infinity",
            b"-",
            b"1e999",
            b"1e-999",
            b"0x1",
            b"01",
            b"1.",
            b"9" * 400,
            b"null",
        ),
        *(
            b"true",
            b'"model"',
            b'"messages"',
            b'"input"',
            b'"role"',
            b'"content"',
            b'"user"',
            b'"text"',
            b'"type"',
        ),
        *(b"\0", b"\n", b"\r", b"\xef\xbb\xbf", b"//", b"/*", b"'", b" "),
    ]
)
"""Pieces of JSON, of what is nearly JSON, and of other encodings."""
NEARLY_JSON: Final = st.lists(WORDS, max_size=30).map(b"".join)

DEEP: Final = [
    b'{"model":"codex-5","input":"x","metadata":' + opened * count + closed * count + b"}"
    for opened, closed in ((b"[", b"]"), (b'{"a":', b"}"))
    for count in (120, 130, 5_000, 200_000)
]
HUGE: Final = [
    b'{"messages":[{"role":"user","content":"x"}],"%b":%b}' % (name, number)
    for name in (b"n", b"max_tokens", b"seed", b"temperature", b"top_p")
    for number in (b"1e400", b"-1e400", b"9" * 5_000, b"1e999999999", b"0." + b"0" * 5_000 + b"1")
]
DOUBLE: Final = [
    b'{"messages":[],"messages":[{"role":"user","content":"x"}]}',
    b'{"messages":[{"role":"user","role":"nobody","content":"x"}]}',
]


@pytest.fixture
def line(port: int) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    yield connection
    connection.close()


def answer_to(line: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, Any]:
    """Status and, of a refusal, the error; that it is well-formed is checked here."""
    line.request("POST", path, body, {"Content-Type": "application/json"})
    response = line.getresponse()
    data = response.read()
    assert response.headers["x-request-id"]
    if response.status < 400:
        return response.status, None
    refusal = json.loads(data)
    error = refusal["error"]
    if path.startswith("/v1/messages"):
        assert (set(refusal), set(error)) == ({"type", "error", "request_id"}, {"type", "message"})
        assert response.status < 500 or any(words in error["message"] for words in NOT_HELD), error
        return response.status, error
    assert set(error) == KEYS
    assert response.status < 500 or error["code"] in OF_THE_MODEL, error
    return response.status, error


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("path", PATHS)
@STEADY
@given(body=st.binary(max_size=200) | NEARLY_JSON | NEARLY_JSON.map(lambda inside: b"{" + inside + b"}"))
def test_bytes_that_are_no_request_are_refused(
    line: http.client.HTTPConnection, path: str, body: bytes
) -> None:
    answer_to(line, path, body)


@pytest.mark.parametrize("body", [*DEEP, *HUGE, *DOUBLE], ids=lambda body: f"{body[:60]!r}")
def test_extremes_are_refused_or_taken_and_never_an_internal_error(
    line: http.client.HTTPConnection, body: bytes
) -> None:
    for path in ("/v1/chat/completions", "/v1/responses"):
        answer_to(line, path, body)


@pytest.mark.parametrize("body", DOUBLE)
def test_a_body_with_a_key_that_is_there_twice_is_refused(
    line: http.client.HTTPConnection, body: bytes
) -> None:
    assert answer_to(line, "/v1/chat/completions", body)[0] == 400


@STEADY
@given(body=corrupt_bodies(CHAT, LEGACY), odd=st.sampled_from(["\ud800", "x"]))
@example(body={"messages": [{"role": "user", "content": "\ud800"}]}, odd="x")
@example(body={"messages": [{"role": "user", "content": "x"}], "metadata": {"\ud800": "x"}}, odd="x")
def test_a_corrupted_chat_request_is_answered_or_refused(
    line: http.client.HTTPConnection, body: dict[str, Any], odd: str
) -> None:
    answer_to(line, "/v1/chat/completions", json.dumps({**body, "user": odd}).encode())


@STEADY
@given(body=corrupt_bodies(MESSAGES), odd=st.sampled_from(["\ud800", "x"]))
@example(body={"messages": [{"role": "user", "content": "\ud800"}]}, odd="x")
@example(
    body={"messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"\ud800": 1}}]}]},
    odd="x",
)
def test_a_corrupted_request_for_a_message_is_answered_or_refused(
    line: http.client.HTTPConnection, body: dict[str, Any], odd: str
) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer_to(line, path, json.dumps({**body, "user": odd}).encode())


@STEADY
@given(body=corrupt_bodies(RESPONSE, ITEMS), odd=st.sampled_from(["\ud800", "x"]))
@example(body={"model": "codex-5", "input": "\udc00"}, odd="x")
@example(body={"model": "codex-5", "input": "x", "conversation": "conv_\ud800"}, odd="x")
@example(body={"model": "codex-5", "input": "x", "previous_response_id": "\ud800"}, odd="x")
def test_a_corrupted_response_request_is_answered_or_refused(
    line: http.client.HTTPConnection, body: dict[str, Any], odd: str
) -> None:
    answer_to(line, "/v1/responses", json.dumps({**body, "user": odd}).encode())


@STEADY
@given(items=st.lists(st.sampled_from([*RESPONSE["input"], *ITEMS["input"], *ODD]), max_size=4))
def test_any_items_of_a_conversation_are_taken_or_refused(
    line: http.client.HTTPConnection, items: list[Any]
) -> None:
    answer_to(line, "/v1/conversations", json.dumps({"items": items}).encode())


PATH_PARTS: Final = st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0 #?\x7f"), max_size=40)


@STEADY
@given(id=PATH_PARTS, tail=st.sampled_from(["", "/cancel", "/input_items"]), query=PATH_PARTS)
@example(id="%ff", tail="", query="after=%ff&limit=%31")
@example(id="%00", tail="", query="starting_after=9999999999999999999999&stream=1")
@example(id="%ed%a0%80", tail="/input_items", query="after=%ed%a0%80")
@example(id="a%2Fb", tail="", query="include[]=x&include[]=x")
def test_any_path_and_query_is_answered_or_refused(
    line: http.client.HTTPConnection, id: str, tail: str, query: str
) -> None:
    for kind in ("responses", "conversations", "models"):
        method = "POST" if tail == "/cancel" else "GET"
        visible = "".join(each for each in f"/v1/{kind}/{id}{tail}?{query}" if 32 < ord(each) < 127)
        line.putrequest(method, visible, skip_accept_encoding=True)
        line.endheaders()
        response = line.getresponse()
        data = response.read()
        if response.status >= 400:
            assert response.status < 500, data
            assert set(json.loads(data)["error"]) == KEYS
