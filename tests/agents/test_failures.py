"""Every error text that a real Codex was seen to say means one fault, and no address gets through.

The texts are those of the recordings (proto 0.42, exec and app-server 0.169); the expected kinds come
from what the model provider did to cause them.
"""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types.responses import ResponseError

from codex_proxy.agents.shared.failures import (
    CLEAR_KINDS,
    MAX_MESSAGE,
    MESSAGES,
    VAGUE_KINDS,
    clean_text,
    failure_from_text,
    stop_from_text,
)
from codex_proxy.core.faults import FaultKind as K
from codex_proxy.surfaces.responses.response_object import error_object
from tests.cpu_time import assert_cpu_time_below


def body(message: str, code: str | None) -> str:
    """The provider's error as proto 0.42 quotes it."""
    null_or_code = f'"{code}"' if code else "null"
    error = f'{{"message": "{message}", "type": "mock_error", "param": null, "code": {null_or_code}}}'
    return f'{{"error": {error}}}'


CUT = "stream disconnected before completion: "

PROTO = [
    ("Missing environment variable: `MOCK_KEY`.", K.AGENT_MISCONFIGURED, None),
    (CUT + "Transport error: error decoding response body", K.UPSTREAM_DISCONNECTED, None),
    (CUT + "stream closed before response.completed", K.UPSTREAM_DISCONNECTED, None),
    (CUT + "Your input exceeds the context window of this model", K.CONTEXT_LENGTH_EXCEEDED, None),
    (CUT + "cyber", K.UPSTREAM_DISCONNECTED, None),
    (CUT + "flagged by policy", K.REJECTED_BY_PROVIDER, "invalid_prompt"),
    (CUT + "busy", K.UPSTREAM_DISCONNECTED, None),
    (CUT + "You exceeded your current quota", K.INSUFFICIENT_QUOTA, None),
    (CUT + "idle timeout waiting for SSE", K.UPSTREAM_TIMEOUT, None),
    (
        "unexpected status 400 Bad Request: " + body("bad thing", "invalid_request"),
        K.REJECTED_BY_PROVIDER,
        "invalid_request",
    ),
    (
        "unexpected status 400 Bad Request: " + body("too long", "context_length_exceeded"),
        K.CONTEXT_LENGTH_EXCEEDED,
        "context_length_exceeded",
    ),
    (
        "unexpected status 404 Not Found: " + body("The model `nope` does not exist", "model_not_found"),
        K.MODEL_NOT_FOUND,
        "model_not_found",
    ),
    ("unexpected status 400 Bad Request: <html>bad</html>", K.REJECTED_BY_PROVIDER, None),
    ("exceeded retry limit, last status: 401 Unauthorized", K.UPSTREAM_UNAUTHORIZED, None),
    ("unexpected status 403 Forbidden: " + body("forbidden", None), K.UPSTREAM_UNAUTHORIZED, None),
    ("unexpected status 413 Payload Too Large: " + body("too large", None), K.REQUEST_TOO_LARGE, None),
    ("unexpected status 422 Unprocessable Entity: " + body("no", None), K.REJECTED_BY_PROVIDER, None),
    ("exceeded retry limit, last status: 429 Too Many Requests", K.AGENT_RATE_LIMITED, None),
    ("You've hit your usage limit. Try again later.", K.USAGE_LIMIT_REACHED, None),
    (
        "We're currently experiencing high demand, which may cause temporary errors.",
        K.UPSTREAM_ERROR,
        None,
    ),
    ("exceeded retry limit, last status: 503 Service Unavailable", K.UNAVAILABLE, None),
    ("exceeded retry limit, last status: 500 Internal Server Error", K.UPSTREAM_ERROR, None),
    ("Connection failed: error sending request", K.UPSTREAM_UNREACHABLE, None),
    ("internal error; agent loop died unexpectedly", K.AGENT_CRASHED, None),
    ("Error: CODEX_HOME points to <HOME> which does not exist", K.AGENT_MISCONFIGURED, None),
    ("something that no version has said yet", K.UPSTREAM_ERROR, None),
    ("", K.UPSTREAM_ERROR, None),
]


@pytest.mark.parametrize(("text", "kind", "code"), PROTO)
def test_a_text_without_a_kind_is_understood(text: str, kind: K, code: str | None) -> None:
    failure = failure_from_text(text)
    assert (failure.kind, failure.code) == (kind, code)
    assert failure.message


