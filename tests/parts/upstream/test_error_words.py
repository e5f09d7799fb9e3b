"""What an upstream's error becomes, by its status, its place and its words."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import pytest

from codex_proxy.core.events import TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.parts.upstream.failures import BROKEN_OFF, CONTEXT_WORDS, ErrorReader
from codex_proxy.parts.upstream.stream import End, Head, Message
from tests.parts.upstream.test_upstream_cost import CHAT, TURN, chunks, line

K = FaultKind
ERRORS: Final = ErrorReader()


def of_status(status: int, error: Any) -> Failure:
    return ERRORS.of_response(status, {}, json.dumps(error).encode(), 0.0)


def said(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


@pytest.mark.parametrize(("words", "example"), CONTEXT_WORDS)
def test_each_servers_words_of_a_context_that_is_too_long_are_known(words: str, example: str) -> None:
    assert re.search(words, example, re.IGNORECASE)
    for status in (400, 422):
        assert of_status(status, said(example, code=None)).kind is K.CONTEXT_LENGTH_EXCEEDED


GROQS_OUTPUT_LIMIT: Final = said(
    "`max_completion_tokens` must be less than or equal to `40960`, the maximum value for `max_completion_tokens` is "
    "less than the `context_window` for this model"
)


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, said("Unknown parameter: 'context_window'."), K.REJECTED_BY_PROVIDER),
        (400, said("Invalid value for 'context_length': must be positive"), K.REJECTED_BY_PROVIDER),
        (400, said("Unknown parameter: 'max_context_length'."), K.REJECTED_BY_PROVIDER),
        (400, GROQS_OUTPUT_LIMIT, K.REJECTED_BY_PROVIDER),
        (None, GROQS_OUTPUT_LIMIT, K.REJECTED_BY_PROVIDER),
        (
            400,
            said('"max_tokens" must be less than or equal to the model\'s context length'),
            K.REJECTED_BY_PROVIDER,
        ),
        (
            400,
            said("Invalid input: messages[3].name exceeds the maximum length of 64 characters."),
            K.REJECTED_BY_PROVIDER,
        ),
        (
            400,
            said("max_completion_tokens (100000) exceeds the max allowed (32768)"),
            K.REJECTED_BY_PROVIDER,
        ),
        (400, said("No.", code="context_window_exceeded"), K.CONTEXT_LENGTH_EXCEEDED),
        (400, said("No.", code="context_limit_exceeded"), K.CONTEXT_LENGTH_EXCEEDED),
        (422, said("No.", type="context_size_exceeded"), K.CONTEXT_LENGTH_EXCEEDED),
        (404, said("No endpoints found for foo/bar.", code=404), K.MODEL_NOT_FOUND),
        (404, said("models/gemini-9 is not found for API version v1main"), K.MODEL_NOT_FOUND),
        (404, [said("models/x is not found", code=404, status="NOT_FOUND")], K.MODEL_NOT_FOUND),
        (404, said("No endpoints found that support tool use."), K.REJECTED_BY_PROVIDER),
        (404, said("File Not Found", type="not_found_error"), K.AGENT_MISCONFIGURED),
        (404, said("Invalid URL (POST /v1/x)", type="invalid_request_error"), K.AGENT_MISCONFIGURED),
        (404, {"detail": "Not Found"}, K.AGENT_MISCONFIGURED),
        (405, said("Use another method, please."), K.AGENT_MISCONFIGURED),
        (400, said("foo/bar is not a valid model ID"), K.MODEL_NOT_FOUND),
        (400, [said("Bad temperature.", code=400)], K.REJECTED_BY_PROVIDER),
        (429, [said("Slow down.", code=429)], K.AGENT_RATE_LIMITED),
        (403, said("Your input was flagged by moderation"), K.REJECTED_BY_PROVIDER),
        (403, said("region not supported", type="request_forbidden"), K.REJECTED_BY_PROVIDER),
        (403, said("Your API key lacks a right."), K.UPSTREAM_UNAUTHORIZED),
        (403, said("No.", type="permission_error"), K.UPSTREAM_UNAUTHORIZED),
        (403, said("Unauthorized."), K.UPSTREAM_UNAUTHORIZED),
        (403, "", K.UPSTREAM_UNAUTHORIZED),
    ],
)
def test_a_status_and_its_words_say_whose_fault_it_is(
    status: int | None, error: Any, kind: FaultKind
) -> None:
    failure = ERRORS.of_event(error) if status is None else of_status(status, error)
    assert failure.kind is kind
    if kind in (K.MODEL_NOT_FOUND, K.REJECTED_BY_PROVIDER, K.AGENT_RATE_LIMITED):
        value = error[0] if isinstance(error, list) else error
        assert value["error"]["message"] in failure.message


CONTEXT: Final = "This model's maximum context length is 4096 tokens."


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b'\xef\xbb\xbf{"error": {"message": "Bad."}}', K.REJECTED_BY_PROVIDER, "Bad."),
        (b'event: error\ndata: {"error": {"message": "Bad."}}\n\n', K.REJECTED_BY_PROVIDER, "Bad."),
        (
            b'id:1\nevent:error\n:HTTP_STATUS/400\ndata:{"code":"InvalidParameter","message":"Bad."}\n\n',
            K.REJECTED_BY_PROVIDER,
            "Bad.",
        ),
        (b'{"errors":[{"message":"Bad.","code":5006}],"success":false}', K.REJECTED_BY_PROVIDER, "Bad."),
        (b'{"error_code":17,"error_msg":"Bad."}', K.REJECTED_BY_PROVIDER, "Bad."),
        (b'{"base_resp":{"status_code":1002,"status_msg":"Bad."}}', K.REJECTED_BY_PROVIDER, "Bad."),
        (b'{"message":{"detail":"Bad."}}', K.REJECTED_BY_PROVIDER, "Bad."),
        (
            json.dumps(said("Provider returned error", metadata={"raw": json.dumps(said(CONTEXT))})).encode(),
            K.CONTEXT_LENGTH_EXCEEDED,
            CONTEXT,
        ),
        (
            json.dumps(said("Provider returned error", metadata={"raw": "Bad."})).encode(),
            K.REJECTED_BY_PROVIDER,
            "Provider returned error: Bad.",
        ),
    ],
)
def test_an_errors_words_are_found_where_servers_put_them(body: bytes, kind: FaultKind, words: str) -> None:
    failure = ERRORS.of_response(400, {}, body, 0.0)
    assert (failure.kind, words in failure.message) == (kind, True)
    assert "{" not in failure.message


IN_A_CHOICE: Final = {
    "delta": {"content": ""},
    "finish_reason": "error",
    "error": {"code": 429, "message": "Slow."},
}
IN_A_MESSAGE: Final = {**IN_A_CHOICE, "message": {"content": ""}}
BAD: Final = said("Bad.", type="invalid_request_error", code="bad_temp", param="temperature")
HI: Final = chunks([{"content": "Hi"}])[:-2].partition(b"\n\n")[0] + b"\n\n"


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (HI + line([said("Slow.", code=429)]), K.AGENT_RATE_LIMITED, "Slow."),
        (json.dumps([said("Full.", code=503)], indent=1).encode(), K.UNAVAILABLE, "Full."),
        (b"[1]", K.UPSTREAM_ERROR, "not in the format of Chat Completions"),
        (
            b'{"choices":null,"base_resp":{"status_code":1002,"status_msg":"Slow."}}',
            K.UPSTREAM_ERROR,
            "Slow.",
        ),
        (b'{"success":false,"errors":[{"code":1,"message":"Slow."}]}', K.UPSTREAM_ERROR, "Slow."),
        (HI + b'error: {"code":500,"message":"Full."}\n\n', K.UPSTREAM_ERROR, "Full."),
        (HI + b'{"error":{"code":503,"message":"Full."}}\n', K.UNAVAILABLE, "Full."),
        (HI + b"event: error\ndata: Too much, sorry\n\n", K.UPSTREAM_ERROR, "Too much, sorry"),
        (b"Too much, sorry", K.UPSTREAM_ERROR, "not in the format of Chat Completions"),
        (HI + line({"choices": [IN_A_CHOICE]}), K.AGENT_RATE_LIMITED, "Slow."),
        (json.dumps({"choices": [IN_A_MESSAGE]}).encode(), K.AGENT_RATE_LIMITED, "Slow."),
        (line(BAD), K.REJECTED_BY_PROVIDER, "Bad."),
        (b'{"id":"z","choices":[{"message":{"content":"H', K.UPSTREAM_DISCONNECTED, BROKEN_OFF.message),
        (b'{"id" "z"}', K.UPSTREAM_ERROR, "not valid JSON"),
    ],
)
@pytest.mark.parametrize("reader", CHAT)
def test_an_error_in_an_answer_is_told_with_its_words(
    reader: str, body: bytes, kind: FaultKind, words: str
) -> None:
    dialect = CHAT[reader]()
    dialect.begin(TURN)
    messages: list[Message] = [Head(200), body, End()]
    end = dialect.receive(messages).events[-1]
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert (end.failure.kind, words in end.failure.message) == (kind, True)
    if kind is K.REJECTED_BY_PROVIDER:
        assert (end.failure.code, end.failure.param) == ("bad_temp", "temperature")
