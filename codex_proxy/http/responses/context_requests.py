"""POST /v1/responses/input_tokens and /compact: what a context costs, and a shorter one in its place."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from codex_proxy.core.items import HistoryItem
from codex_proxy.core.tokens import estimate_all
from codex_proxy.core.turn import Turn
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.body import parsed_from, read_body
from codex_proxy.http.exchange import LogReader, OneRun, TurnTimings, whole
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER
from codex_proxy.http.replies import json_response
from codex_proxy.responses.context import measure_context, read_context
from codex_proxy.responses.prepare import FIELDS
from codex_proxy.responses.service import ResponsesService
from codex_proxy.surfaces.items import web_images
from codex_proxy.surfaces.models import billed_model
from codex_proxy.surfaces.responses import context as contexts
from codex_proxy.surfaces.responses import response_object
from codex_proxy.surfaces.responses.context import ParsedContext
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from codex_proxy.surfaces.usage import tokens_in


async def count_input_tokens(request: web.Request) -> web.Response:
    """POST /v1/responses/input_tokens: an estimate, since no agent counts without calling the model. No turn is run, so
    none is admitted."""
    service = request.app[RESPONSES]
    parsed = await _parsed(request, counting=True)
    measure, fresh = await measure_context(parsed, service.store, request[OWNER], service.ids)
    return json_response(response_object.token_count(measure.tokens_with(parsed, fresh)))


async def compact(request: web.Request) -> web.Response:
    """POST /v1/responses/compact: the plain model sums the context up. Its output can begin a new chain as it is."""
    service = request.app[RESPONSES]
    parsed, history = await _context(request)
    request[NOTES] |= {"model": parsed.model_asked, "mode": "model"}
    turn = await service.admission.admit(
        contexts.compaction_turn(parsed, history),
        request[CLIENT],
        FIELDS,
        model=parsed.model_asked,
        any_effort=True,
        image_fields=web_images(parsed.input_items),
    )
    renderer = await _answered(service, turn, request[OWNER])
    response = renderer.response()
    texts = [part["text"] for item in response["output"] for part in item.get("content", ())]
    return json_response(
        response_object.compacted(
            id=service.ids.new("resp_"),
            created_at=int(service.clock.epoch()),
            item_id=service.ids.new("cmp_"),
            summary=contexts.summary_in(response),
            usage=renderer.spent.tokens(
                prompt=partial(tokens_in, turn.history), answer=partial(estimate_all, texts)
            ),
        )
    )


async def _context(request: web.Request) -> tuple[ParsedContext, tuple[HistoryItem, ...]]:
    """The context of the body, with what is stored of it."""
    service = request.app[RESPONSES]
    parsed = await _parsed(request)
    context = await read_context(parsed, service.store, request[OWNER], service.ids, service.clock.epoch())
    earlier = [item.shown for item in context.earlier if item.shown is not None]
    fresh = [item.shown for item in context.fresh if item.shown is not None]
    return parsed, contexts.context_history(parsed, [*earlier, *fresh], earlier=len(earlier))


async def _parsed(request: web.Request, *, counting: bool = False) -> ParsedContext:
    catalog, max_items = request[CLIENT].catalog, request[CLIENT].responses.max_items
    return await parsed_from(
        request,
        await read_body(request),
        lambda body, pdfs: contexts.parse_context(
            body, catalog=catalog, max_items=max_items, counting=counting, pdfs=pdfs
        ),
    )


async def _answered(service: ResponsesService, turn: Turn, owner: str) -> ResponsesRenderer:
    """The turn, run to its end. Raises the `Fault` of one that failed."""
    renderer = ResponsesRenderer(
        id="resp_compaction",
        created_at=0,
        echo={},
        ids=service.ids,
        clock=service.clock,
        activity="off",
    )
    with service.usage.turn(owner, billed_model(turn), renderer):
        run = await service.runs.start(turn, owner, durable=False)
        await whole(LogReader(OneRun(run), renderer, TurnTimings(service.clock)), {})
    return renderer
