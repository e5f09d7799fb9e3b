"""Whatever bytes come in: a request or a `Fault` of the client's, never another exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.surfaces.chat.parse import ParsedChat, parse
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.errors import error_body
from codex_proxy.surfaces.requests.body import MAX_DEPTH
from codex_proxy.surfaces.requests.options import ParseContext
from tests.surfaces.chat.asking import CATALOG, DEFAULTS, NO_HINTS, STRUCTURED_OUTPUT

SPOKEN = (
    "role content type text function custom name id user assistant tool system tool_calls function_call "
    "tool_call_id image_url url arguments refusal json_schema allowed_tools mode tools auto required schema "
    "parameters ~text [key] {ge}"
)
WORDS = st.sampled_from(SPOKEN.split())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(st.sampled_from(sorted(ChatRequest.model_fields)), VALUES, max_size=6)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "function"])},
        optional={
            "content": VALUES,
            "tool_calls": VALUES,
            "function_call": VALUES,
            "tool_call_id": st.sampled_from(["a", "b"]),
            "name": WORDS,
        },
    ),
    max_size=4,
)


def outcome(body: bytes) -> ParsedChat | Fault:
    """What came of it; any other exception fails the test."""
    try:
        return parse(body, context=ParseContext(STRUCTURED_OUTPUT, CATALOG, NO_HINTS))
    except Fault as raised:
        fault = raised
    json.loads(error_body(fault.failure, "chat"))
    assert fault.failure.kind in (FaultKind.INVALID_REQUEST, FaultKind.MODEL_NOT_FOUND)
    return fault


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_raw_bytes_are_a_fault(body: bytes) -> None:
    assert isinstance(outcome(body), Fault)


@settings(deadline=None)
@given(BODIES)
def test_any_json_is_a_request_or_a_fault(body: dict[str, Any]) -> None:
    outcome(json.dumps(body).encode())


@settings(deadline=None)
@given(MESSAGES, BODIES)
def test_any_messages_are_a_history_or_a_fault(messages: list[Any], body: dict[str, Any]) -> None:
    outcome(json.dumps({**body, "messages": messages}).encode())


GREETING = b'{"messages":[{"role":"user","content":%b}]}'
DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"hello"',
        b"{",
        b'{"messages": NaN}',
        b"\xef\xbb\xbf{}",
        GREETING % b'"\xff"',
        GREETING % b'"\xed\xa0\x80"',
        GREETING % b'"\\ud800"',
        GREETING % b"Infinity",
        GREETING % DEEP,
        b'{"messages":[{"role":"user","content":"hi"}],"x":%b}' % DEEP,
        b'{"messages":[{"role":"user","content":"hi"}],"n":1' + b"0" * 30 + b"}",
        b'{"messages":[{"role":"user","content":"hi"}],"seed":1' + b"0" * 5000 + b"}",
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":1e999}',
        b'{"messages":[{"role":"user","content":"hi"}],"temperature":-Infinity}',
        b'{"messages":[{"role":"user","content":"hi"}],"n":true}',
    ],
)
def test_json_that_is_none_or_goes_too_far_is_a_400(body: bytes) -> None:
    fault = outcome(body)
    assert isinstance(fault, Fault)
    assert fault.failure.kind == FaultKind.INVALID_REQUEST


@pytest.mark.parametrize(("levels", "accepted"), [(MAX_DEPTH - 1, True), (MAX_DEPTH, False)])
def test_nesting_is_accepted_up_to_its_limit(levels: int, accepted: bool) -> None:
    nest = b"[" * levels + b"]" * levels
    body = b'{"messages":[{"role":"user","content":"hi"}],"x":%b}' % nest
    assert isinstance(outcome(body), ParsedChat) is accepted


def test_a_fault_does_not_repeat_what_the_client_said() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": 5, "secret": "hunter2"}], "user": "hunter2"})
    with pytest.raises(Fault) as raised:
        parse(body.encode(), context=ParseContext(DEFAULTS, CATALOG, NO_HINTS))
    assert "hunter2" not in raised.value.failure.message
