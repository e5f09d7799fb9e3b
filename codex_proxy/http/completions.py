"""POST /v1/completions: sent on to the upstream that has the model, else a turn of one message."""

from __future__ import annotations

from functools import partial
from typing import Final

from aiohttp import web

from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import CLOCK, IDS
from codex_proxy.http.body import parse_request, read_body
from codex_proxy.http.exchange import TurnTimings
from codex_proxy.http.pass_through import send_on, upstream_for
from codex_proxy.http.sse import time_comment
from codex_proxy.http.turns import Api, TurnAnswer, serve_turn
from codex_proxy.surfaces.completions import CompletionRenderer, ParsedCompletion, parse
from codex_proxy.surfaces.passed_bodies import json_body
from codex_proxy.surfaces.usage import tokens_in


async def completions(request: web.Request) -> web.StreamResponse:
    """Passes the request on to the upstream that has its model, or runs a turn of one message."""
    body = await read_body(request)
    passed = json_body(body)
    if upstream_for(request, passed.model, "/completions") is not None:
        return await send_on(request, passed, "/completions", "application/json")
    return await serve_turn(request, _COMPLETIONS, body)


def _answer(request: web.Request, parsed: ParsedCompletion, turn: Turn, timings: TurnTimings) -> TurnAnswer:
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
    return TurnAnswer(renderer=renderer, ping=partial(time_comment, clock))


_COMPLETIONS: Final = Api(parse=partial(parse_request, parse=parse), answer=_answer)
