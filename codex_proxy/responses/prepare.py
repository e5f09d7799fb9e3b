"""Prepares responses: reads the items that a request continues, makes its turn, has the turn checked (admitted),
and makes the renderer and the run.
"""

from __future__ import annotations

from functools import partial

import msgspec

from codex_proxy.admission.server_tools import McpRequest, ServerTools
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn
from codex_proxy.responses.context import Context, ContextItem, read_context, turn_in_context
from codex_proxy.responses.service import ConversationTurn, ResponsesService
from codex_proxy.runs.run import Run
from codex_proxy.surfaces.responses.mcp_offers import listed_in
from codex_proxy.surfaces.responses.parse import ENCRYPTED_REASONING, ParsedResponse
from codex_proxy.surfaces.responses.profile import renderer_class
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from codex_proxy.surfaces.usage import tokens_in


class PreparedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response before its turn starts: the parsed request, its context, and the admitted turn. `owner` is the
    name of the client's key; `created` is in seconds since 1970.

    `replay` is the history of the turn with items in the form in which the model generated them, None if no such
    items are stored. `conversation_turn` is the lock on the request's conversation, None without a conversation;
    `release` releases it.
    """

    id: str
    owner: str
    created: float
    parsed: ParsedResponse
    context: Context
    turn: Turn
    replay: tuple[HistoryItem, ...] | None
    conversation_turn: ConversationTurn | None

    def release(self) -> None:
        if self.conversation_turn is not None:
            self.conversation_turn.release()


async def prepare(
    service: ResponsesService,
    parsed: ParsedResponse,
    owner: str,
    *,
    id: str,
    created: float,
    wait: float | None,
) -> PreparedResponse:
    """Reads the items that the request continues, and makes its turn. `id` and `created` (seconds since 1970) are
    those of the new response; `owner` is the name of the client's key. If another turn of the same conversation
    runs, waits for its end, at most `wait` seconds (None: no limit). Raises `Fault` for a turn that is not
    admitted, for references to objects that do not exist, and if the wait is too long.
    """
    conversation_turn = None
    if parsed.conversation is not None and service.store is not None:
        conversation_turn = await service.conversation_turns.enter(owner, parsed.conversation, wait)
    try:
        context = await read_context(parsed, service.store, owner, service.ids, created)
        return await prepare_in_context(
            service, parsed, context, owner, id=id, created=created, conversation_turn=conversation_turn
        )
    except BaseException:
        if conversation_turn is not None:
            conversation_turn.release()
        raise


async def prepare_in_context(
    service: ResponsesService,
    parsed: ParsedResponse,
    context: Context,
    owner: str,
    *,
    id: str,
    created: float,
    conversation_turn: ConversationTurn | None = None,
) -> PreparedResponse:
    """Prepares a response whose context was already read. `id` and `created` (seconds since 1970) are those of the
    new response; `owner` is the name of the client's key. `conversation_turn` is the lock on the request's
    conversation, which makes other turns of it wait; None if there is no conversation. If this raises, the caller
    has to release the lock. Raises `Fault` if the turn is not admitted: the client is not permitted something that
    the request asks for, or the agent cannot do it.
    """
    turn, replay = turn_in_context(parsed, context, service.runs.identity(parsed.turn))
    admitted = await service.admission.admit(
        turn,
        service.clients.by_name(owner),
        parsed.fields,
        model=parsed.model_asked,
        workdir_field=parsed.workdir_param,
        image_fields=parsed.web_images,
        mcp=parsed.mcp,
    )
    return PreparedResponse(
        id=id,
        owner=owner,
        created=created,
        parsed=parsed,
        context=context,
        turn=admitted,
        replay=_with_images(replay, turn, admitted),
        conversation_turn=conversation_turn,
    )


def _with_images(
    replay: tuple[HistoryItem, ...] | None, turn: Turn, admitted: Turn
) -> tuple[HistoryItem, ...] | None:
    """Returns `replay` with each image that was fetched during admission in place of its URL; None if `replay` is
    None. `turn` is the turn as it was before admission, `admitted` the same turn after it.
    """
    if replay is None or admitted.history is turn.history:
        return replay
    inlined = {old: new for old, new in zip(turn.history, admitted.history, strict=True) if old is not new}
    return tuple(inlined.get(item, item) for item in replay)


def renderer_of(
    service: ResponsesService, prepared: PreparedResponse, *, stream: bool = False, keep_frames: bool = False
) -> ResponsesRenderer:
    """Returns a renderer for this response, in the server's profile (the dialect of the Responses API that clients
    get). If `stream` is True, its `feed` returns the SSE bytes; if `keep_frames` is True, its `take_frames` returns
    the frames with their numbers; if both are False, it renders only the response object.
    """
    parsed = prepared.parsed
    return renderer_class(service.profile)(
        id=prepared.id,
        created_at=int(prepared.created),
        echo={**parsed.echo, "store": stores(service, parsed)},
        ids=service.ids,
        clock=service.clock,
        stream=stream,
        background=parsed.background,
        activity=parsed.activity,
        encrypted_reasoning=ENCRYPTED_REASONING in parsed.include,
        prompt_tokens=partial(tokens_in, prepared.turn.history),
        max_tokens=prepared.turn.max_tokens,
        keep_frames=keep_frames,
        client_names={tool.name: tool.client_name for tool in prepared.turn.tools if tool.client_name},
    )


def stores(service: ResponsesService, parsed: ParsedResponse) -> bool:
    """Whether the response will be stored: the request does not have `store: false`, and the server has a store."""
    return parsed.store and service.store is not None


def keeps_anything(service: ResponsesService, parsed: ParsedResponse) -> bool:
    """Whether something is stored when the response ends: the response itself, or its items in a conversation."""
    return stores(service, parsed) or parsed.conversation is not None


async def start_run(service: ResponsesService, prepared: PreparedResponse) -> Run:
    """Starts the turn with the tools that this server runs for it, and returns the run. Raises `Fault` if the turn
    cannot start, or if `tool_choice` or a call that the client has approved names a tool that no MCP server offers.
    """
    turn, tools = await _with_server_tools(service, prepared)
    return await service.runs.start(
        turn,
        prepared.owner,
        durable=prepared.parsed.store,
        replay=prepared.replay,
        runner=tools.runner,
        first=tools.lists,
    )


async def _with_server_tools(
    service: ResponsesService, prepared: PreparedResponse
) -> tuple[Turn, ServerTools]:
    """Returns the turn with the tools that this server runs added, and an object that runs these tools. An MCP
    server that cannot be reached has no tools. Raises `Fault` if `tool_choice` or a call that the client has
    approved names a tool that no server offers.
    """
    if not service.admission.has_server_tools:
        return prepared.turn, ServerTools()
    parsed, context = prepared.parsed, prepared.context
    request = McpRequest(
        offers=parsed.mcp,
        known=listed_in(item.shown for item in (*context.earlier, *context.fresh)) if parsed.mcp else {},
        choices=parsed.mcp_choice,
        max_calls=parsed.max_tool_calls,
    )
    client = service.clients.by_name(prepared.owner)
    return await service.admission.add_server_tools(prepared.turn, client, parsed.fields, request)


# --- `truncation: auto` -------------------------------------------------------------------------


async def prepare_shorter(service: ResponsesService, prepared: PreparedResponse) -> PreparedResponse:
    """Prepares the response again without the older half of its context. Call it only if `may_shorten` is True.
    Raises the same `Fault`s as `prepare_in_context`.
    """
    context = shortened(prepared.context)
    assert context is not None, "there is something to leave out"
    return await prepare_in_context(
        service,
        prepared.parsed,
        context,
        prepared.owner,
        id=prepared.id,
        created=prepared.created,
        conversation_turn=prepared.conversation_turn,
    )


def may_shorten(parsed: ParsedResponse, context: Context, failure: Failure | None) -> bool:
    """Whether a turn that has ended with this failure is to be run again with a shorter context: the context was
    too long, the request has `truncation: auto`, and something can be left out.
    """
    return (
        failure is not None
        and failure.kind is FaultKind.CONTEXT_LENGTH_EXCEEDED
        and parsed.truncation == "auto"
        and shortened(context) is not None
    )


def shortened(context: Context) -> Context | None:
    """Returns the context without its older half. The cut is before a user message, so that no call is separated
    from its output, and the newest user message is kept. None if nothing can be left out, or if the context was
    shortened before.
    """
    items = (*context.earlier, *context.fresh)
    cuts = [place for place, item in enumerate(items) if place and _is_users(item)]
    if not cuts or context.shortened:
        return None
    sizes = [_size(item) for item in items]
    half = sum(sizes) / 2
    cut = next((place for place in cuts if sum(sizes[:place]) >= half), cuts[-1])
    kept = len(context.earlier)
    return msgspec.structs.replace(
        context, earlier=context.earlier[cut:], fresh=context.fresh[max(0, cut - kept) :], shortened=True
    )


def _is_users(item: ContextItem) -> bool:
    return item.shown is not None and item.shown.get("role") == "user"


def _size(item: ContextItem) -> int:
    if item.model is not None:
        return len(bytes(item.model.item))
    return len(str(item.shown))
