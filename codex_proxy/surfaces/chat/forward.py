"""Decides which parts of a chat request are sent unchanged to an upstream, a model server that speaks Chat
Completions.

Input: the validated request, and the members of its JSON as bytes. Output: a `ForwardedRequest` with the whole
request if this server has nothing to do in the turn; otherwise the fields and messages that a `Turn` cannot
represent. Values keep their bytes, so that numbers are neither rounded nor written differently. Source:
docs/upstreams.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.core.turn import ForwardedRequest
from codex_proxy.surfaces.chat import wire
from codex_proxy.surfaces.chat.answer import SAMPLING, logprobs_asked_for
from codex_proxy.surfaces.chat.messages import has_instructions
from codex_proxy.surfaces.field_lists import FIELD_NAME, MAX_NAMED

Fields: TypeAlias = Mapping[str, msgspec.Raw]
"""The members of a JSON object, each as the bytes that the client wrote."""

TURN_FIELDS: Final = frozenset(
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
"""Fields that a `Turn` represents, and fields that have an effect only if the whole request is forwarded."""
_NULL: Final = b"null"
_EFFORT: Final = frozenset({"effort", "summary"})


class ForwardPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts of a request may be sent unchanged to an upstream that speaks Chat Completions."""

    whole: bool
    """Whether a whole request may be forwarded. False if this server adds tools of the operator's MCP servers to
    the request, or something to the answer: the settings ask for other chunks than OpenAI's, or for measured times.
    """
    web_images: bool
    """Whether the upstream gets the web addresses of images. False if this server fetches the images; a request
    with such addresses is then converted to a turn.
    """
    images: bool = True
    """Whether the upstream's model accepts images. If not, a request with images is not forwarded; it is converted
    to a turn, which `admission` refuses.
    """
    instructions: bool = True
    """Whether the upstream's model accepts a system prompt. If not, a request with instructions is not forwarded;
    it is converted to a turn, whose instructions are sent as messages of the user.
    """


def fields_of(body: bytes) -> dict[str, msgspec.Raw]:
    """Returns the members of a request body, by name, each as the bytes that the client wrote. The body must be a
    valid JSON object.
    """
    return msgspec.json.decode(body, type=dict[str, msgspec.Raw])


def unknown_fields(request: wire.ChatRequest, fields: Fields) -> tuple[str, ...]:
    """Returns the names of the request's fields that this server does not know, and of unknown types of parts (as
    `messages[].content[].TYPE`), for a response header. At most `MAX_NAMED`; names that a header cannot contain are
    left out.
    """
    known = _known_fields()
    named = [name for name in fields if name not in known and FIELD_NAME.fullmatch(name)]
    types = [part.type for part in _parts(request) if isinstance(part, wire.OtherPart)]
    named += [f"messages[].content[].{kind}" for kind in dict.fromkeys(types) if FIELD_NAME.fullmatch(kind)]
    return tuple(named[:MAX_NAMED])


@cache
def _known_fields() -> frozenset[str]:
    """Returns the names of all fields of a chat request that this server knows. Cached, because Pydantic takes a
    while to return them.
    """
    return frozenset(wire.ChatRequest.model_fields)


def may_forward_whole(request: wire.ChatRequest, policy: ForwardPolicy, *, has_web_images: bool) -> bool:
    """Whether the whole request is forwarded to the upstream; if not, it is converted to a turn.

    It is not forwarded if `policy` forbids that, or if the request contains something that `policy` forbids:
    images, web addresses of images (`has_web_images`: the request has some) or instructions. Otherwise it is
    forwarded if the request has neither tools nor an answer format other than text, or if it asks for something
    that only a forwarded answer can contain (see `only_in_bytes`).
    """
    if not policy.whole or (has_web_images and not policy.web_images):
        return False
    if not policy.images and has_images(request):
        return False
    if not policy.instructions and has_instructions(request.messages):
        return False
    plain = wants_text(request) and not (request.tools or request.functions)
    return plain or bool(only_in_bytes(request))


def has_images(request: wire.ChatRequest) -> bool:
    """Whether any message has an image."""
    return any(isinstance(part, wire.ImagePart) for part in _parts(request))


def _parts(request: wire.ChatRequest) -> Iterator[object]:
    contents = (getattr(message, "content", None) for message in request.messages)
    return (part for parts in contents if isinstance(parts, list) for part in parts)


def wants_text(request: wire.ChatRequest) -> bool:
    """Whether the answer is to be plain text: the request has no `response_format`, or one of type `text`."""
    return request.response_format is None or request.response_format.type == "text"


def only_in_bytes(request: wire.ChatRequest) -> tuple[str, ...]:
    """Returns the names of those parameters in the request that have an effect only if the whole request is
    forwarded: several choices, audio, and log probabilities.
    """
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
    """Returns the whole request as it is forwarded. `request` is the parsed body and `fields` its top-level fields
    as raw JSON, including unknown ones. `effort` is the reasoning effort that one of the fields or the model's name
    asks for, None for none; it is sent as `reasoning_effort`. `model_asked` is the model's name as the client wrote
    it.
    """
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
    """Returns the fields that a `Turn` does not represent, as raw JSON, to be sent along with a turn that is not
    forwarded as a whole. Null values are left out.
    """
    told = TURN_FIELDS | {"reasoning"}
    kept = {name: value for name, value in fields.items() if name not in told and bytes(value) != _NULL}
    return kept | _reasoning(fields)


def sampling_in(fields: Fields) -> dict[str, Any]:
    """Returns the request's sampling parameters (those in `SAMPLING`), by name, each as the bytes that the client
    wrote. Null values are left out.
    """
    return {name: fields[name] for name in SAMPLING if name in fields and bytes(fields[name]) != _NULL}


def messages_in(fields: Fields) -> Sequence[msgspec.Raw]:
    """Returns the request's messages, each as the bytes that the client wrote."""
    return msgspec.json.decode(fields["messages"], type=list[msgspec.Raw])


def _reasoning(fields: Fields) -> dict[str, msgspec.Raw]:
    """Returns the field `reasoning` (an object of OpenRouter's API) under its name, if it has members besides the
    effort and the summary; else nothing, because these two are sent in other fields.
    """
    given = fields.get("reasoning")
    value = None if given is None else msgspec.json.decode(given, type=dict[str, Any] | None)
    told = {name for name, each in (value or {}).items() if each is not None}
    return {} if given is None or told <= _EFFORT else {"reasoning": given}
