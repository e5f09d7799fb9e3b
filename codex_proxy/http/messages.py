"""POST /v1/messages: parses a body in Anthropic's format, runs a turn and renders the answer. POST
/v1/messages/count_tokens counts the tokens of a body.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Literal

import msgspec
from aiohttp import web

from codex_proxy.admission.admit import FieldNames
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import ADMISSION, IDS, RUNS, USAGE
from codex_proxy.http.body import hints_of, parsed_from, read_body
from codex_proxy.http.endpoint import REQUEST_ID
from codex_proxy.http.exchange import (
    LogReader,
    OneRun,
    TurnTimings,
    ending_notes,
    name_agent,
    start,
    stream_response,
    timings_of,
    whole_response,
)
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER
from codex_proxy.http.replies import agent_headers, agent_note, json_response
from codex_proxy.http.sse import EventStream
from codex_proxy.http.stream_slots import stream_slot
from codex_proxy.surfaces.messages.content import PING
from codex_proxy.surfaces.messages.count import count_tokens
from codex_proxy.surfaces.messages.errors import prompt_too_long
from codex_proxy.surfaces.messages.parse import ParsedMessages, parse
from codex_proxy.surfaces.messages.render import MessagesRenderer
from codex_proxy.surfaces.messages.size import prompt_tokens
from codex_proxy.surfaces.models import billed_model, window_of

FIELDS: Final = FieldNames(
    input="messages",
    input_item="messages[{}].content",
    tool_schema="tools[{}].input_schema",
    output_schema="output_config.format.schema",
    web_search="tools[web_search]",
    verbosity="verbosity",
    effort="output_config.effort",
    parallel_calls="tool_choice.disable_parallel_tool_use",
)
_SESSION_HEADER: Final = "x-claude-code-session-id"
_SESSION: Final = re.compile(r"[0-9a-fA-F-]{1,64}")


class MessagesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings for Anthropic's Messages API."""

    keepalive: float
    """Seconds of silence after which a stream gets a ping; 0 for never."""
    reasoning_state: Literal["client", "server", "off"] = "client"
    """Where the model's raw items of a turn (such as encrypted reasoning) are kept for the next turn: `client`: in
    the answer, and the client sends them back; `server`: in this server's step memory; `off`: nowhere."""


MESSAGES_OPTIONS: Final = web.AppKey("messages_options", MessagesOptions)


async def messages(request: web.Request) -> web.StreamResponse:
    """POST /v1/messages: answers as a whole or as a stream. Raises `Fault` for a request that is refused, and for
    a turn that failed before the first byte was sent.
    """
    app = request.app
    timings = timings_of(request)
    parsed, turn = await _admitted(request)
    request[NOTES] |= {"model": parsed.model_asked, "stream": parsed.stream, "mode": parsed.turn.mode}
    request[NOTES] |= agent_note(app[RUNS].agent, parsed.turn)
    name_agent(request, turn)
    session = request.headers.get(_SESSION_HEADER, "")
    if _SESSION.fullmatch(session):
        request[NOTES]["session"] = session
    renderer = _renderer(request, parsed, turn)
    try:
        with app[USAGE].turn(request[OWNER], billed_model(turn), renderer):
            if parsed.stream:
                return await _stream(request, parsed, turn, renderer, timings)
            source = await _start(request, turn)
            headers = partial(_headers, request, parsed, source)
            return await whole_response(LogReader(source, renderer, timings), headers)
    except Fault as fault:
        raise Fault(_with_anthropic_message(fault.failure, turn, request)) from None
    finally:
        request[NOTES] |= ending_notes(timings, renderer.failure, renderer.finish_reason, renderer.spent)


_COUNTER: Final = ThreadPoolExecutor(max_workers=2, thread_name_prefix="count")
"""Threads that count tokens. A long body takes a second per megabyte, during which other requests are served; with
two threads a long body does not delay a short one."""
_COUNTED_HERE: Final = 4 << 10
"""The most bytes of a body whose tokens are counted on the event loop, in 5 ms at most."""


async def count_message_tokens(request: web.Request) -> web.Response:
    """POST /v1/messages/count_tokens: returns an upper bound of the request's tokens. No turn is run."""
    body, catalog = await read_body(request), request[CLIENT].catalog
    if len(body) <= _COUNTED_HERE:
        tokens = count_tokens(body, catalog)
    else:
        loop = asyncio.get_running_loop()
        tokens = await loop.run_in_executor(_COUNTER, count_tokens, body, catalog)
    response = json_response({"input_tokens": tokens})
    response.headers["x-codex-estimated"] = "true"
    return response


