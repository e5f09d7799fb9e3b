"""What the handlers of `/v1/agents` read of a request, and how they answer with lists. Raises `Fault`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from aiohttp import web

from codex_proxy.core.faults import bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.body import name_ignored, parse_body, read_body
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.listing import MAX_PAGE_ITEMS, list_object
from codex_proxy.http.middleware.request_context import OWNER
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.agents import ignored_in
from codex_proxy.parts.sessions.service import SESSIONS, Sessions
from codex_proxy.store.values import Page, PageRequest
from codex_proxy.surfaces.requests.body import RequestModel, number_in, unsupported_value

M = TypeVar("M", bound=RequestModel)

DEFAULT_LIMIT: Final = 20


async def parse(request: web.Request, model: type[M]) -> tuple[M, bytes]:
    body = await read_body(request)
    given, ignored = await parse_body(request, body, lambda body, _: wire.parse_body_of(model, body))
    name_ignored(request, ignored)
    if isinstance(given, wire.AgentFields):
        name_ignored(request, ignored_in(given))
    else:
        name_ignored(request, ignored_in(getattr(given, "agent", None), "agent."))
    return given, body


def sessions_at(request: web.Request) -> tuple[Sessions, str]:
    return request.app[SESSIONS], request[OWNER]


def id_in(request: web.Request) -> str:
    return request.match_info["id"]


def query_of(request: web.Request) -> Mapping[str, str]:
    """Returns the query. Raises `Fault` for a key that is there twice."""
    for name in request.query:
        if len(request.query.getall(name)) > 1:
            raise bad_request(f"'{excerpt(name)}' is in the query more than once.", excerpt(name))
    return request.query


def page_in(request: web.Request, *, clamps: bool = False) -> PageRequest:
    """Parses `limit`, `order` and `after`. `clamps`: whether a limit outside of its range becomes the nearest in it."""
    query = query_of(request)
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise unsupported_value("order", order, "'asc', 'desc'")
    given = query.get("limit")
    limit = DEFAULT_LIMIT
    if given is not None and clamps and re.fullmatch(r"-?[0-9]{1,18}", given):
        limit = min(max(int(given), 1), MAX_PAGE_ITEMS)
    elif given is not None:
        if number_in(given, 18) < 0 or not 1 <= int(given) <= MAX_PAGE_ITEMS:
            raise bad_request(f"limit must be between 1 and {MAX_PAGE_ITEMS}", "limit")
        limit = int(given)
    return PageRequest(limit, "asc" if order == "asc" else "desc", query.get("after"))


def list_response(objects: Sequence[Any], page: Page[Any]) -> web.Response:
    return json_response(list_object(objects, has_more=page.has_more))