APP_SERVER = [
    ("Missing environment variable: `MOCK_KEY`.", "other", None, K.AGENT_MISCONFIGURED),
    (
        "Codex ran out of room in the model's context window.",
        "contextWindowExceeded",
        None,
        K.CONTEXT_LENGTH_EXCEEDED,
    ),
    ("flagged by policy", "other", None, K.REJECTED_BY_PROVIDER),
    ("Selected model is at capacity.", "serverOverloaded", None, K.UNAVAILABLE),
    (
        "Quota exceeded. Check your plan and billing details.",
        "usageLimitExceeded",
        None,
        K.INSUFFICIENT_QUOTA,
    ),
    ("You’ve hit your usage limit.", "usageLimitExceeded", None, K.USAGE_LIMIT_REACHED),
    ("words of a later version", "usageLimitExceeded", None, K.USAGE_LIMIT_REACHED),
    ("rate limit exceeded: Rate limit reached.", "rateLimitExceeded", None, K.AGENT_RATE_LIMITED),
    ("The model `nope` does not exist", "modelNotFound", None, K.MODEL_NOT_FOUND),
    (body("bad thing", "invalid_request"), "other", None, K.REJECTED_BY_PROVIDER),
    (body("too long", "context_length_exceeded"), "other", None, K.CONTEXT_LENGTH_EXCEEDED),
    ("<html>bad</html>", "other", None, K.REJECTED_BY_PROVIDER),
    ("unexpected status 401 Unauthorized: no", "httpConnectionFailed", 401, K.UPSTREAM_UNAUTHORIZED),
    ("Missing bearer authentication in header", "httpConnectionFailed", 401, K.AGENT_NOT_AUTHENTICATED),
    ("unexpected status 409 Conflict: no", "httpConnectionFailed", 409, K.REJECTED_BY_PROVIDER),
    ("Connection failed: error sending request", "httpConnectionFailed", None, K.UPSTREAM_UNREACHABLE),
    ("words of a later version", "httpConnectionFailed", None, K.UPSTREAM_UNREACHABLE),
    ("exceeded retry limit, last status: 429", "responseTooManyFailedAttempts", 429, K.AGENT_RATE_LIMITED),
    ("We’re currently experiencing high demand", "internalServerError", None, K.UPSTREAM_ERROR),
    (CUT + "internal", "other", None, K.UPSTREAM_DISCONNECTED),
    (CUT + "idle timeout waiting for SSE", "other", None, K.UPSTREAM_TIMEOUT),
    ("words of a later version", "aKindOfALaterVersion", None, K.UPSTREAM_ERROR),
    ("words of a later version", "aKindOfALaterVersion", 429, K.AGENT_RATE_LIMITED),
]


@pytest.mark.parametrize(("text", "name", "status", "kind"), APP_SERVER)
def test_a_kind_and_a_status_are_understood(text: str, name: str, status: int | None, kind: K) -> None:
    assert failure_from_text(text, kind=name, http_status=status).kind == kind


def test_a_note_about_a_retry_means_what_it_carries() -> None:
    by_details = failure_from_text(
        "Reconnecting... 1/2",
        kind="responseStreamDisconnected",
        http_status=429,
        details="exceeded retry limit, last status: 429 Too Many Requests",
    )
    in_brackets = failure_from_text(
        "Reconnecting... 1/2 (stream disconnected before completion: You exceeded your current quota)"
    )
    of_proto = failure_from_text(
        "stream error: exceeded retry limit, last status: 503 Service Unavailable; retrying 1/2 in 207ms…"
    )
    assert by_details.kind == K.AGENT_RATE_LIMITED
    assert in_brackets.kind == K.INSUFFICIENT_QUOTA
    assert of_proto.kind == K.UNAVAILABLE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unexpected status 400 Bad Request: " + body("bad thing", None), "bad thing"),
        ('{"detail": "Unsupported parameter"}', "Unsupported parameter"),
        (
            "unexpected status 401 Unauthorized: Incorrect API key, url: http://127.0.0.1:1/v1/responses",
            "The model provider refused the agent's credentials: Incorrect API key",
        ),
        (
            "unexpected status 400 Bad Request: <html>bad</html>",
            "The model provider refused the request (HTTP 400).",
        ),
        (
            "exceeded retry limit, last status: 429 Too Many Requests, request id: req_9",
            "The model provider's rate limit is reached (HTTP 429).",
        ),
        ("", "The model provider failed."),
    ],
)
def test_a_person_reads_the_providers_words_and_nothing_around_them(text: str, message: str) -> None:
    assert (
        failure_from_text(text, kind="other").message == message or failure_from_text(text).message == message
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("rate limit exceeded: Rate limit reached. Please try again in 7s.", 7.0),
        ("Please try again in 1.5s.", 1.5),
        ("Please try again in 20ms.", 0.02),
        ("Please try again in 6m0s.", 360.0),
        ("Try again in 1 day 2 hours 3 minutes.", 93780.0),
        ("You’ve hit your usage limit. Try again at 1:20 AM.", None),
        ("Try again in 3 fortnights.", None),
        ('{"error": {"type": "usage_limit_reached", "message": "no", "resets_in_seconds": 90}}', 90.0),
    ],
)
def test_how_long_to_wait_is_taken_from_the_words(text: str, seconds: float | None) -> None:
    assert failure_from_text(text).retry_after == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("Incomplete response returned, reason: max_output_tokens", "length"),
        (CUT + "Incomplete response returned, reason: content_filter", "content_filter"),
        ("Incomplete response returned, reason: a_new_one", None),
        ("stream closed before response.completed", None),
    ],
)
def test_a_cut_answer_is_distinguished_from_a_failure(text: str, stop: str | None) -> None:
    assert stop_from_text(text) == stop


