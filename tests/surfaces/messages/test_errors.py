"""Faults as Anthropic's clients read them: status and type, the words of a long prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.messages.answer import (
    error_body,
    error_event,
    prompt_too_long,
    status_of,
    type_of,
)

TYPES = {
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
}


def failure(kind: FaultKind, **more: Any) -> Failure:
    return Failure(kind=kind, message="it went wrong", **more)


def body(fault: Failure) -> Any:
    return json.loads(error_body(fault, "req_1"))


@pytest.mark.parametrize("kind", FaultKind)
def test_every_fault_has_a_status_and_one_of_anthropics_types(kind: FaultKind) -> None:
    told = body(failure(kind))
    assert told == {
        "type": "error",
        "error": {"type": type_of(status_of(failure(kind))), "message": "it went wrong"},
        "request_id": "req_1",
    }
    assert told["error"]["type"] in TYPES
    assert 400 <= status_of(failure(kind)) < 600


@pytest.mark.parametrize(
    ("kind", "status", "type"),
    [
        (FaultKind.INVALID_REQUEST, 400, "invalid_request_error"),
        (FaultKind.UNSUPPORTED_MEDIA_TYPE, 400, "invalid_request_error"),
        (FaultKind.AGENT_NOT_AUTHENTICATED, 401, "authentication_error"),
        (FaultKind.INSUFFICIENT_QUOTA, 402, "billing_error"),
        (FaultKind.NOT_ALLOWED, 403, "permission_error"),
        (FaultKind.MODEL_NOT_FOUND, 404, "not_found_error"),
        (FaultKind.METHOD_NOT_ALLOWED, 405, "invalid_request_error"),
        (FaultKind.REQUEST_TOO_LARGE, 413, "request_too_large"),
        (FaultKind.USAGE_LIMIT_REACHED, 429, "rate_limit_error"),
        (FaultKind.UPSTREAM_ERROR, 500, "api_error"),
        (FaultKind.TIMED_OUT, 504, "timeout_error"),
        (FaultKind.UNAVAILABLE, 529, "overloaded_error"),
    ],
)
def test_a_fault_has_the_status_and_type_that_claude_code_understands(
    kind: FaultKind, status: int, type: str
) -> None:
    assert (status_of(failure(kind)), body(failure(kind))["error"]["type"]) == (status, type)


def test_the_message_begins_with_the_field_at_fault_unless_it_names_it() -> None:
    fault = failure(FaultKind.INVALID_REQUEST, param="messages[0].content")
    assert body(fault)["error"]["message"] == "messages[0].content: it went wrong"
    named = Failure(kind=FaultKind.INVALID_REQUEST, message="'model' is missing", param="model")
    assert body(named)["error"]["message"] == "'model' is missing"


def test_an_error_event_is_named_and_has_the_same_body() -> None:
    fault = failure(FaultKind.AGENT_CRASHED)
    assert error_event(fault, "req_1") == b"event: error\ndata: " + error_body(fault, "req_1") + b"\n\n"


def test_a_message_with_a_lone_surrogate_is_still_a_body() -> None:
    fault = Failure(kind=FaultKind.INTERNAL, message="half \ud83d of it")
    assert body(fault)["error"]["message"] == "half \ufffd of it"


@pytest.mark.parametrize(
    ("tokens", "window", "words"),
    [
        (300_000, 272_000, "prompt is too long: 300000 tokens > 272000 maximum"),
        (100, 272_000, "prompt is too long: 272001 tokens > 272000 maximum"),
        (500, None, "prompt is too long: 500 tokens > 499 maximum"),
        (0, None, "prompt is too long: 2 tokens > 1 maximum"),
    ],
)
def test_a_context_that_is_too_long_is_reported_with_both_numbers(
    tokens: int, window: int | None, words: str
) -> None:
    told = prompt_too_long(failure(FaultKind.CONTEXT_LENGTH_EXCEEDED), lambda: tokens, window)
    assert (status_of(told), told.message) == (400, words)


ITS_MOST = "This model's maximum context length is 32768 tokens"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            f"'max_tokens' is too large: 32000. {ITS_MOST} and your request has 20000 input tokens.",
            "input length and `max_tokens` exceed context limit: 20000 + 32000 > 32768, decrease",
        ),
        (
            f"{ITS_MOST}. However, you requested 41000 tokens (10000 in the messages, 31000 in the completion).",
            "input length and `max_tokens` exceed context limit: 10000 + 31000 > 32768, decrease",
        ),
        (
            f"{ITS_MOST}. However, you requested 41000 tokens (40000 in the messages, 1000 in the completion).",
            "prompt is too long: 40000 tokens > 32768 maximum",
        ),
        (
            f"{ITS_MOST}. However, you requested 44000 tokens (9000 in the messages, 3000 in the functions, and 32000 "
            "in the completion).",
            "input length and `max_tokens` exceed context limit: 12000 + 32000 > 32768, decrease",
        ),
        (
            "This endpoint's maximum context length is 131072 tokens. However, you requested about 138956 tokens (7384 "
            "of text input, 500 of tool input, 131072 in the output). Please reduce the length of either one.",
            "input length and `max_tokens` exceed context limit: 7884 + 131072 > 131072, decrease",
        ),
        (
            "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total "
            "of 41000 tokens: 9000 tokens from the input messages and 32000 tokens for the completion. Please",
            "input length and `max_tokens` exceed context limit: 9000 + 32000 > 32768, decrease",
        ),
        (
            f"{ITS_MOST}. However, you requested 61000 tokens.",
            "prompt is too long: 50000 tokens > 32768 maximum",
        ),
        (
            f"'max_tokens' is too large: 32000. {ITS_MOST} and your request has 28768 input tokens.",
            "input length and `max_tokens` exceed context limit: 28768 + 32000 > 32768, decrease",
        ),
        (
            f"'max_tokens' is too large: 32000. {ITS_MOST} and your request has 28769 input tokens.",
            "prompt is too long: 32769 tokens > 32768 maximum",
        ),
        (
            f"{ITS_MOST}. However, your messages resulted in 40000 tokens.",
            "prompt is too long: 40000 tokens > 32768 maximum",
        ),
    ],
)
def test_the_numbers_that_a_model_server_tells_are_passed_on(said: str, words: str) -> None:
    fault = Failure(FaultKind.CONTEXT_LENGTH_EXCEEDED, said)
    assert prompt_too_long(fault, lambda: 50_000, None).message.startswith(words)


def test_other_failures_keep_their_message() -> None:
    fault = failure(FaultKind.AGENT_CRASHED)
    assert prompt_too_long(fault, lambda: 5, 4) is fault
