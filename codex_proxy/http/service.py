"""What the handlers share: one frozen value, put into the application under one key."""

from __future__ import annotations

import ipaddress
from typing import Literal, TypeAlias

import msgspec
from aiohttp import web

from codex_proxy.admission.admit import Admission
from codex_proxy.admission.clients import Clients
from codex_proxy.core.byte_budget import ByteBudget
from codex_proxy.core.ids import Clock, IdSource
from codex_proxy.core.models import AgentModel
from codex_proxy.core.rate import RateLimits, RunningRequests
from codex_proxy.http.guard import SseGuard
from codex_proxy.http.middleware.wrong_keys import WrongKeys
from codex_proxy.http.usage_book import UsageBook
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.manager import RunManager
from codex_proxy.surfaces.chat.render import ChatProfile
from codex_proxy.surfaces.models import ModelCatalog

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """The server's parts and what the operator decided, as far as HTTP is concerned."""

    manager: RunManager
    clock: Clock
    ids: IdSource
    catalog: ModelCatalog
    clients: Clients
    """Who may come in, and what each of them may do."""
    admission: Admission
    """What every turn passes before it starts."""
    responses: ResponsesService
    book: UsageBook
    """Where it is written down what turns have cost."""
    environment: str
    """`prod` or `dev`: which aliases are listed."""
    keepalive: float
    """Seconds of silence after which a stream gets a comment; 0 for never."""
    guard: SseGuard
    """Places for streams."""
    rate: RateLimits
    """Requests a minute, by key."""
    running: RunningRequests
    """Requests under way, by key."""
    wrong_keys: WrongKeys
    choices: Literal["broadcast", "sample"]
    """Whether several choices are one turn told several times, or several turns."""
    chat_profile: ChatProfile
    """Whose chunks chat streams have."""
    stream_metrics: bool
    """Whether a usage chunk tells measured times."""
    test_endpoints: bool
    release_file: str | None
    """What held turns of the fake agent wait for."""
    body_limit: int
    bodies: ByteBudget
    """Bytes of the bodies of requests that are under way."""
    started: int
    """Seconds since 1970."""
    trusted_proxies: tuple[Network, ...]
    """Reverse proxies that may pass requests on."""
    hosts: frozenset[str]
    """Names (without port) that a Host header may have; empty: any."""
    origins: frozenset[str]
    """Origins, in small letters, whose pages may use this server."""
    fake: bool
    """The agent's answers are made up."""


SERVICE = web.AppKey("service", Service)


def catalog_of(
    models: tuple[AgentModel, ...],
    *,
    aliases: tuple[tuple[str, str], ...],
    any_model: bool,
    default: str,
    fake: bool = False,
) -> ModelCatalog:
    """The agent's models as the surfaces name them."""
    return ModelCatalog(
        models=models,
        aliases=aliases,
        any_model=any_model,
        default_model=default,
        advice=" The fake agent takes any name with FAKE_CODEX_MODELS=any." if fake else "",
    )
