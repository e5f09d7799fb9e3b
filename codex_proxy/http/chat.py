"""POST /v1/chat/completions, and POST /v1/completions: sent on to the upstream that has the model, else a turn of one
message.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

import msgspec
from aiohttp import web

from codex_proxy.agents.agent import agent_for
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import ADMISSION, CLOCK, IDS, RUNS
from codex_proxy.http.body import parse_request, read_body
from codex_proxy.http.exchange import TurnTimings
from codex_proxy.http.middleware.request_context import CLIENT, NOTES
from codex_proxy.http.pass_through import send_on, upstream_for
from codex_proxy.http.sse import time_comment
from codex_proxy.http.turns import TurnAnswer, serve_turn, start_timings
from codex_proxy.runs.observers import REQUEST_RECORDER
from codex_proxy.surfaces.answers.renderer import Renderer
from codex_proxy.surfaces.answers.usage import text_tokens, tokens_in
from codex_proxy.surfaces.chat.completions import FIELDS, CompletionRenderer, ParsedCompletion
from codex_proxy.surfaces.chat.completions import parse as parse_completion
from codex_proxy.surfaces.chat.forward import ForwardedAnswer, ForwardPolicy
from codex_proxy.surfaces.chat.parse import ParsedChat, parse
from codex_proxy.surfaces.chat.render import ChatProfile, ChatRenderer
from codex_proxy.surfaces.requests.passed import json_body


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    choices: Literal["broadcast", "sample"]
    """`broadcast` repeats one answer, `sample` runs a turn for each choice."""
    profile: ChatProfile
    """The form of stream chunks."""
    stream_metrics: bool
    """Whether the usage chunk of a stream has measured times."""


_YES: Final = frozenset({"1", "true", "yes"})

CHAT_OPTIONS = web.AppKey("chat_options", ChatOptions)


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Creates an answer to a conversation, streamed or not."""
    timings = start_timings(request)
    parsed = await _parse(request)
    return await serve_turn(request, parsed, timings, partial(_answer, request, parsed, timings))


async def _parse(request: web.Request) -> ParsedChat:
    body = await read_body(request)
    parsed = await parse_request(request, body, parse, forward_policy=partial(_forward_policy, request))
    request[NOTES]["choice_count"] = parsed.choices
    if request.app[CHAT_OPTIONS].choices == "sample" and parsed.turn.forwarded is None:
        return msgspec.structs.replace(parsed, runs=parsed.choices)
    return parsed


def _forward_policy(request: web.Request, model: str) -> ForwardPolicy | None:
    """Returns what may go to the model's server unchanged; None if the agent has no `forwarding`."""
    app = request.app
    admission = app[ADMISSION]
    able = agent_for(app[RUNS].agent, model).capabilities
    if "forwarding" not in able:
        return None
    options = app[CHAT_OPTIONS]
    recorded = REQUEST_RECORDER.get() is not None
    own_form = options.profile != "openai" or options.stream_metrics or recorded
    return ForwardPolicy(
        whole=not (own_form or (admission.offers_tools and request[CLIENT].mcp)),
        web_images=not admission.fetches_images,
        images="images" in able,
        instructions="system_prompt" in able,
    )


def _answer(request: web.Request, parsed: ParsedChat, timings: TurnTimings, turn: Turn) -> TurnAnswer:
    return TurnAnswer(
        renderer=_renderer(request, parsed, timings),
        keepalive=not _wants_no_keepalive(request),
        ping=partial(time_comment, request.app[CLOCK]),
    )


def _renderer(request: web.Request, parsed: ParsedChat, timings: TurnTimings) -> Renderer:
    app = request.app
    options = app[CHAT_OPTIONS]
    forwarded = parsed.turn.forwarded
    if forwarded is not None:
        return ForwardedAnswer(
            stream=parsed.stream, prompt_tokens=partial(text_tokens, forwarded.fields["messages"])
        )
    return ChatRenderer(
        id=app[IDS].new("chatcmpl-"),
        created=int(app[CLOCK].epoch()),
        model=parsed.model_asked,
        profile=options.profile,
        choices=parsed.choices,
        stream=parsed.stream,
        include_usage=parsed.include_usage,
        legacy_function_call=parsed.legacy_function_call,
        whole_calls=not parsed.turn.parallel_tool_calls,
        show_activity=request[CLIENT].settings.show_activity,
        prompt_tokens=partial(tokens_in, parsed.turn.history),
        max_tokens=parsed.turn.max_tokens,
        metrics=timings.stream_metrics if options.stream_metrics else None,
        service_tier=parsed.service_tier,
    )


def _wants_no_keepalive(request: web.Request) -> bool:
    by_header, by_query = request.headers.get("x-no-keepalive", ""), request.query.get("no_keepalive", "")
    return not _YES.isdisjoint((by_header.lower(), by_query.lower()))


async def completions(request: web.Request) -> web.StreamResponse:
    """Passes the request on to the upstream that has its model, or runs a turn of one message."""
    body = await read_body(request)
    passed = json_body(body)
    if upstream_for(request, passed.model, "/completions") is not None:
        return await send_on(request, passed, "/completions")
    timings = start_timings(request)
    parsed = await parse_request(request, body, parse_completion)
    del body, passed  # a turn may take an hour
    return await serve_turn(request, parsed, timings, partial(_text_answer, request, parsed))


def _text_answer(request: web.Request, parsed: ParsedCompletion, turn: Turn) -> TurnAnswer:
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
