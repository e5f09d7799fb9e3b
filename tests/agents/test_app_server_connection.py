"""One process: whose is a line, how much is asked at once, and what state the agent is in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.codex_app_server.connection import MAX_IN_FLIGHT, AppServerConnection
from codex_proxy.agents.codex_app_server.wire import Message, answer, count_requests, request


def line(**message: Any) -> bytes:
    return json.dumps(message).encode()


def open_connection() -> AppServerConnection:
    connection = AppServerConnection()
    connection.open()
    return connection


def with_threads(*threads: str) -> AppServerConnection:
    """A connection whose lanes 1, 2, ... have these threads."""
    connection = open_connection()
    for thread in threads:
        channel = connection.open_channel()
        connection.send(channel, request(f"{channel}.1", "thread/start", {}))
        connection.receive([line(id=f"{channel}.1", result={"thread": {"id": thread}})])
    return connection


def request_ids_in(writes: bytes) -> list[str]:
    return [json.loads(each)["id"] for each in writes.splitlines() if b'"method"' in each]


def channels(connection: AppServerConnection, *lines: bytes) -> list[int]:
    return [channel for channel, _ in connection.receive(lines).messages_by_channel]


# --- the start ------------------------------------------------------------------------------------


def test_a_connection_initializes_then_asks_who_is_signed_in() -> None:
    connection = AppServerConnection()
    greeting = json.loads(connection.open())
    assert greeting["method"] == "initialize"
    assert greeting["params"]["clientInfo"]["name"] == "codex_openai_proxy"
    received = connection.receive([line(id=greeting["id"], result={"userAgent": "codex-proxy/0.169.0 (x)"})])
    assert [json.loads(each)["method"] for each in received.writes.splitlines()] == [
        "initialized",
        "account/read",
    ]
    assert connection.user_agent == "codex-proxy/0.169.0 (x)"
    assert not connection.ready


@pytest.mark.parametrize(
    ("account", "needed", "signed_in"),
    [(None, True, False), (None, False, True), ({"type": "apiKey"}, True, True)],
)
def test_nobody_is_signed_in_only_where_somebody_has_to_be(
    account: Any, needed: bool, signed_in: bool
) -> None:
    connection = open_connection()
    connection.receive([line(id="0.2", result={"account": account, "requiresOpenaiAuth": needed})])
    assert connection.ready
    assert connection.signed_in is signed_in


def test_a_sign_in_while_it_runs_is_asked_for_again() -> None:
    connection = open_connection()
    received = connection.receive([line(method="account/updated", params={"authMode": "apikey"})])
    assert json.loads(received.writes)["method"] == "account/read"


def test_a_refused_initialize_request_is_a_fault_with_the_agents_words() -> None:
    connection = open_connection()
    connection.receive([line(id="0.1", error={"code": -32600, "message": "too old"})])
    assert connection.fault == "the agent refused to start: too old"
    assert not connection.ready


def test_an_initialize_request_that_is_answered_with_nonsense_is_a_fault() -> None:
    connection = open_connection()
    connection.receive([line(id="0.1", result=[1, 2])])
    assert connection.fault is not None


def test_an_agent_that_does_not_know_who_is_signed_in_is_ready() -> None:
    for nonsense in (
        {"error": {"code": -1, "message": "no"}},
        {"result": {"account": 1, "requiresOpenaiAuth": "?"}},
    ):
        connection = open_connection()
        connection.receive([line(id="0.2", **nonsense)])
        assert connection.ready
        assert connection.signed_in


# --- whose is a line ------------------------------------------------------------------------------


def test_answers_go_to_the_channel_in_their_id_and_notifications_to_the_channel_of_their_thread() -> None:
    connection = with_threads("T1", "T2")
    assert channels(connection, line(id="2.2", result={})) == [2]
    assert channels(connection, line(method="item/started", params={"threadId": "T1"})) == [1]
    assert channels(connection, line(method="item/started", params={"threadId": "T3"})) == []
    assert channels(connection, line(method="item/tool/call", id=7, params={"threadId": "T2"})) == [2]


def test_a_channel_gets_its_messages_in_order() -> None:
    connection = with_threads("T1", "T2")
    lines = [line(method=f"m{n}", params={"threadId": f"T{1 + n % 2}"}) for n in range(6)]
    received = dict(connection.receive(lines).messages_by_channel)
    assert [message.method for message in received[1]] == ["m0", "m2", "m4"]
    assert [message.method for message in received[2]] == ["m1", "m3", "m5"]


LINES = st.sampled_from(
    [
        *(
            line(method=method, params={"threadId": thread})
            for method in "ab"
            for thread in ("T1", "T2", "T3")
        ),
        *(line(id=f"{channel}.1", result={"thread": {"id": "T3"}}) for channel in (1, 2)),
        line(method="a", params={"threadId": "T1", "delta": 5}),
        line(method="a"),
        line(id=7, method="a", params={"threadId": "T1"}),
        line(id="1.2", params={"threadId": "T1"}),
        b"nonsense",
    ]
)


@given(st.lists(LINES))
def test_it_does_not_matter_how_many_lines_are_received_at_once(lines: list[bytes]) -> None:
    at_once, one_by_one = with_threads("T1", "T2"), with_threads("T1", "T2")
    singly: dict[int, list[Message]] = {}
    for each in lines:
        for channel, messages in one_by_one.receive([each]).messages_by_channel:
            singly.setdefault(channel, []).extend(messages)
    assert dict(at_once.receive(lines).messages_by_channel) == singly


@pytest.mark.parametrize("id", [3, "abc"])
@pytest.mark.parametrize("params", [{}, {"threadId": "T9"}, {"threadId": 5}, None, [1]])
def test_a_request_without_a_channel_is_refused_at_once_under_its_own_id(id: int | str, params: Any) -> None:
    received = with_threads("T1").receive([line(id=id, method="item/tool/call", params=params)])
    assert json.loads(received.writes) == {"id": id, "error": {"code": -32601, "message": "unsupported"}}
    assert received.messages_by_channel == []


def test_a_line_of_another_shape_still_reaches_the_channel_of_its_thread() -> None:
    connection = with_threads("T1")
    odd = line(method="turn/completed", params={"threadId": "T1", "delta": {"new": "shape"}})
    assert channels(connection, odd) == [1]


def test_an_answer_that_cannot_be_read_reaches_its_channel_as_an_error() -> None:
    [(channel, [message])] = (
        with_threads("T1").receive([line(id="1.2", error="not an object")]).messages_by_channel
    )
    assert channel == 1
    assert message.error is not None


def test_what_comes_for_a_closed_channel_is_dropped_and_its_requests_are_refused() -> None:
    connection = with_threads("T1", "T2")
    connection.close_channel(1)
    assert channels(connection, line(id="1.2", result={}), line(method="m", params={"threadId": "T1"})) == []
    assert connection.receive([line(id=4, method="item/tool/call", params={"threadId": "T1"})]).writes
    assert channels(connection, line(method="m", params={"threadId": "T2"})) == [2]
    assert len(connection._unanswered) == 1


def test_a_late_answer_to_thread_start_does_not_bring_a_closed_channel_back() -> None:
    connection = open_connection()
    channel = connection.open_channel()
    connection.send(channel, request("1.1", "thread/start", {}))
    connection.close_channel(channel)
    late = [line(id="1.1", result={"thread": {"id": "T1"}}), line(method="m", params={"threadId": "T1"})]
    assert connection.receive(late).messages_by_channel == []


def test_channel_numbers_are_never_used_twice() -> None:
    connection = open_connection()
    first = connection.open_channel()
    connection.close_channel(first)
    assert connection.open_channel() != first


# --- how much at once -----------------------------------------------------------------------------


def busy(count: int) -> AppServerConnection:
    """A connection with one lane and `count` requests in flight on it."""
    connection = open_connection()
    channel = connection.open_channel()
    for n in range(1, count + 1):
        assert connection.send(channel, request(f"{channel}.{n}", "m", {}))
    return connection


def test_up_to_the_cap_requests_go_out_at_once_and_then_they_wait() -> None:
    connection = busy(MAX_IN_FLIGHT)
    assert connection.send(connection.open_channel(), request("2.1", "thread/start", {})) == b""


def test_waiting_requests_go_out_in_order_as_answers_come() -> None:
    connection = busy(MAX_IN_FLIGHT)
    for channel in (connection.open_channel(), connection.open_channel()):
        connection.send(channel, request(f"{channel}.1", "thread/start", {}))
    assert request_ids_in(connection.receive([line(id="1.1", result={})]).writes) == ["2.1"]
    assert request_ids_in(
        connection.receive([line(id="1.2", error={"code": 1, "message": "no"})]).writes
    ) == ["3.1"]
    assert connection.receive([line(id="1.3", result={})]).writes == b""


def test_a_request_does_not_overtake_those_that_wait() -> None:
    connection = busy(MAX_IN_FLIGHT - 1)
    two, three = connection.open_channel(), connection.open_channel()
    pair = request(f"{two}.1", "a", {}) + request(f"{two}.2", "b", {})
    assert connection.send(two, pair) == b""
    assert connection.send(three, request(f"{three}.1", "c", {})) == b""
    assert request_ids_in(connection.receive([line(id="1.1", result={})]).writes) == ["2.1", "2.2"]
    assert request_ids_in(connection.receive([line(id="1.2", result={})]).writes) == ["3.1"]


def test_answers_of_this_server_never_wait_and_are_not_counted() -> None:
    connection = busy(MAX_IN_FLIGHT)
    for id in (0, "abc", "1.1"):
        reply = answer(id, {"success": True})
        assert connection.send(1, reply) == reply
    assert request_ids_in(connection.receive([line(id="1.1", result={})]).writes) == []
    assert connection.send(1, request("1.65", "m", {}))


def test_closing_a_channel_frees_its_share_and_drops_its_held_writes() -> None:
    connection = busy(MAX_IN_FLIGHT)
    two, three = connection.open_channel(), connection.open_channel()
    connection.send(two, request(f"{two}.1", "a", {}))
    connection.send(three, request(f"{three}.1", "b", {}))
    assert connection.close_channel(two) == b""
    assert request_ids_in(connection.close_channel(1)) == ["3.1"]


def test_what_a_closed_channel_still_sends_takes_no_share() -> None:
    connection = busy(1)
    connection.close_channel(1)
    for n in range(2 * MAX_IN_FLIGHT):
        assert connection.send(1, request(f"1.{n}", "thread/unsubscribe", {}))
    assert connection.send(connection.open_channel(), request("2.1", "thread/start", {}))


def test_an_answer_that_comes_twice_frees_one_share() -> None:
    connection = busy(MAX_IN_FLIGHT)
    channel = connection.open_channel()
    connection.send(channel, request(f"{channel}.1", "a", {}) + request(f"{channel}.2", "b", {}))
    twice = line(id="2.9", result={})
    assert connection.receive([twice, twice]).writes == b"", "lane 2 has nothing in flight"


def test_requests_are_counted_by_line_whatever_is_in_them() -> None:
    tricky = request("1.1", "m", {"text": '\n{"id":"1.2","method":"n"}\n'})
    assert count_requests(tricky + answer("x", '{"id":"1.3","method":') + request("1.2", "n", {})) == 2
    assert count_requests(b"") == 0


# --- nonsense -------------------------------------------------------------------------------------


GARBAGE = [
    *(
        b"",
        b"null",
        b"[]",
        b"{}",
        b"not json",
        b"\xff",
        b'{"id":7,"result":{}}',
        b'{"id":null}',
        b'{"id":"x.1"}',
    ),
    *(b'{"id":"' + b"9" * 5000 + b'.1"}', b'{"method":"m","params":' + b"[" * 100_000),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda each: repr(each[:20]))
def test_a_line_that_is_no_message_is_dropped_and_nothing_is_written(garbage: bytes) -> None:
    connection = with_threads("T1")
    received = connection.receive([garbage])
    assert (received.writes, received.messages_by_channel) == (b"", [])


def test_json_that_is_nested_too_deep_is_garbage() -> None:
    connection = with_threads("T1")
    deep = b'{"method":"m","params":{"threadId":"T1","x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}"
    assert connection.receive([deep]).messages_by_channel == []


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "T1", "1.1", "0.1", "0.2", "m"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "method", "params", "result", "error", "threadId", "thread"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.lists(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()), max_size=8))
def test_no_bytes_whatever_make_it_raise(lines: list[bytes]) -> None:
    connection = with_threads("T1")
    received = connection.receive(lines)
    assert {channel for channel, _ in received.messages_by_channel} <= {1}
