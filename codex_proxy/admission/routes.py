"""Routes of the settings: which model answers a request. The client's rights are checked for the chosen model as for
any. Source: docs/agents.md#routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from pydantic import BaseModel, Field

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.items import images_in, texts_in
from codex_proxy.core.tokens import estimate_all
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.answers.usage import text_tokens
from codex_proxy.surfaces.requests.options import ParsedRequest
from codex_proxy.surfaces.responses.parse import ParsedResponse

ApiName: TypeAlias = Literal["chat", "messages", "responses", "ollama", "completions"]
P = TypeVar("P", bound=ParsedRequest)

K = FaultKind
FALLBACK_KINDS: Final = frozenset({
    K.UPSTREAM_UNREACHABLE, K.UPSTREAM_DISCONNECTED, K.UPSTREAM_ERROR, K.UPSTREAM_TIMEOUT,
    K.UPSTREAM_UNAUTHORIZED, K.UNAVAILABLE, K.AGENT_RATE_LIMITED, K.USAGE_LIMIT_REACHED,
    K.INSUFFICIENT_QUOTA, K.AGENT_NOT_AUTHENTICATED, K.AGENT_MISCONFIGURED, K.AGENT_CRASHED,
    K.AGENT_PROTOCOL, K.SPAWN_FAILED,
})  # fmt: skip
"""The failures after which the next target is asked: the agent's or its account's, not the request's."""


class Route(BaseModel, extra="forbid", frozen=True, defer_build=True):
    """One `[routes.NAME]`: which model answers the requests that match all conditions; None matches any."""

    to: str = Field(description="the model that answers: `AGENT/MODEL`, or any name of `GET /v1/models`")
    fallback: tuple[str, ...] = Field(
        (), description="models to ask next, if one fails before its answer begins"
    )
    client: str | None = Field(None, description="the name of the request's key; may have `*`")
    api: ApiName | None = Field(None, description="the API of the request")
    model: str | None = Field(None, description="the model that the request names; may have `*`")
    min_tokens: int | None = Field(None, ge=0, description="the minimum of tokens in its text, as estimated")
    thinking: bool | None = Field(None, description="whether it asks for thinking or an effort")
    tools: bool | None = Field(None, description="whether it offers tools")
    images: bool | None = Field(None, description="whether it has images")


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a route may depend on. `tokens` is an estimate."""

    client: str
    api: ApiName
    model: str
    tokens: int
    thinking: bool
    tools: bool
    images: bool


def facts_of(turn: Turn, *, client: str, api: ApiName, model: str) -> RequestFacts:
    if turn.forwarded is not None:
        fields = turn.forwarded.fields
        messages = bytes(fields.get("messages", b""))
        tokens, tools, images = text_tokens(messages), "tools" in fields, b'"image_url"' in messages
    else:
        tokens, tools = estimate_all(texts_in(turn.history)), bool(turn.tools)
        images = bool(images_in(turn.history))
    thinking = turn.effort is not None or turn.summary is not None
    return RequestFacts(
        client=client, api=api, model=model, tokens=tokens, thinking=thinking, tools=tools, images=images
    )


def choose_route(routes: Mapping[str, Route], facts: RequestFacts) -> str | None:
    """Returns the name of the first route that matches."""
    return next((name for name, route in routes.items() if _matches(route, facts)), None)


def _matches(route: Route, facts: RequestFacts) -> bool:
    return (
        (route.client is None or fnmatchcase(facts.client, route.client))
        and route.api in (None, facts.api)
        and _matches_model(route, facts.model)
        and (route.min_tokens is None or facts.tokens >= route.min_tokens)
        and route.thinking in (None, facts.thinking)
        and route.tools in (None, facts.tools)
        and route.images in (None, facts.images)
    )


def _matches_model(route: Route, model: str) -> bool:
    return route.model is None or fnmatchcase(model.lower(), route.model.lower())


def with_model_asked(parsed: P, model: str) -> P:
    """Returns a request that was parsed with a route's target, with the client's own name of the model."""
    turn = parsed.turn
    if turn.forwarded is not None:
        forwarded = msgspec.structs.replace(turn.forwarded, model_asked=model)
        turn = msgspec.structs.replace(turn, forwarded=forwarded)
    if isinstance(parsed, ParsedResponse):
        parsed = msgspec.structs.replace(parsed, echo={**parsed.echo, "model": model})
    return msgspec.structs.replace(parsed, turn=turn, model_asked=model)


class Router:
    """Remembers the targets whose account is used up, until its limit is reset."""

    def __init__(self, routes: Mapping[str, Route], clock: Clock) -> None:
        self.routes = routes
        self._clock = clock
        self._used_up: dict[str, float] = {}

    def may_serve(self, model: str) -> bool:
        """Whether a route can match requests for this name."""
        return any(_matches_model(route, model) for route in self.routes.values())

    def targets(self, name: str) -> list[str]:
        """Returns a route's targets in order, but last those whose account is used up."""
        route, now = self.routes[name], self._clock.monotonic()
        return sorted((route.to, *route.fallback), key=lambda target: self._used_up.get(target, 0.0) > now)

    def note_failure(self, target: str, failure: Failure) -> bool:
        """Notes a target's failure. Returns whether another target may be asked after it."""
        if failure.kind is K.USAGE_LIMIT_REACHED and failure.retry_after is not None:
            self._used_up[target] = self._clock.monotonic() + failure.retry_after
        return failure.kind in FALLBACK_KINDS
