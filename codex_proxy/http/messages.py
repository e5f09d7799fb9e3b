"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import IDS, RUNS
from codex_proxy.http.body import name_ignored, parse_request, read_body
from codex_proxy.http.endpoint import REQUEST_ID, json_response
from codex_proxy.http.exchange import Source
from codex_proxy.http.middleware.request_context import CLIENT, NOTES
from codex_proxy.http.routing import body_of_unknown_model
from codex_proxy.http.turns import TurnAnswer, serve_turn, start_timings, start_turn
from codex_proxy.surfaces.messages.answer import PING, prompt_too_long
from codex_proxy.surfaces.messages.parse import ParsedMessages, count_tokens, parse, prompt_tokens
from codex_proxy.surfaces.messages.render import MessagesRenderer
from codex_proxy.surfaces.models import ModelCatalog, window_of
from codex_proxy.surfaces.requests.fields import FieldNotes, ignored_fields

_SESSION_HEADER: Final = "x-claude-code-session-id"
_SESSION: Final = re.compile(r"[0-9a-fA-F-]{1,64}")


REASONING_STATE: Final = web.AppKey("reasoning_state", str)
"""Where the model's raw items are kept for the next turn: in the answer (`client`), in the step memory (`server`), or
nowhere (`off`).
"""


async def create_message(request: web.Request) -> web.StreamResponse:
    """Creates an answer in the form of Anthropic's API, streamed or not."""
    timings = start_timings(request)
    parsed = await _parse(request)
    return await serve_turn(request, parsed, timings, partial(_answer, request, parsed))


_COUNTER: Final = ThreadPoolExecutor(max_workers=2, thread_name_prefix="count")
"""Counts tokens, a second for a megabyte. With two threads, a long body does not delay a short one."""
_COUNTED_ON_LOOP: Final = 4 << 10
"""Maximum bytes whose tokens are counted on the event loop: 5 ms."""


async def count_message_tokens(request: web.Request) -> web.Response:
    """Estimates the input tokens of a request."""
    body, catalog = await read_body(request), request[CLIENT].catalog
    try:
        tokens, notes = await _count(body, catalog)
    except Fault as fault:
        # A route may serve a name that no agent has.
        stand_in = body_of_unknown_model(request, body, fault.failure)
        if stand_in is None:
            raise
        tokens, notes = await _count(stand_in, catalog)
    name_ignored(request, ignored_fields(notes))
    response = json_response({"input_tokens": tokens})
    response.headers["x-codex-estimated"] = "true"
    return response


async def _count(body: bytes, catalog: ModelCatalog) -> tuple[int, FieldNotes]:
    if len(body) <= _COUNTED_ON_LOOP:
        return count_tokens(body, catalog)
    return await asyncio.get_running_loop().run_in_executor(_COUNTER, count_tokens, body, catalog)


async def _parse(request: web.Request) -> ParsedMessages:
    session = request.headers.get(_SESSION_HEADER, "")
    if _SESSION.fullmatch(session):
        request[NOTES]["session"] = session
    app = request.app
    keeps_state = app[REASONING_STATE] != "off"
    return await parse_request(
        request,
        await read_body(request),
        parse,
        skips_unreadable=True,
        identity=app[RUNS].services.agent_and_model if keeps_state else lambda turn: "",
        takes_images=lambda turn: "images" in app[RUNS].services.agent_of(turn).capabilities,
    )


def _answer(request: web.Request, parsed: ParsedMessages, turn: Turn) -> TurnAnswer:
    app, catalog = request.app, request[CLIENT].catalog
    remembers = app[REASONING_STATE] != "off"
    with_state = parsed.thinking and app[REASONING_STATE] == "client"
    renderer = MessagesRenderer(
        id=app[IDS].new("msg_"),
        model=parsed.model_asked,
        request_id=request[REQUEST_ID],
        stream=parsed.stream,
        thinking=parsed.thinking,
        state_identity=app[RUNS].services.agent_and_model(turn) if with_state else None,
        web_search=parsed.web_search,
        client_names=parsed.client_names,
        show_activity=request[CLIENT].settings.show_activity,
        prompt_tokens=partial(prompt_tokens, parsed.turn),
        max_tokens=turn.max_tokens,
    )

    async def start() -> Source:
        source = await start_turn(request, parsed, turn, remembers=remembers)
        if parsed.stream:
            renderer.estimate_prompt()  # while the agent starts
        return source

    def error(failure: Failure) -> Failure:
        return prompt_too_long(failure, partial(prompt_tokens, turn), window_of(turn.model, catalog))

    return TurnAnswer(renderer=renderer, start=start, ping=lambda: PING, error=error)
