"""POST /v1/responses/input_tokens and /compact: what a context costs, and a shorter one in its place."""

from __future__ import annotations

from aiohttp import web

from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn
from codex_proxy.http.body import read_body
from codex_proxy.http.clients import CLIENT, not_its_model
from codex_proxy.http.exchange import whole
from codex_proxy.http.middleware.frame import NOTES, OWNER
from codex_proxy.http.observed import Observed
from codex_proxy.http.replies import json_response
from codex_proxy.http.responses.context import context_of
from codex_proxy.http.service import SERVICE, Service
from codex_proxy.http.sources import OneRun
from codex_proxy.http.turns import billed_to, check_capabilities
from codex_proxy.http.workspace import in_workspace
from codex_proxy.surfaces.responses import context as contexts
from codex_proxy.surfaces.responses import objects
from codex_proxy.surfaces.responses.context import ParsedContext
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from codex_proxy.surfaces.usage import letters_in


async def count_input_tokens(request: web.Request) -> web.Response:
    """POST /v1/responses/input_tokens. No agent counts without a model call: the answer says that it estimates."""
    parsed, history = await _context(request)
    return json_response(objects.token_count(contexts.letters_of(parsed, history)))


async def compact(request: web.Request) -> web.Response:
    """POST /v1/responses/compact: the plain model sums the context up; its output begins a new chain as it is."""
    service = request.app[SERVICE]
    parsed, history = await _context(request)
    request[NOTES] |= {"model": parsed.model_asked, "mode": "model"}
    turn = in_workspace(contexts.compaction_turn(parsed, history), None, request[CLIENT].workspace)
    if not request[CLIENT].allows_some_effort(turn.model):  # which one it takes is no choice of the client's
        raise not_its_model(parsed.model_asked)
    check_capabilities(turn, service.manager.agent)
    renderer = await _answered(service, turn, request[OWNER])
    response = renderer.response()
    letters = sum(len(part["text"]) for item in response["output"] for part in item.get("content", ()))
    return json_response(
        objects.compacted(
            id=service.ids.new("resp_"),
            created_at=int(service.clock.epoch()),
            item_id=service.ids.new("cmp_"),
            summary=contexts.summary_in(response),
            usage=renderer.spent.tokens(prompt_letters=letters_in(turn.history), answer_letters=letters),
        )
    )


async def _context(request: web.Request) -> tuple[ParsedContext, tuple[HistoryItem, ...]]:
    """The context of the body, with what is stored of it."""
    service = request.app[SERVICE]
    parsed = contexts.parse_context(
        await read_body(request), catalog=service.catalog, max_items=request[CLIENT].responses.max_items
    )
    context = await context_of(
        parsed, service.responses.store, request[OWNER], service.ids, service.clock.epoch()
    )
    earlier = [item.shown for item in context.earlier if item.shown is not None]
    fresh = [item.shown for item in context.fresh if item.shown is not None]
    return parsed, contexts.context_history(parsed, [*earlier, *fresh], earlier=len(earlier))


async def _answered(service: Service, turn: Turn, owner: str) -> ResponsesRenderer:
    """The turn, run to its end. Raises the `Fault` of one that failed."""
    renderer = ResponsesRenderer(
        id="resp_compaction",
        created_at=0,
        echo={},
        ids=service.ids,
        clock=service.clock,
        activity="off",
    )
    with service.book.turn(owner, billed_to(turn), renderer):
        run = await service.manager.start(turn, owner, durable=False)
        await whole(OneRun(run), renderer, Observed(service.clock), {})
    return renderer
