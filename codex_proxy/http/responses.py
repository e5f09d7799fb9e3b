"""The handlers of /v1/responses. They raise `Fault` NOT_FOUND for what does not exist or is another key's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from functools import partial

import msgspec
from aiohttp import web

from codex_proxy.admission.admit import containers_for
from codex_proxy.agents.agent import agent_for
from codex_proxy.core.faults import Fault
from codex_proxy.core.items import HistoryItem, as_functions
from codex_proxy.core.tokens import estimate_all
from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.body import HELD, hints_of, name_ignored, parse_body, parse_request, read_body
from codex_proxy.http.endpoint import json_response
from codex_proxy.http.exchange import (
    LogReader,
    OneRun,
    Reader,
    TurnTimings,
    stream_response,
    whole_response,
)
from codex_proxy.http.listing import check_include, decode_item, list_page
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER
from codex_proxy.http.routing import body_of_target, later_targets
from codex_proxy.http.sse import EventStream, stream_slot
from codex_proxy.http.turns import (
    TurnAnswer,
    agent_headers,
    answer_turn,
    ending_notes,
    note_admitted,
    note_request,
    start_timings,
)
from codex_proxy.responses.background import (
    ParseAgain,
    cancel_in_background,
    create_in_background,
    queued_json,
)
from codex_proxy.responses.context import (
    measure_context,
    read_context,
    without_containers,
    without_orphans,
)
from codex_proxy.responses.follow import HEARTBEAT, Follower, check_followable, starting_after
from codex_proxy.responses.foreground import start_foreground
from codex_proxy.responses.prepare import PreparedResponse, needs_saving, prepare, renderer_of, start_run
from codex_proxy.responses.service import ResponsesService
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.store.store import Store
from codex_proxy.store.values import StoredResponse
from codex_proxy.surfaces.answers.usage import tokens_in
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.requests.body import invalid_value
from codex_proxy.surfaces.responses import compaction, response_object
from codex_proxy.surfaces.responses import context as contexts
from codex_proxy.surfaces.responses.context import ParsedContext
from codex_proxy.surfaces.responses.items import web_images
from codex_proxy.surfaces.responses.parse import FIELDS, ParsedResponse, parse
from codex_proxy.surfaces.responses.profile import LEAVING_OUT_ORPHANS
from codex_proxy.surfaces.responses.render import ResponsesRenderer


async def create_response(request: web.Request) -> web.StreamResponse:
    """Creates a response: streamed, not streamed, or in the background.

    Raises `Fault` before the first byte.
    """
    timings = start_timings(request)
    body = await read_body(request)
    read = partial(parse_request, request, body, parse)
    parsed = await read()
    note_request(request, parsed)
    request[NOTES] |= {"store": parsed.store, "background": parsed.background}
    if parsed.background:
        return await _answer_in_background(request, parsed, body, later_targets(request, read))
    del body, read  # a turn may take an hour
    return await _answer_in_foreground(request, parsed, timings)


async def _answer_in_foreground(
    request: web.Request, parsed: ParsedResponse, timings: TurnTimings
) -> web.StreamResponse:
    service = request.app[RESPONSES]
    prepared = await prepare(
        service,
        parsed,
        request[OWNER],
        id=service.ids.new("resp_"),
        created=service.clock.epoch(),
        wait=service.conversation_wait,
    )
    try:
        request[HELD].grow_by(prepared.size)
    except Fault:
        prepared.release()
        raise
    request[NOTES]["response_id"] = prepared.id
    note_admitted(request, prepared.turn)
    if needs_saving(service, parsed) or parsed.truncation == "auto":
        return await _send_stored(request, prepared, timings)

    async def start() -> OneRun:
        return OneRun(await start_run(service, prepared))

    renderer = renderer_of(service, prepared, stream=parsed.stream)
    answer = TurnAnswer(renderer=renderer, start=start, ping=lambda: HEARTBEAT)
    return await answer_turn(request, parsed, prepared.turn, answer, timings)


async def _send_stored(
    request: web.Request, prepared: PreparedResponse, timings: TurnTimings
) -> web.StreamResponse:
    """Answers with a response that a task of the server renders and stores. If the client leaves, it is interrupted."""
    service, stream = request.app[RESPONSES], prepared.parsed.stream
    with ExitStack() as stack:
        if stream:
            try:
                stack.enter_context(stream_slot(request))
            except Fault:
                prepared.release()
                with service.usage.turn(
                    prepared.owner, billed_model(prepared.turn), renderer_of(service, prepared)
                ):
                    raise  # counted as a failed turn
        response, reader = await start_foreground(
            service, prepared, "sse" if stream else "whole", timings.record
        )

        def headers() -> dict[str, str]:
            return agent_headers(
                service.runs.agent, prepared.parsed, prepared.turn, continued=response.continued
            )

        try:
            return await (
                _send_stream(request, reader, headers) if stream else whole_response(reader, headers)
            )
        finally:
            request[NOTES] |= ending_notes(timings, response.failure, response.finish_reasons, response.spent)


async def _answer_in_background(
    request: web.Request, parsed: ParsedResponse, body: bytes, parse_again: ParseAgain | None
) -> web.StreamResponse:
    service = request.app[RESPONSES]
    with stream_slot(request) if parsed.stream else nullcontext():
        prepared = await create_in_background(
            service,
            parsed,
            body_of_target(request, body),
            hints_of(request),
            request[CLIENT],
            request[HELD].hand_over,
            parse_again,
        )
        request[NOTES]["response_id"] = prepared.id
        note_admitted(request, prepared.turn)
        headers = agent_headers(service.runs.agent, prepared.parsed, prepared.turn)
        if not parsed.stream:
            return web.Response(
                body=queued_json(service, prepared), content_type="application/json", headers=headers
            )
        follower = Follower(service, prepared.owner, prepared.id, after=-1)
        return await _send_stream(request, follower, lambda: headers)


async def _send_stream(
    request: web.Request, reader: Reader, headers: Callable[[], Mapping[str, str]]
) -> web.StreamResponse:
    return await stream_response(
        reader,
        EventStream(request, headers),
        keepalive=request.app[RESPONSES].heartbeat,
        comment=lambda: HEARTBEAT,
    )


def store_for(request: web.Request) -> Store:
    """Returns the store. Raises `Fault` NOT_FOUND without one."""
    store = request.app[RESPONSES].store
    if store is None:
        raise response_object.not_found(request.match_info["id"])
    return store


async def stored_response(request: web.Request) -> StoredResponse:
    """Returns the response that the path names."""
    id = request.match_info["id"]
    store = store_for(request)
    with store_errors_as_faults():
        found = await store.response(request[OWNER], id)
    if found is None:
        raise response_object.not_found(id)
    return found


async def retrieve_response(request: web.Request) -> web.StreamResponse:
    """Returns a stored response, or the stream of a background response.

    With `stream=true` the events above `starting_after`.
    """
    check_include(request)
    if not _is_streamed(request):
        found = await stored_response(request)
        return web.Response(body=found.json, content_type="application/json")
    after = starting_after(request.query)
    found = await stored_response(request)
    service, store = request.app[RESPONSES], store_for(request)
    await check_followable(store, found, service.background.find(found.owner, found.id))
    with stream_slot(request):
        return await _send_stream(request, Follower(service, found.owner, found.id, after), dict)


def _is_streamed(request: web.Request) -> bool:
    given = request.query.get("stream", "").lower()
    if given not in ("", "true", "1", "false", "0"):
        raise invalid_value("stream", "expected 'true' or 'false'")
    return given in ("true", "1")


async def delete_response(request: web.Request) -> web.Response:
    """Deletes a response. A running one is stopped."""
    id = request.match_info["id"]
    store, running = store_for(request), request.app[RESPONSES].background
    foreground = running.find_foreground(request[OWNER], id)
    if foreground is not None:
        await foreground.cancel_and_wait()  # it is stored at its end
    with store_errors_as_faults():
        was_there = await store.delete_response(request[OWNER], id)
    if not was_there and foreground is None:
        raise response_object.not_found(id)
    live = running.find(request[OWNER], id)
    if live is not None:
        await live.cancel_and_wait()
    return json_response(response_object.deleted_response(id))


async def list_input_items(request: web.Request) -> web.Response:
    """Lists the input items of a response."""
    id = request.match_info["id"]
    return json_response(
        await list_page(
            request,
            partial(store_for(request).input_items, request[OWNER], id),
            default=response_object.INPUT_ITEMS_LIMIT,
            form=decode_item,
            missing=response_object.not_found(id),
        )
    )


async def cancel_response(request: web.Request) -> web.Response:
    """Cancels a background response."""
    found = await stored_response(request)
    if response_object.cancel_action(msgspec.json.decode(found.json)) == "cancel":
        await cancel_in_background(request.app[RESPONSES], store_for(request), found)
        found = await stored_response(request)
    return web.Response(body=found.json, content_type="application/json")


async def count_input_tokens(request: web.Request) -> web.Response:
    """Estimates the tokens of a context.

    No turn is run, so rights to one are not checked.
    """
    service = request.app[RESPONSES]
    parsed = await _parse(request, counting=True)
    measure, fresh = await measure_context(parsed, service.store, request[OWNER], service.ids)
    measure.leaves_out_orphans = service.profile in LEAVING_OUT_ORPHANS
    return json_response(response_object.token_count(measure.tokens_with(parsed, fresh)))


async def compact_response(request: web.Request) -> web.Response:
    """Summarises a context for the start of a new one.

    The turn that makes the summary is not stored.
    """
    service = request.app[RESPONSES]
    parsed, history = await _read_conversation(request)
    request[NOTES] |= {"model": parsed.model_asked, "mode": "model"}
    bare = Turn(model=parsed.agent_model, history=())
    history = as_functions(history, agent_for(service.runs.agent, parsed.agent_model).capabilities)
    turn = await service.admission.admit(
        compaction.compaction_turn(bare, history),
        request[CLIENT],
        FIELDS,
        model=parsed.model_asked,
        any_effort=True,
        image_fields=web_images(parsed.input_items),
    )
    renderer = await _run_to_end(service, turn, request[OWNER], start_timings(request))
    response = renderer.response()
    summary = compaction.summary_in(response)
    if (failure := compaction.lacks_summary(response["status"], summary)) is not None:
        raise Fault(failure)
    parts = (part for item in response["output"] for part in item.get("content", ()))
    texts = [part["text"] if "text" in part else part["refusal"] for part in parts]
    return json_response(
        response_object.compaction_object(
            id=service.ids.new("resp_"),
            created_at=int(service.clock.epoch()),
            item_id=service.ids.new("cmp_"),
            summary=summary,
            usage=renderer.spent.tokens(
                prompt=partial(tokens_in, turn.history), answer=partial(estimate_all, texts)
            ),
        )
    )


async def _read_conversation(request: web.Request) -> tuple[ParsedContext, tuple[HistoryItem, ...]]:
    service = request.app[RESPONSES]
    parsed = await _parse(request)
    context = await read_context(parsed, service.store, request[OWNER], service.ids, service.clock.epoch())
    request[HELD].grow_by(context.size)
    left_out: tuple[str, ...] = ()
    if service.profile in LEAVING_OUT_ORPHANS:
        context, left_out = without_orphans(context)
    containers = containers_for(agent_for(service.runs.agent, parsed.agent_model), request[CLIENT])
    context, without = without_containers(context, containers)
    name_ignored(request, (*left_out, *without))
    earlier = [item.shown for item in context.earlier if item.shown is not None]
    fresh = [item.shown for item in context.fresh if item.shown is not None]
    return parsed, contexts.context_history(parsed, [*earlier, *fresh], earlier=len(earlier))


async def _parse(request: web.Request, *, counting: bool = False) -> ParsedContext:
    catalog, max_items = request[CLIENT].catalog, request[CLIENT].settings.max_items
    parsed = await parse_body(
        request,
        await read_body(request),
        lambda body, pdfs: contexts.parse_context(
            body, catalog=catalog, max_items=max_items, counting=counting, pdfs=pdfs
        ),
    )
    name_ignored(request, parsed.ignored)
    request.app[RESPONSES].admission.check_hosted(parsed.hosted, parsed.agent_model, request[CLIENT])
    return parsed


async def _run_to_end(
    service: ResponsesService, turn: Turn, owner: str, timings: TurnTimings
) -> ResponsesRenderer:
    renderer = ResponsesRenderer(
        id="resp_compaction", created_at=0, echo={}, ids=service.ids, clock=service.clock, activity="off"
    )
    with service.usage.turn(owner, billed_model(turn), renderer):
        run = await service.runs.start(turn, owner, durable=False)
        await whole_response(LogReader(OneRun(run), renderer, timings), dict)
    return renderer