def test_addresses_ids_keys_and_colours_are_cut_out() -> None:
    text = (
        "\x1b[31mERROR\x1b[0m no, url: http://10.0.0.1:80/v1/responses, request id: 8f-1, cf-ray: 9a-FRA "
        "error sending request for url (https://u:p@api.example/v1) wss://x.y/z sk-proj-123 req_77"
    )
    assert clean_text(text) == "ERROR no error sending request [link] [key] [id]"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("letter", ["x", " ", ",", "(", "/", ":", "x-request-id ", "for url ("])
def test_a_huge_text_becomes_a_short_message_soon(letter: str) -> None:
    text = letter * 10_000_000

    def read() -> None:
        assert len(failure_from_text(text).message) <= MAX_MESSAGE + 100

    assert_cpu_time_below(4, read)  # 0.5 s on an idle machine; what is quadratic in the text takes eight


NASTY = st.one_of(
    st.text(max_size=300),
    st.lists(
        st.sampled_from(
            [
                "http://", "HTTPS://a.b/c", "wss://", "url: ", ", url: x", "request id: a", "req_1", "://",
                '{"error": ', '{"message": "https://x"}', "}", "unexpected status 9", "last status: 500",
                "Reconnecting... 1/2", "try again in 999999999999999h", ":", "//", " ", "(", ")", "\n",
                "for url (", "\x1b[", "m", "é",
            ]
        ),
        max_size=12,
    ).map("".join),
)  # fmt: skip


@given(
    text=NASTY,
    kind=st.none() | st.sampled_from([*CLEAR_KINDS, *VAGUE_KINDS, "new"]) | st.text(max_size=5),
    status=st.none() | st.integers(-1, 999),
    details=st.none() | NASTY,
)
@example(text="a:, url: x\n//b", kind=None, status=None, details=None)
@example(text='{"error":' * 5000, kind="other", status=None, details=None)
@example(text='{"error": {"message": 7, "code": [], "type": {}}}', kind=None, status=None, details=None)
@example(text='{"error": {"message": "m", "resets_in_seconds": 1e999}}', kind=None, status=None, details=None)
def test_no_text_raises_and_no_address_gets_through(
    text: str, kind: str | None, status: int | None, details: str | None
) -> None:
    failure = failure_from_text(text, kind=kind, http_status=status, details=details)
    assert "://" not in failure.message
    assert failure.message
    assert failure.retry_after is None or failure.retry_after >= 0
    stop_from_text(text)


def test_a_message_for_every_agent_says_of_which_agent_the_program_is_that_it_names() -> None:
    assert [
        text
        for text in MESSAGES.values()
        if re.search("(?<!Codex: `)codex(?!-proxy|:)|claude|gemini", text, re.IGNORECASE)
    ] == []


OF_THE_PROVIDER = {
    "server_error": K.UPSTREAM_ERROR,
    "vector_store_timeout": K.UPSTREAM_ERROR,
    "rate_limit_exceeded": K.AGENT_RATE_LIMITED,
}


@pytest.mark.parametrize("code", [*get_args(ResponseError.model_fields["code"].annotation), "cyber_policy"])
def test_a_code_of_a_failed_response_blames_the_request_or_the_provider(code: str) -> None:
    failure = failure_from_text(body("no", code))
    assert (failure.kind, failure.code) == (OF_THE_PROVIDER.get(code, K.REJECTED_BY_PROVIDER), code)
    assert error_object(failure)["code"] == ("server_error" if code == "cyber_policy" else code)
