"""Decides what of a chat request goes unchanged to an upstream: all of it (`ForwardedRequest`) if this server has
nothing to do in the turn, else what no `Turn` represents; and passes on the answer. Sources: docs/upstreams.md,
docs/contract.md#failures-of-a-stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias, Unpack

import msgspec

from codex_proxy.core.events import Event, ForwardedBytes, TurnEnded, UsageReported
from codex_proxy.core.faults import Failure, bad_request
from codex_proxy.core.options import NAMES, OPTIONS, SAMPLING
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import ForwardedRequest
from codex_proxy.surfaces.answers.renderer import Renderer, RenderOptions
from codex_proxy.surfaces.chat import wire
from codex_proxy.surfaces.chat.messages import has_instructions
from codex_proxy.surfaces.errors import error_frames
from codex_proxy.surfaces.requests.fields import FIELD_NAME, MAX_NAMED, folded

Fields: TypeAlias = Mapping[str, msgspec.Raw]
"""A JSON object's members, as the client wrote them."""

_NOT_PASSED: Final = frozenset(
    {
        *(
            name.partition(".")[0]
            for option in OPTIONS
            for name in (option.names.get("chat", ""), *option.also)
        ),
        *("stream", "stream_options", "logprobs", "top_logprobs", "modalities", "audio"),
    }
) - {NAMES["chat"]["web_search"]}
"""Fields that a `Turn` represents (web search is passed on), of the answer's form, or of forwarded requests only."""
_NULL: Final = b"null"
_EFFORT: Final = frozenset({"effort", "summary"})


class ForwardPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What may go unchanged to an upstream."""

    whole: bool
    """Whether all of a request may go: not if this server adds MCP tools, or its chunks have another form."""
    web_images: bool
    """Whether the upstream gets web addresses of images."""
    images: bool = True
    instructions: bool = True
    """Whether the model accepts a system prompt."""


def fields_of(body: bytes) -> dict[str, msgspec.Raw]:
    """Returns a JSON object's members as the client wrote them. Raises `Fault` for a known field in another spelling,
    which an upstream may read although it was not checked.
    """
    fields, known = msgspec.json.decode(body, type=dict[str, msgspec.Raw]), _known_fields()
    for name in fields:
        if name not in known and (read := folded(name)) in _folded_fields():
            raise bad_request(
                f"Some servers read '{excerpt(name)}' as '{_folded_fields()[read]}'.", excerpt(name)
            )
    return fields


def unknown_fields(request: wire.ChatRequest, fields: Fields) -> tuple[str, ...]:
    """Returns unknown fields and types of parts, for a header."""
    known = _known_fields()
    named = [name for name in fields if name not in known and FIELD_NAME.fullmatch(name)]
    types = [part.type for part in _parts(request) if isinstance(part, wire.OtherPart)]
    named += [f"messages[].content[].{kind}" for kind in dict.fromkeys(types) if FIELD_NAME.fullmatch(kind)]
    return tuple(named[:MAX_NAMED])


@cache
def _known_fields() -> frozenset[str]:
    # Cached, because Pydantic takes a while.
    return frozenset(wire.ChatRequest.model_fields)


@cache
def _folded_fields() -> dict[str, str]:
    return {folded(name): name for name in _known_fields()}


def may_forward_whole(request: wire.ChatRequest, policy: ForwardPolicy, *, has_web_images: bool) -> bool:
    """Whether `policy` allows that the whole request goes to the upstream unchanged."""
    if not policy.whole or (has_web_images and not policy.web_images):
        return False
    if not policy.images and any(isinstance(part, wire.ImagePart) for part in _parts(request)):
        return False
    return policy.instructions or not has_instructions(request.messages)


def is_only_forwarded(request: wire.ChatRequest) -> bool:
    """Whether the request has neither tools nor a format, or has parameters that only an upstream can serve."""
    wants_text = request.response_format is None or request.response_format.type == "text"
    if wants_text and not (request.tools or request.functions):
        return True
    wants_audio = "audio" in (request.modalities or ()) or request.audio is not None
    spoken = any(isinstance(each, wire.AssistantMessage) and each.audio for each in request.messages)
    return (request.n is not None and request.n > 1) or wants_audio or spoken


def _parts(request: wire.ChatRequest) -> Iterator[object]:
    contents = (getattr(message, "content", None) for message in request.messages)
    return (part for parts in contents if isinstance(parts, list) for part in parts)


def forwarded_request(
    request: wire.ChatRequest, fields: Fields, *, effort: str | None, model_asked: str
) -> ForwardedRequest:
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
    """Returns the fields that no `Turn` represents, without nulls."""
    kept = {
        name: value for name, value in fields.items() if name not in _NOT_PASSED and bytes(value) != _NULL
    }
    return kept | _reasoning(fields)


def sampling_in(fields: Fields) -> dict[str, Any]:
    """Returns the sampling parameters as written, without nulls."""
    return {
        name: fields[name] for name in SAMPLING["chat"] if name in fields and bytes(fields[name]) != _NULL
    }


def messages_in(fields: Fields) -> Sequence[msgspec.Raw]:
    return msgspec.json.decode(fields["messages"], type=list[msgspec.Raw])


def _reasoning(fields: Fields) -> dict[str, msgspec.Raw]:
    """Returns OpenRouter's `reasoning` if it has more than effort and summary."""
    given = fields.get("reasoning")
    value = None if given is None else msgspec.json.decode(given, type=dict[str, Any] | None)
    members = {name for name, each in (value or {}).items() if each is not None}
    return {} if given is None or members <= _EFFORT else {"reasoning": given}


class ForwardedAnswer(Renderer):
    """Passes on the bytes of an answer. Without reported usage, a delta counts as an output token."""

    def __init__(self, **options: Unpack[RenderOptions]) -> None:
        super().__init__(**options)
        self._stops: tuple[str, ...] = ()
        self._deltas = 0
        self._body: list[bytes] = []

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        return self._stops

    def pieces(self, events: Iterable[Event]) -> list[bytes]:
        out: list[bytes] = []
        for event in events:
            if isinstance(event, ForwardedBytes):
                out.append(event.data)
                self._deltas += event.deltas
            elif isinstance(event, UsageReported):
                self.spent.add_total(event)
            elif isinstance(event, TurnEnded):
                self._on_turn_ended(event, out)
        self.visible = self.visible or bool(out)
        if self._stream:
            return out
        self._body += out
        return []

    def open(self) -> bytes:
        self.visible = True  # the upstream sends its own first chunk; from now on a failure is an error frame
        return b""

    def _whole(self) -> bytes:
        return b"".join(self._body)

    def _count_tokens(self) -> int:
        return self._limit(self._deltas)

    def _on_turn_ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.spent.end(event)
        if event.failure is None:
            stops = event.choice_stops or {0: event.stop}
            self._stops = tuple(stop for _, stop in sorted(stops.items()))
            return
        self.failure = event.failure
        if self.visible or out:
            out.append(self._error(event.failure))

    def _error(self, failure: Failure) -> bytes:
        return error_frames(failure)
