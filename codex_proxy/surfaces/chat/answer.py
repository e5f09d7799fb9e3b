"""Reads the fields of a chat request that determine the form of the answer. Raises `Fault` INVALID_REQUEST. Source:
docs/contract.md#parameters-of-chat-completions.
"""

from __future__ import annotations

from typing import Final

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.surfaces.body import check_maximum, missing_parameter, wrong_type
from codex_proxy.surfaces.chat.wire import AssistantMessage, ChatRequest
from codex_proxy.surfaces.request_options import (
    JSON_OBJECT,
    Format,
    Logprobs,
    json_schema_format,
    refuse_logprobs,
    refuse_stream_options,
)

UNSUPPORTED: Final = "unsupported_value"


def ignored_parameters(request: ChatRequest) -> tuple[str, ...]:
    """Returns parameters without effect that `ChatRequest` does not mark as ignored."""
    named = any(isinstance(each, AssistantMessage) and each.name for each in request.messages)
    return (
        *requested_logprobs(request),
        *(("store",) if request.store else ()),  # false is what a chat completion here is anyway
        *(("messages[].name",) if named else ()),
    )


def requested_logprobs(request: ChatRequest) -> tuple[str, ...]:
    given = request.logprobs
    if given is not None and not isinstance(given, bool | int):
        raise wrong_type("logprobs", given, "a boolean")
    asked = {"logprobs": bool(given), "top_logprobs": request.top_logprobs is not None}
    return tuple(name for name, is_asked in asked.items() if is_asked)


def check_choices(request: ChatRequest, max_choices: int) -> None:
    """Raises `Fault` if `n` exceeds `max_choices`."""
    count = request.n or 1
    if max_choices == 1 and count != 1:
        raise bad_request("Invalid value for 'n': only 1 is accepted.", "n", UNSUPPORTED)
    check_maximum("n", count, max_choices)


def format_of(request: ChatRequest, *, structured_output: bool) -> Format:
    """Returns the wanted format. Raises `Fault` if formats are disabled, or a schema is missing."""
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return Format()
    if not structured_output:
        raise bad_request(
            f"'response_format' of type '{wanted.type}' is not supported: only 'text' is accepted.",
            "response_format",
            UNSUPPORTED,
        )
    if wanted.type == "json_object":
        return JSON_OBJECT
    given = wanted.json_schema
    if given is None:
        raise missing_parameter("response_format.json_schema")
    if given.schema_ is None:
        raise missing_parameter("response_format.json_schema.schema")
    return json_schema_format(given.schema_, given.name, given.description)


def refuse_unsupported(request: ChatRequest, logprobs: Logprobs) -> None:
    """Raises `Fault` for audio, and for log probabilities if `logprobs` is `refuse`."""
    refuse_logprobs({name: name for name in requested_logprobs(request)}, logprobs)
    if "audio" in (request.modalities or ()):
        raise _unsupported_fault("modalities", "The agent answers in text: the only modality is 'text'.")
    if request.audio is not None:
        raise _unsupported_fault("audio", "The agent answers in text: leave 'audio' out.")


def refuse_contradictions(request: ChatRequest) -> None:
    """Raises `Fault` for fields that exclude each other."""
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise bad_request(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            "max_tokens",
            "mutually_exclusive_parameters",
        )
    refuse_stream_options(request.stream_options, request.stream)


def _unsupported_fault(param: str, message: str) -> Fault:
    return bad_request(message, param, UNSUPPORTED)
