"""What Claude Code was seen to do with faults and odd answers; with ours it never has to do the expensive of it.

Each recorded session has one such answer (`tests/golden/messages/02-errors.json`). `CASES` says of each what we answer
in its place; a session that is not in it fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    ReasoningDelta,
    RefusalDelta,
    Stop,
    TextDelta,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Message, Reasoning, ToolCall
from codex_proxy.surfaces.errors import error_body, forbids_retry, retry_after, status_of
from codex_proxy.surfaces.messages.answer import EVENT_TYPES, PING, STOP_REASONS, prompt_too_long
from tests.surfaces.chat.turns import text_item, tool_call
from tests.surfaces.messages.answering import renderer, stream_events, whole
from tests.surfaces.messages.asking import HELLO, RECORDINGS, ask
from tests.surfaces.messages.asking import message_of as spoken

RECORDED_ERRORS: dict[str, Any] = json.loads((RECORDINGS / "02-errors.json").read_text("utf-8"))
SIX = 6
"""Requests after a 400 that says nothing that it knows: it drops its betas one after another."""
FOR_MINUTES = 10
"""Requests after a 401."""


def requests_after(status: int, headers: dict[str, str], message: str) -> int:
    """How many requests Claude Code sends where every one is answered so; at least, where it goes on."""
    if message.startswith("prompt is too long") or headers.get("x-should-retry") == "false":
        return 1
    if status == 400:
        return SIX
    if status == 401:
        return FOR_MINUTES
    if status == 429 and float(headers.get("retry-after", 0)) > 60:
        return 1
    return 2 if status in (404, 408, 409, 429) or status >= 500 else 1


def failure(kind: FaultKind, **more: Any) -> Failure:
    return Failure(kind=kind, message="It is so.", **more)


def our_answer(failed: Failure) -> tuple[int, dict[str, str], str]:
    headers = {"x-should-retry": "false"} if forbids_retry(failed) else {}
    seconds = retry_after(failed)
    if seconds is not None:
        headers["retry-after"] = str(seconds)
    message = json.loads(error_body(failed, "messages", "req_1"))["error"]["message"]
    return status_of(failed, "messages"), headers, message


# --- what stands in the place of each recorded case -------------------------------------------------


def fault(kind: FaultKind, most: int, **more: Any) -> Callable[[], None]:
    """A fault of this kind is answered so that at most so many requests follow."""

    def check() -> None:
        failed = prompt_too_long(failure(kind, **more), lambda: 250_000, 200_000)
        assert requests_after(*our_answer(failed)) <= most

    return check


def is_never_refused(**fields: Any) -> Callable[[], None]:
    """Such a request is never refused."""

    def check() -> None:
        assert ask(**fields).turn.history

    return check


def turn_events(*events: Event, stop: str = Stop.STOP, **more: Any) -> list[Event]:
    return [*events, TurnEnded(stop, **more)]


DOWN = failure(FaultKind.UPSTREAM_DISCONNECTED)
BROKEN = turn_events(*text_item("Hal")[:-1], stop=Stop.FAILED, failure=DOWN)
CALLED = tool_call("{}")


def ends_with_an_error() -> None:
    """Never just the end of the connection, which some SDKs take for the end of the answer."""
    assert stream_events(BROKEN)[-1]["type"] == "error"


def is_a_status_until_there_is_a_word() -> None:
    answer = renderer(stream=True)
    answer.feed(
        turn_events(ItemStarted(Message("m")), ItemStarted(Reasoning("r")), stop=Stop.FAILED, failure=DOWN)
    )
    assert answer.failure is not None
    assert not answer.visible


def is_never_sent(*words: str) -> Callable[[], None]:
    def check() -> None:
        assert not {*words} & {*STOP_REASONS, *EVENT_TYPES}

    return check


def has_usage() -> None:
    first, *_, last, _ = stream_events(
        turn_events(*text_item("x"), UsageReported(Usage(input=10, cached=4, output=2)))
    )
    assert first["message"]["usage"]["input_tokens"] > 0
    assert last["usage"]["input_tokens"] == 6
    assert last["usage"]["cache_read_input_tokens"] == 4


def has_input_that_is_an_object() -> None:
    cut: list[Event] = [ItemStarted(ToolCall("t", "c", "x")), ArgumentsDelta("t", '{"a": '), ItemEnded("t")]
    assert whole(turn_events(*cut))["content"][0]["input"] == {"input": '{"a": '}


def ends_with_tool_use() -> None:
    assert whole(turn_events(*CALLED))["stop_reason"] == "tool_use"


def is_signed() -> None:
    thought: list[Event] = [ItemStarted(Reasoning("r")), ReasoningDelta("r", "Hm."), ItemEnded("r")]
    assert whole(turn_events(*thought), thinking=True)["content"][0]["signature"]


def is_text() -> None:
    refused: list[Event] = [ItemStarted(Message("m")), RefusalDelta("m", "No."), ItemEnded("m")]
    assert whole(turn_events(*refused))["stop_reason"] == "end_turn"


def is_kept_alive_by_pings() -> None:
    opened = renderer(stream=True)
    assert opened.open().startswith(b"event: message_start\n")
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'


def is_closed() -> None:
    kinds = [
        event["type"]
        for event in stream_events(
            turn_events(ItemStarted(Message("m")), TextDelta("m", "x"), ItemEnded("m"))
        )
    ]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


FOREIGN = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}
CASES: dict[str, Callable[[], None]] = {
    "400": fault(FaultKind.INVALID_REQUEST, SIX),
    "openai_shape": fault(FaultKind.REJECTED_BY_PROVIDER, SIX),
    "400beta": is_never_refused(betas=["of-tomorrow"]),
    "400extra": is_never_refused(
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    ),
    "400role": is_never_refused(messages=[HELLO, {"role": "system", "content": "Be brief."}]),
    "400maxtok": is_never_refused(max_tokens=1_000_000),
    "400thinking": is_never_refused(messages=[HELLO, spoken("assistant", FOREIGN, "So."), HELLO]),
    "400toolong": fault(FaultKind.CONTEXT_LENGTH_EXCEEDED, 1),
    "400toolong2": fault(FaultKind.CONTEXT_LENGTH_EXCEEDED, 1),
    "401": fault(FaultKind.AGENT_NOT_AUTHENTICATED, 1),
    "401no": fault(FaultKind.INVALID_API_KEY, 1),
    "403": fault(FaultKind.NOT_ALLOWED, 1),
    "404model": fault(FaultKind.MODEL_NOT_FOUND, 2),
    "413": fault(FaultKind.REQUEST_TOO_LARGE, 1),
    "429long": fault(FaultKind.USAGE_LIMIT_REACHED, 1, retry_after=3600.0),
    "429ra": fault(FaultKind.RATE_LIMITED, 2, retry_after=2.0),
    "429shouldnot": fault(FaultKind.INSUFFICIENT_QUOTA, 1),
    "500": fault(FaultKind.AGENT_CRASHED, 2),
    "502html": fault(FaultKind.UPSTREAM_ERROR, 2),
    "503": fault(FaultKind.STOPPING, 2),
    "529": fault(FaultKind.UNAVAILABLE, 2),
    "abort": ends_with_an_error,
    "cut_start": is_a_status_until_there_is_a_word,
    "cut_text": ends_with_an_error,
    "eof_text": ends_with_an_error,
    "eof_nostop": is_closed,
    "eof_nomsgstop": is_closed,
    "err_before": is_a_status_until_there_is_a_word,
    "err_after_start": is_a_status_until_there_is_a_word,
    "err_after_text": ends_with_an_error,
    "err_after_text_api": ends_with_an_error,
    "err_toolong": is_a_status_until_there_is_a_word,
    "json_for_stream": is_closed,
    "empty": is_closed,
    "badtooljson": has_input_that_is_an_object,
    "toolwrongtype": has_input_that_is_an_object,
    "tool_endturn": ends_with_tool_use,
    "thinking_nosig": is_signed,
    "refusal": is_text,
    "max_tokens": is_never_refused(max_tokens=1),
    "pause_turn": is_never_sent("pause_turn"),
    "ctx_exceeded": is_never_sent("model_context_window_exceeded"),
    "unknown_stop": is_never_sent("some_new_reason"),
    "unknown_event": is_never_sent("new_event"),
    "nousage": has_usage,
    "usage0": has_usage,
    "comment": is_kept_alive_by_pings,
    "comments330": is_kept_alive_by_pings,
    "late330": is_kept_alive_by_pings,
    "pings330": is_kept_alive_by_pings,
    "silent330": is_kept_alive_by_pings,
}


def test_every_recorded_case_has_an_answer_of_this_server() -> None:
    assert set(CASES) == set(RECORDED_ERRORS)


@pytest.mark.parametrize("name", CASES)
def test_the_answer_of_this_server_to_a_recorded_case(name: str) -> None:
    CASES[name]()


@pytest.mark.parametrize(
    "name", [name for name, case in RECORDED_ERRORS.items() if "status" in (case["answer"] or {})]
)
def test_the_number_of_requests_after_an_answer_is_the_one_that_was_seen(name: str) -> None:
    """So that `requests_after` is no guess; where the server relented, there were fewer."""
    case = RECORDED_ERRORS[name]
    answer = case["answer"]
    message = ((answer["body"] or {}).get("error") or {}).get("message", "")
    known = requests_after(answer["status"], answer["headers"], message)
    relented = {"400beta", "400extra", "400role", "400maxtok", "400thinking", "401", "json_for_stream", "529"}
    assert known == case["posts"] or name in relented


@pytest.mark.parametrize("kind", FaultKind)
def test_no_fault_of_any_kind_has_it_try_for_minutes(kind: FaultKind) -> None:
    failed = prompt_too_long(failure(kind), lambda: 250_000, 200_000)
    assert requests_after(*our_answer(failed)) < FOR_MINUTES
