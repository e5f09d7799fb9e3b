"""What of a chat request goes to a server of Chat Completions as it came.

In: the request, as it was validated and as its JSON is. Out: all of it (`ForwardedRequest`), where this server has
nothing to do in the turn; else the fields and messages that a `Turn` has no words for. Values keep their bytes, so
that numbers are neither rounded nor spelt anew. Source: docs/upstreams.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.core.turn import ForwardedRequest
from codex_proxy.surfaces.chat import wire
from codex_proxy.surfaces.chat.answer import SAMPLING, logprobs_asked_for

Fields: TypeAlias = Mapping[str, msgspec.Raw]
"""The members of a JSON object, as they were written."""

TOLD_BY_TURN: Final = frozenset(
    {
        *(
            "model",
            "messages",
            "n",
            "stream",
            "stream_options",
            "stop",
            "max_tokens",
            "max_completion_tokens",
        ),
        *("tools", "tool_choice", "parallel_tool_calls", "functions", "function_call", "response_format"),
        *("reasoning_effort", "verbosity", "service_tier", *SAMPLING),
        *("logprobs", "top_logprobs", "modalities", "audio"),
    }
)
"""Fields that a `Turn` tells in its own way, and those that only an answer passed on as bytes can keep."""
MAX_NAMED: Final = 20
"""Unknown fields that the header names."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NULL: Final = b"null"
_EFFORT: Final = frozenset({"effort", "summary"})


class Passing(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's server speaks Chat Completions: how much of a request it may get as it came."""

    alone: bool
    """No tools of the operator's are offered beside those of the request, so that all of it may."""
    addresses: bool
    """It is given addresses of images, since this server fetches none."""
    images: bool = True
    """It takes images. Where it does not, a request with one is refused as those of any agent are."""


def fields_of(body: bytes) -> dict[str, msgspec.Raw]:
    """The members of a body that has been validated."""
    return msgspec.json.decode(body, type=dict[str, msgspec.Raw])


def unknown_fields(fields: Fields) -> tuple[str, ...]:
    """Fields that this server does not know, as far as a header can name them."""
    unknown = (name for name in fields if name not in wire.ChatRequest.model_fields)
    return tuple(name for name in unknown if _NAME.fullmatch(name))[:MAX_NAMED]


def may_go_as_it_is(request: wire.ChatRequest, passing: Passing, *, has_web_images: bool) -> bool:
    """Whether the whole request is the upstream's affair: there is nothing for this server to repair, run, check or
    fetch, or it asks for what only the upstream's own answer can hold."""
    if not passing.alone or (has_web_images and not passing.addresses):
        return False
    if not passing.images and has_images(request):
        return False
    plain = wants_text(request) and not (request.tools or request.functions)
    return plain or bool(only_in_bytes(request))


def has_images(request: wire.ChatRequest) -> bool:
    """Whether any message has an image."""
    contents = (getattr(message, "content", None) for message in request.messages)
    return any(
        isinstance(part, wire.ImagePart)
        for parts in contents
        for part in (parts if isinstance(parts, list) else ())
    )


def wants_text(request: wire.ChatRequest) -> bool:
    """Whether the answer's text has no format."""
    return request.response_format is None or request.response_format.type == "text"


def only_in_bytes(request: wire.ChatRequest) -> tuple[str, ...]:
    """The parameters whose effect shows in nothing but the upstream's own answer."""
    spoken = any(isinstance(each, wire.AssistantMessage) and each.audio for each in request.messages)
    asked = {
        "n": request.n is not None and request.n > 1,
        "modalities": "audio" in (request.modalities or ()),
        "audio": request.audio is not None,
        "messages[].audio": spoken,
    }
    return (*(name for name, is_asked in asked.items() if is_asked), *logprobs_asked_for(request))


def forwarded_request(
    request: wire.ChatRequest, fields: Fields, *, effort: str | None, model_asked: str
) -> ForwardedRequest:
    """All of the request. `effort`: the reasoning effort that it asks for, by whichever name."""
    kept = {name: value for name, value in fields.items() if name != "reasoning"}
    if effort is not None:
        kept["reasoning_effort"] = msgspec.Raw(msgspec.json.encode(effort))
    options = request.stream_options
    return ForwardedRequest(
        fields=kept | _reasoning(fields),
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        model_asked=model_asked,
    )


def passed_fields(fields: Fields) -> dict[str, msgspec.Raw]:
    """The fields that go along with a turn which this server takes part in."""
    told = TOLD_BY_TURN | {"reasoning"}
    kept = {name: value for name, value in fields.items() if name not in told and bytes(value) != _NULL}
    return kept | _reasoning(fields)


def sampling_in(fields: Fields) -> dict[str, Any]:
    """The fields of `SAMPLING`, as they were written."""
    return {name: fields[name] for name in SAMPLING if name in fields and bytes(fields[name]) != _NULL}


def messages_in(fields: Fields) -> Sequence[msgspec.Raw]:
    """Each message as it was written."""
    return msgspec.json.decode(fields["messages"], type=list[msgspec.Raw])


def _reasoning(fields: Fields) -> dict[str, msgspec.Raw]:
    """`reasoning`, where it says more than an effort, which travels as `reasoning_effort`: OpenRouter's own."""
    given = fields.get("reasoning")
    value = None if given is None else msgspec.json.decode(given, type=dict[str, Any] | None)
    told = {name for name, each in (value or {}).items() if each is not None}
    return {} if given is None or told <= _EFFORT else {"reasoning": given}
