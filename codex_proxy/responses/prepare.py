"""Prepares responses: reads what a request continues, has its turn admitted, makes renderer and run."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import accumulate

import msgspec

from codex_proxy.admission.admit import McpRequest, ServerTools, containers_for
from codex_proxy.admission.images import fetched_bytes
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import HistoryItem, as_functions
from codex_proxy.core.turn import Turn
from codex_proxy.responses.context import (
    Context,
    ContextItem,
    read_context,
    turn_in_context,
    without_containers,
    without_orphans,
)
from codex_proxy.responses.service import RETRY_SECONDS, ResponsesService
from codex_proxy.runs.run import Run
from codex_proxy.runs.steered_inputs import SteeredInputs
from codex_proxy.runs.whole_history import Replay
from codex_proxy.store.health import store_errors_as_faults
from codex_proxy.store.leases import ConversationLease
from codex_proxy.store.store import Store
from codex_proxy.surfaces.answers.renderer import raw_fields
from codex_proxy.surfaces.answers.usage import tokens_in
from codex_proxy.surfaces.responses.kept_log import RENDERER, Rendering
from codex_proxy.surfaces.responses.mcp import newest_lists
from codex_proxy.surfaces.responses.parse import ENCRYPTED_REASONING, ParsedResponse
from codex_proxy.surfaces.responses.profile import LEAVING_OUT_ORPHANS
from codex_proxy.surfaces.responses.render import ResponsesRenderer

CONVERSATION_BUSY = Failure(
    FaultKind.CONCURRENCY_EXCEEDED,
    "Another request of this conversation is still running. Try again when it has ended.",
    retry_after=5,
)
MANY_ITEMS = 1000
"""Items of a request above which it is prepared in two steps: each takes some ten milliseconds for ten thousand."""


class PreparedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response before its turn. `owner`: the client's name. `replay`: the history as the model generated it, if
    stored; or the whole history, if the turn has only its end.
    """

    id: str
    owner: str
    created: float
    parsed: ParsedResponse
    context: Context
    turn: Turn
    replay: Replay | None
    conversation_turn: ConversationLease | None
    size: int
    """The bytes that the request did not bring: what was read from the store, and fetched."""

    @property
    def turn_epoch(self) -> int | None:
        """The epoch of the lease on the conversation, which writes of the turn name."""
        return None if self.conversation_turn is None else self.conversation_turn.epoch

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
    """Prepares a response after the conversation's other turns, for which it waits `wait` seconds (None: no limit).
    Raises `Fault`.
    """
    conversation_turn = None
    if parsed.conversation is not None and service.store is not None:
        conversation_turn = await _enter(service.store, owner, parsed.conversation, wait)
    try:
        context = await read_context(parsed, service.store, owner, service.ids, created)
        return await prepare_in_context(
            service, parsed, context, owner, id=id, created=created, conversation_turn=conversation_turn
        )
    except BaseException:
        if conversation_turn is not None:
            conversation_turn.release()
        raise


async def _enter(store: Store, owner: str, conversation: str, wait: float | None) -> ConversationLease:
    try:
        with store_errors_as_faults():
            async with asyncio.timeout(wait):
                return await store.leases.enter_conversation(owner, conversation)
    except TimeoutError:
        raise Fault(CONVERSATION_BUSY) from None


async def prepare_in_context(
    service: ResponsesService,
    parsed: ParsedResponse,
    context: Context,
    owner: str,
    *,
    id: str,
    created: float,
    conversation_turn: ConversationLease | None = None,
) -> PreparedResponse:
    """Prepares a response in a known context. If it raises, the caller releases `conversation_turn`."""
    if len(context.fresh) > MANY_ITEMS:
        await asyncio.sleep(0)  # others are served before the second step
    client = service.clients.by_name(owner)
    if service.profile in LEAVING_OUT_ORPHANS:
        context, left_out = without_orphans(context)
        parsed = msgspec.structs.replace(parsed, ignored=(*parsed.ignored, *left_out))
    agent = service.runs.services.agent_of(parsed.turn)
    containers = containers_for(agent, client)
    context, left_out = without_containers(context, containers)
    parsed = msgspec.structs.replace(parsed, ignored=(*parsed.ignored, *left_out))
    turn, replay = turn_in_context(
        parsed, context, partial(service.runs.services.agent_and_model, parsed.turn)
    )
    turn = msgspec.structs.replace(turn, history=as_functions(turn.history, agent.capabilities))
    replay = None if replay is None else as_functions(replay, agent.capabilities)
    admitted = await service.admission.admit(
        turn,
        client,
        parsed.fields,
        model=parsed.model_asked,
        workdir_field=parsed.workdir_param,
        image_fields=parsed.web_images,
        optional_images=parsed.optional_images,
        mcp=() if parsed.compacts else parsed.mcp,
        hosted=parsed.hosted,
    )
    fetched = 0
    if admitted.history is not turn.history:
        replay, fetched = _inline_images(replay, turn, admitted), fetched_bytes(turn, admitted)
    return PreparedResponse(
        id=id,
        owner=owner,
        created=created,
        parsed=parsed,
        context=context,
        turn=admitted,
        replay=replay,
        conversation_turn=conversation_turn,
        size=context.size + fetched,
    )


def _inline_images(
    replay: tuple[HistoryItem, ...] | None, turn: Turn, admitted: Turn
) -> tuple[HistoryItem, ...] | None:
    if replay is None:
        return None
    inlined = {old: new for old, new in zip(turn.history, admitted.history, strict=True) if old is not new}
    return tuple(inlined.get(item, item) for item in replay)


