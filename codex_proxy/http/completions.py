"""POST /v1/completions: sent on to the upstream that has the model, else a turn of one message."""

from __future__ import annotations

from functools import partial

import msgspec
from aiohttp import web

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import CLOCK, IDS
from codex_proxy.http.body import parse_request, read_body
from codex_proxy.http.pass_through import send_on, upstream_for
from codex_proxy.http.sse import time_comment
from codex_proxy.http.turns import TurnAnswer, serve_turn, start_timings
from codex_proxy.surfaces.completions import FIELDS, CompletionRenderer, ParsedCompletion, parse
from codex_proxy.surfaces.passed_bodies import json_body
from codex_proxy.surfaces.usage import tokens_in


async def completions(request: web.Request) -> web.StreamResponse:
    """Passes the request on to the upstream that has its model, or runs a turn of one message."""
    body = await read_body(request)
    passed = json_body(body)
    if upstream_for(request, passed.model, "/completions") is not None:
        return await send_on(request, passed, "/completions")
    timings = start_timings(request)
    parsed = await parse_request(request, body, parse)
    del body, passed  # a turn may take an hour
    return await serve_turn(request, parsed, timings, partial(_answer, request, parsed))


def _answer(request: web.Request, parsed: ParsedCompletion, turn: Turn) -> TurnAnswer:
    app = request.app
    clock = app[CLOCK]
    renderer = CompletionRenderer(
        id=app[IDS].new("cmpl-"),
        created=int(clock.epoch()),
        model=parsed.model_asked,
        stream=parsed.stream,
        include_usage=parsed.include_usage,
        prompt_tokens=partial(tokens_in, parsed.turn.history),
        max_tokens=turn.max_tokens,
    )
    return TurnAnswer(renderer=renderer, ping=partial(time_comment, clock), error=_with_field)


def _with_field(failure: Failure) -> Failure:
    too_long = failure.kind is FaultKind.CONTEXT_LENGTH_EXCEEDED
    return msgspec.structs.replace(failure, param=FIELDS.input) if too_long else failure
