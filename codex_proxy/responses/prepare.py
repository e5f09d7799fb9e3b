"""From a parsed request to an answer under way: context, turn, renderer, run, and what is kept at its end."""

from __future__ import annotations

from functools import partial

import msgspec

from codex_proxy.admission.admit import FieldNames
from codex_proxy.admission.server_tools import McpRequest, ServerTools
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn
from codex_proxy.responses.context import Context, context_of, turn_with
from codex_proxy.responses.conversation_turns import ConversationTurn
from codex_proxy.responses.profiles import renderer_of_profile
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.shortening import shortened
from codex_proxy.runs.run import Run
from codex_proxy.surfaces.items import web_images
from codex_proxy.surfaces.responses.mcp_offers import listed_in
from codex_proxy.surfaces.responses.parse import ENCRYPTED_REASONING, ParsedResponse
from codex_proxy.surfaces.responses.render import ResponsesRenderer
from codex_proxy.surfaces.usage import tokens_in

FIELDS = FieldNames(
    input="input",
    input_item="input",
    tool_schema="tools[{}].parameters",
    output_format="text.format",
    output_schema="text.format.schema",
)


class PreparedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of a response before its turn begins."""

    id: str
    owner: str
    created: float
    parsed: ParsedResponse
    context: Context
    turn: Turn
    replay: tuple[HistoryItem, ...] | None
    held: ConversationTurn | None
    """The right to continue its conversation; whoever holds this gives it back."""

    def release(self) -> None:
        if self.held is not None:
            self.held.release()


async def prepare(
    service: ResponsesService,
    parsed: ParsedResponse,
    owner: str,
    *,
    id: str,
    created: float,
    wait: float | None,
) -> PreparedResponse:
    """Reads the context and makes the turn. Raises `Fault`. `wait`: seconds for another turn of its conversation."""
    held = None
    if parsed.conversation is not None and service.store is not None:
        held = await service.turns.enter(owner, parsed.conversation, wait)
    try:
        context = await context_of(parsed, service.store, owner, service.ids, created)
        return await prepare_in_context(service, parsed, context, owner, id=id, created=created, held=held)
    except BaseException:
        if held is not None:
            held.release()
        raise


async def prepare_in_context(
    service: ResponsesService,
    parsed: ParsedResponse,
    context: Context,
    owner: str,
    *,
    id: str,
    created: float,
    held: ConversationTurn | None = None,
) -> PreparedResponse:
    """The same, for a context that is known already, within what its owner may do now."""
    turn, replay = turn_with(parsed, context, service.runs.identity(parsed.turn))
    admitted = await service.admission.admit(
        turn,
        service.clients.named(owner),
        FIELDS,
        model=parsed.model_asked,
        workdir_field=parsed.workdir_param,
        image_fields=web_images(parsed.input_items),
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
        held=held,
    )


async def prepare_shorter(service: ResponsesService, prepared: PreparedResponse) -> PreparedResponse:
    """The same turn without the older half of its context, which `may_shorten` has allowed. Raises `Fault`."""
    context = shortened(prepared.context)
    assert context is not None, "there is something to leave out"
    return await prepare_in_context(
        service,
        prepared.parsed,
        context,
        prepared.owner,
        id=prepared.id,
        created=prepared.created,
        held=prepared.held,
    )


def _with_images(
    replay: tuple[HistoryItem, ...] | None, turn: Turn, admitted: Turn
) -> tuple[HistoryItem, ...] | None:
    """The history as the model saw it, with the images that admission has inlined in the turn's own."""
    if replay is None or admitted.history is turn.history:
        return replay
    inlined = {old: new for old, new in zip(turn.history, admitted.history, strict=True) if old is not new}
    return tuple(inlined.get(item, item) for item in replay)


def renderer_of(
    service: ResponsesService, prepared: PreparedResponse, *, stream: bool = False, keep_frames: bool = False
) -> ResponsesRenderer:
    """The renderer of this response, in the profile that the operator chose."""
    parsed = prepared.parsed
    return renderer_of_profile(service.profile)(
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
    """Whether the response will be there afterwards."""
    return parsed.store and service.store is not None


def keeps_anything(service: ResponsesService, parsed: ParsedResponse) -> bool:
    """Whether something is written when the response has ended: itself, or its items in a conversation."""
    return stores(service, parsed) or parsed.conversation is not None


async def start_run(service: ResponsesService, prepared: PreparedResponse) -> Run:
    """Starts the turn. Raises the `Fault` of one that cannot begin."""
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
    """The turn with the tools that this server runs for it. Raises `Fault`."""
    if not service.admission.has_server_tools:
        return prepared.turn, ServerTools()
    parsed, context = prepared.parsed, prepared.context
    request = McpRequest(
        offers=parsed.mcp,
        known=listed_in(item.shown for item in (*context.earlier, *context.fresh)) if parsed.mcp else {},
        choices=parsed.mcp_choice,
        max_calls=parsed.max_tool_calls,
    )
    client = service.clients.named(prepared.owner)
    return await service.admission.add_server_tools(prepared.turn, client, FIELDS, request)