def rendering_of(service: ResponsesService, prepared: PreparedResponse, run: str = "") -> Rendering:
    """Returns what a renderer needs besides the events. `run`: see `DerivedIds`."""
    parsed = prepared.parsed
    echo: dict[str, object] = {**parsed.echo, "store": is_stored(service, parsed)}
    return Rendering(
        renderer=RENDERER,
        id=prepared.id,
        run=run,
        created_at=int(prepared.created),
        profile=service.profile,
        compacts=parsed.compacts,
        background=parsed.background,
        activity=parsed.activity,
        encrypted_reasoning=ENCRYPTED_REASONING in parsed.include,
        max_tokens=prepared.turn.max_tokens,
        client_names={tool.name: tool.client_name for tool in prepared.turn.tools if tool.client_name},
        echo=raw_fields(echo),
    )


def renderer_of(
    service: ResponsesService,
    prepared: PreparedResponse,
    *,
    stream: bool = False,
    keep_frames: bool = False,
    rendering: Rendering | None = None,
) -> ResponsesRenderer:
    """Returns a new renderer. `rendering`: that of the response, if it is known."""
    return (rendering or rendering_of(service, prepared)).new_renderer(
        clock=service.clock,
        prompt_tokens=partial(tokens_in, prepared.turn.history),
        stream=stream,
        keep_frames=keep_frames,
    )


def is_stored(service: ResponsesService, parsed: ParsedResponse) -> bool:
    return parsed.store and service.store is not None


def needs_saving(service: ResponsesService, parsed: ParsedResponse) -> bool:
    """Whether the response, or its items in a conversation, will be stored."""
    return is_stored(service, parsed) or parsed.conversation is not None


async def start_run(
    service: ResponsesService, prepared: PreparedResponse, inputs: SteeredInputs | None = None
) -> Run:
    """Starts the turn with the server's tools. `inputs`: what its client says while it runs. Raises `Fault`, also for a
    `tool_choice` or approved call of an unknown tool.
    """
    turn, tools = prepared.turn, ServerTools()
    if service.admission.has_server_tools and not prepared.parsed.compacts:
        turn, tools = await _with_server_tools(service, prepared)
    return await service.runs.start(
        turn,
        prepared.owner,
        durable=prepared.parsed.store,
        replay=prepared.replay,
        runner=tools.runner,
        first=tools.lists,
        inputs=inputs,
    )


async def try_to_start(
    service: ResponsesService, prepared: PreparedResponse, inputs: SteeredInputs | None = None
) -> Run | None:
    """Starts a turn that may wait for a place, as `start_run` does. Without a place it releases the conversation, and
    returns None after `RETRY_SECONDS`.
    """
    try:
        return await start_run(service, prepared, inputs)
    except Fault as fault:
        if fault.failure.kind is not FaultKind.CONCURRENCY_EXCEEDED:
            raise
    prepared.release()
    with suppress(TimeoutError):  # where the server stops, the next try raises that
        async with asyncio.timeout(RETRY_SECONDS):
            await service.runs.until_draining()
    return None


async def _with_server_tools(
    service: ResponsesService, prepared: PreparedResponse
) -> tuple[Turn, ServerTools]:
    parsed, context = prepared.parsed, prepared.context
    request = McpRequest(
        offers=parsed.mcp,
        known=newest_lists(item.shown for item in (*context.earlier, *context.fresh)) if parsed.mcp else {},
        choices=parsed.mcp_choice,
        max_calls=parsed.max_tool_calls,
    )
    client = service.clients.by_name(prepared.owner)
    return await service.admission.add_server_tools(prepared.turn, client, parsed.fields, request)


# --- another turn for the same response ----------------------------------------------------------


async def prepare_again(
    service: ResponsesService,
    prepared: PreparedResponse,
    *,
    parsed: ParsedResponse | None = None,
    context: Context | None = None,
) -> PreparedResponse:
    """Prepares a response again, for another model (`parsed`) or with less `context`. Raises `Fault`."""
    return await prepare_in_context(
        service,
        parsed or prepared.parsed,
        context or prepared.context,
        prepared.owner,
        id=prepared.id,
        created=prepared.created,
        conversation_turn=prepared.conversation_turn,
    )


def shorter_context(prepared: PreparedResponse, failure: Failure | None) -> Context | None:
    """Returns the context for another run without its older half, cut before a user message, so that calls keep their
    outputs; None if it was not too long, `truncation` is not `auto`, or that is impossible or was done.
    """
    context = prepared.context
    if failure is None or failure.kind is not FaultKind.CONTEXT_LENGTH_EXCEEDED:
        return None
    if prepared.parsed.truncation != "auto":
        return None
    items = (*context.earlier, *context.fresh)
    cuts = [place for place, item in enumerate(items) if place and (item.shown or {}).get("role") == "user"]
    if not cuts or context.shortened:
        return None
    before = [0, *accumulate(map(_size, items))]
    cut = next((place for place in cuts if 2 * before[place] >= before[-1]), cuts[-1])
    kept = len(context.earlier)
    return msgspec.structs.replace(
        context, earlier=context.earlier[cut:], fresh=context.fresh[max(0, cut - kept) :], shortened=True
    )


def _size(item: ContextItem) -> int:
    if item.model is not None:
        return len(bytes(item.model.item))
    return len(str(item.shown))
