"""What the client says about the answer it wants: how many, how long, in which format, sampled how.

In: a validated request and the operator's settings. Out: the checked values. Raises `Fault` INVALID_REQUEST
with `param` for what this server does not give. Source: seed 001 ("Parameters", "Release Guidance").
"""

from __future__ import annotations

from typing import Final

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.surfaces.base import schema_json
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.text_format import JSON_OBJECT, Format

UNSUPPORTED: Final = "unsupported_value"

IGNORED: Final = (
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "prediction",
)
"""Validated and accepted; no agent has a knob for them."""


def ignored_by_us(request: ChatRequest) -> tuple[str, ...]:
    """The parameters that were given and change nothing, in the order of `IGNORED`."""
    return tuple(name for name in IGNORED if getattr(request, name) is not None)


def choices_of(request: ChatRequest, most: int) -> int:
    """`n`, from 1 to what the operator allows."""
    count = 1 if request.n is None else request.n
    if not 1 <= count <= most:
        accepted = "only 1 is accepted" if most == 1 else f"expected an integer from 1 to {most}"
        raise bad_request(f"Invalid value for 'n': {accepted}.", "n", UNSUPPORTED)
    return count


def stops_of(request: ChatRequest) -> tuple[str, ...]:
    """Stop sequences. An empty one would stop everywhere, so it means none."""
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return tuple(dict.fromkeys(sequence for sequence in stop if sequence))


def format_of(request: ChatRequest, *, structured_output: bool) -> Format:
    """`response_format`; other than text only where structured output is on."""
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
    if wanted.json_schema is None:
        raise _missing("response_format.json_schema")
    if wanted.json_schema.schema_ is None:
        raise _missing("response_format.json_schema.schema")
    return Format("json_schema", schema_json(wanted.json_schema.schema_))


def refuse_unsupported(request: ChatRequest) -> None:
    """What would need a different answer, and not only a different sampling."""
    logprobs = request.logprobs
    if logprobs is not None and not isinstance(logprobs, bool | int):
        raise bad_request("Invalid type for 'logprobs': expected a boolean.", "logprobs", "invalid_type")
    if logprobs:
        raise _unsupported("logprobs", "Log probabilities are not available: leave 'logprobs' out.")
    if request.top_logprobs is not None:
        raise _unsupported("top_logprobs", "Log probabilities are not available: leave 'top_logprobs' out.")
    if "audio" in (request.modalities or ()):
        raise _unsupported("modalities", "The agent answers in text: the only modality is 'text'.")
    if request.audio is not None:
        raise _unsupported("audio", "The agent answers in text: leave 'audio' out.")
    if request.web_search_options is not None:
        raise _unsupported(
            "web_search_options", "Web search cannot be asked for here: leave 'web_search_options' out."
        )
    if request.stream_options is not None and not request.stream:
        raise bad_request("'stream_options' is only allowed when 'stream' is true.", "stream_options")


def _unsupported(param: str, message: str) -> Fault:
    return bad_request(message, param, UNSUPPORTED)


def _missing(param: str) -> Fault:
    return bad_request(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