async def _admitted(request: web.Request) -> tuple[ParsedMessages, Turn]:
    """Returns the parsed request, and its turn after admission, which checks that the key and the settings allow
    the turn. An image of an earlier message that can no longer be fetched is left out. Raises `Fault` if the
    request is refused.
    """
    body = await read_body(request)
    parsed = await _parsed(request, body)
    try:
        return parsed, await _admit(request, parsed)
    except Fault as fault:
        if not (parsed.refetches and fault.failure.param in parsed.web_images.values()):
            raise
    parsed = await _parsed(request, body, fetches=False)
    return parsed, await _admit(request, parsed)


async def _admit(request: web.Request, parsed: ParsedMessages) -> Turn:
    return await request.app[ADMISSION].admit(
        parsed.turn,
        request[CLIENT],
        FIELDS,
        model=parsed.model_asked,
        workdir_field=parsed.workdir_param,
        image_fields=parsed.web_images,
    )


async def _parsed(request: web.Request, body: bytes, *, fetches: bool = True) -> ParsedMessages:
    app, client, hints = request.app, request[CLIENT], hints_of(request)
    keeps_state = app[MESSAGES_OPTIONS].reasoning_state != "off"
    return await parsed_from(
        request,
        body,
        lambda body, pdfs: parse(
            body,
            settings=client.messages,
            catalog=client.catalog,
            headers=hints,
            identity=app[RUNS].identity if keeps_state else lambda turn: "",
            pdfs=pdfs,
            takes_images=lambda turn: "images" in app[RUNS].agent_of(turn).capabilities,
            fetches=fetches,
        ),
        skips_unreadable=True,
    )


async def _stream(
    request: web.Request, parsed: ParsedMessages, turn: Turn, renderer: MessagesRenderer, timings: TurnTimings
) -> web.StreamResponse:
    with stream_slot(request):
        source = await _start(request, turn)
        renderer.estimate_prompt()
        return await stream_response(
            LogReader(source, renderer, timings),
            EventStream(request, partial(_headers, request, parsed, source)),
            keepalive=request.app[MESSAGES_OPTIONS].keepalive,
            comment=lambda: PING,
        )


async def _start(request: web.Request, turn: Turn) -> OneRun:
    turn, tools = await request.app[ADMISSION].add_server_tools(turn, request[CLIENT], FIELDS)
    remembers = request.app[MESSAGES_OPTIONS].reasoning_state != "off"
    return await start(request.app[RUNS], turn, request[OWNER], runner=tools.runner, remembers=remembers)


def _renderer(request: web.Request, parsed: ParsedMessages, turn: Turn) -> MessagesRenderer:
    app = request.app
    with_state = parsed.thinking and app[MESSAGES_OPTIONS].reasoning_state == "client"
    return MessagesRenderer(
        id=app[IDS].new("msg_"),
        model=parsed.model_asked,
        request_id=request[REQUEST_ID],
        stream=parsed.stream,
        thinking=parsed.thinking,
        state_identity=app[RUNS].identity(turn) if with_state else None,
        web_search=parsed.web_search,
        client_names=parsed.client_names,
        show_activity=request[CLIENT].messages.show_activity,
        prompt_tokens=partial(prompt_tokens, parsed.turn),
        max_tokens=turn.max_tokens,
    )


def _headers(request: web.Request, parsed: ParsedMessages, source: OneRun) -> dict[str, str]:
    return agent_headers(
        request.app[RUNS].agent,
        parsed.turn,
        FIELDS,
        parsed.ignored,
        web_search=parsed.web_search,
        continued=source.continued,
    )


def _with_anthropic_message(failure: Failure, turn: Turn, request: web.Request) -> Failure:
    """Returns a failure of kind `CONTEXT_LENGTH_EXCEEDED` with Anthropic's message, by which clients of that API
    recognise it and summarise the conversation. Returns any other failure unchanged.
    """
    if failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED:
        return failure
    return prompt_too_long(failure, prompt_tokens(turn), window_of(turn.model, request[CLIENT].catalog))
