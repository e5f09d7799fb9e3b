"""One table maps every fault to the wire, in both of OpenAI's APIs."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.answers.fault_table import TABLE
from codex_proxy.surfaces.errors import (
    OpenAISurface,
    error_body,
    error_frames,
    forbids_retry,
    retry_after,
    row_of,
    status_of,
)

SURFACES: tuple[OpenAISurface, ...] = get_args(OpenAISurface)


def failure(kind: FaultKind, **more: Any) -> Failure:
    return Failure(kind=kind, message="it went wrong", **more)


def error(fault: Failure, surface: OpenAISurface = "chat") -> Any:
    return json.loads(error_body(fault, surface))["error"]


@pytest.mark.parametrize("kind", FaultKind)
def test_every_kind_of_fault_has_a_row(kind: FaultKind) -> None:
    assert kind in TABLE


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("kind", FaultKind)
def test_every_error_has_all_four_keys_and_an_error_status(kind: FaultKind, surface: OpenAISurface) -> None:
    assert set(error(failure(kind), surface)) == {"message", "type", "param", "code"}
    assert 400 <= status_of(failure(kind), surface) < 600


@pytest.mark.parametrize(
    ("kind", "status", "type", "code"),
    [
        (FaultKind.INVALID_REQUEST, 400, "invalid_request_error", None),
        (FaultKind.INVALID_API_KEY, 401, "authentication_error", "invalid_api_key"),
        (FaultKind.AGENT_NOT_AUTHENTICATED, 401, "authentication_error", "agent_not_authenticated"),
        (FaultKind.UPSTREAM_UNAUTHORIZED, 502, "server_error", "upstream_unauthorized"),
        (FaultKind.NOT_ALLOWED, 403, "permission_error", "not_allowed"),
        (FaultKind.MODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found"),
        (FaultKind.NOT_FOUND, 404, "not_found_error", "not_found"),
        (FaultKind.METHOD_NOT_ALLOWED, 405, "invalid_request_error", "method_not_allowed"),
        (FaultKind.REQUEST_TOO_LARGE, 413, "invalid_request_error", "request_too_large"),
        (FaultKind.UNSUPPORTED_MEDIA_TYPE, 415, "invalid_request_error", "unsupported_media_type"),
        (FaultKind.RATE_LIMITED, 429, "rate_limit_error", "rate_limit_exceeded"),
        (FaultKind.CONCURRENCY_EXCEEDED, 429, "rate_limit_error", "concurrency_exceeded"),
        (FaultKind.USAGE_LIMIT_REACHED, 429, "rate_limit_error", "usage_limit_reached"),
        (FaultKind.INSUFFICIENT_QUOTA, 429, "rate_limit_error", "insufficient_quota"),
        (FaultKind.SPAWN_FAILED, 500, "server_error", "spawn_error"),
        (FaultKind.AGENT_CRASHED, 500, "server_error", "agent_crashed"),
        (FaultKind.AGENT_PROTOCOL, 500, "server_error", "agent_protocol_error"),
        (FaultKind.UPSTREAM_ERROR, 502, "server_error", "upstream_error"),
        (FaultKind.UPSTREAM_DISCONNECTED, 502, "server_error", "upstream_disconnected"),
        (FaultKind.UPSTREAM_UNREACHABLE, 502, "server_error", "upstream_unreachable"),
        (FaultKind.UNAVAILABLE, 503, "server_error", "service_unavailable"),
        (FaultKind.TIMED_OUT, 504, "timeout_error", "request_timeout"),
    ],
)
def test_a_fault_has_its_status_type_and_code(
    kind: FaultKind, status: int, type: str, code: str | None
) -> None:
    row = row_of(failure(kind), "chat")
    assert (row.status, row.type, row.code) == (status, type, code)


def test_a_context_that_is_too_long_is_what_clients_look_for_on_each_surface() -> None:
    fault = failure(FaultKind.CONTEXT_LENGTH_EXCEEDED)
    for surface in SURFACES:
        told = error(fault, surface)
        assert (status_of(fault, surface), told["type"]) == (400, "invalid_request_error")
        assert told["code"] == "context_length_exceeded"
        assert told["param"] == ("messages" if surface == "chat" else "input")


@pytest.mark.parametrize("kind", FaultKind)
def test_500_and_503_have_the_types_that_each_surfaces_contract_names(kind: FaultKind) -> None:
    chat, responses = row_of(failure(kind), "chat"), row_of(failure(kind), "responses")
    if chat.status in (500, 503):
        assert chat.type == "server_error"
        assert responses.type == {500: "internal_error", 503: "service_unavailable"}[responses.status]
        assert (chat.status, chat.code) == (responses.status, responses.code)


def test_a_code_of_the_provider_wins_over_the_tables() -> None:
    assert error(failure(FaultKind.REJECTED_BY_PROVIDER, code="invalid_prompt"))["code"] == "invalid_prompt"


def test_the_field_at_fault_is_named() -> None:
    assert error(failure(FaultKind.INVALID_REQUEST, param="messages[0].content"))["param"] == (
        "messages[0].content"
    )


def test_a_frame_in_a_stream_blames_no_field() -> None:
    assert error_frames(failure(FaultKind.TIMED_OUT, param="n")) == (
        b'data: {"error":{"message":"it went wrong","type":"timeout_error","param":null,'
        b'"code":"request_timeout"}}\n\ndata: [DONE]\n\n'
    )


def test_a_message_with_a_lone_surrogate_is_still_a_body() -> None:
    fault = Failure(kind=FaultKind.INTERNAL, message="half \ud83d of it")
    assert error(fault)["message"] == "half \ufffd of it"


@pytest.mark.parametrize(("told", "seconds"), [(0.2, 1), (0.0, 1), (-3.0, 1), (41.1, 42)])
def test_retry_after_is_whole_seconds_and_never_less_than_one(told: float, seconds: int) -> None:
    assert retry_after(failure(FaultKind.USAGE_LIMIT_REACHED, retry_after=told)) == seconds


@pytest.mark.parametrize("told", [None, float("inf"), float("nan")])
def test_our_own_limits_always_promise_a_time_to_come_back(told: float | None) -> None:
    assert retry_after(failure(FaultKind.CONCURRENCY_EXCEEDED, retry_after=told)) == 1
    assert retry_after(failure(FaultKind.UNAVAILABLE, retry_after=told)) == 1


def test_without_a_known_time_there_is_no_retry_after() -> None:
    assert retry_after(failure(FaultKind.USAGE_LIMIT_REACHED)) is None
    assert retry_after(failure(FaultKind.INVALID_REQUEST)) is None


@pytest.mark.parametrize(
    ("fault", "forbidden"),
    [
        (failure(FaultKind.INVALID_API_KEY), True),
        (failure(FaultKind.AGENT_NOT_AUTHENTICATED), True),
        (failure(FaultKind.INSUFFICIENT_QUOTA), True),
        (failure(FaultKind.AGENT_MISCONFIGURED), True),
        (failure(FaultKind.UPSTREAM_UNAUTHORIZED), True),
        (failure(FaultKind.USAGE_LIMIT_REACHED), True),
        (failure(FaultKind.USAGE_LIMIT_REACHED, retry_after=60), False),
        (failure(FaultKind.USAGE_LIMIT_REACHED, retry_after=61), True),
        (failure(FaultKind.RATE_LIMITED, retry_after=3), False),
        (failure(FaultKind.AGENT_RATE_LIMITED), False),
        (failure(FaultKind.UPSTREAM_DISCONNECTED), False),
        (failure(FaultKind.UPSTREAM_DISCONNECTED, repeatable=False), True),
        (failure(FaultKind.UNAVAILABLE), False),
    ],
)
def test_retries_are_forbidden_where_they_are_useless_or_would_take_long(
    fault: Failure, forbidden: bool
) -> None:
    assert forbids_retry(fault) == forbidden
