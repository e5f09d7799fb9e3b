"""From a parsed request to an answer under way: context, turn, renderer, run, and what is kept at its end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from codex_proxy.admission.admit import FieldNames
from codex_proxy.admission.server_tools import McpRequest, ServerTools
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn
from codex_proxy.responses.answer import Answer, Save
from codex_proxy.responses.context import Context, context_of, turn_with
from codex_proxy.responses.conversation_turns import ConversationTurn
from codex_proxy.responses.profiles import renderer_of_profile
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.shortening import may_shorten, shortened
from codex_proxy.responses.store_faults import failure_of
from codex_proxy.responses.stored_output import stored_output
from codex_proxy.runs.model_items import ModelItem, model_items
from codex_proxy.runs.run import BeforeEnd, Run
from codex_proxy.store.base import Append, StoredItem, StoredResponse, StoreError
from codex_proxy.surfaces.base import json_bytes
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
        return await prepared_with(service, parsed, context, owner, id=id, created=created, held=held)
    except BaseException:
        if held is not None:
            held.release()
        raise


async def prepared_with(
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


async def prepared_shorter(
    service: ResponsesService, prepared: PreparedResponse, failure: Failure
) -> PreparedResponse | None:
    """The same turn without its oldest turns, where that may help against this failure."""
    context = shortened(prepared.context)
    if context is None or not may_shorten(prepared.parsed, prepared.context, failure):
        return None
    return await prepared_with(
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


def answer_of(service: ResponsesService, prepared: PreparedResponse, save: Save, *, stream: bool) -> Answer:
    """The answer of this response, which nothing has begun yet."""
    return Answer(
        renderer_of(service, prepared, stream=stream, keep_frames=True),
        save,
        stream=stream,
        profile=service.profile,
    )


def stores(service: ResponsesService, parsed: ParsedResponse) -> bool:
    """Whether the response will be there afterwards."""
    return parsed.store and service.store is not None


def keeps_anything(service: ResponsesService, parsed: ParsedResponse) -> bool:
    """Whether something is written when the response has ended: itself, or its items in a conversation."""
    return stores(service, parsed) or parsed.conversation is not None


async def start_run(
    service: ResponsesService, prepared: PreparedResponse, before_end: BeforeEnd | None = None
) -> Run:
    """Starts the turn. Raises the `Fault` of one that cannot begin."""
    turn, tools = await _with_server_tools(service, prepared)
    return await service.runs.start(
        turn,
        prepared.owner,
        before_end,
        durable=prepared.parsed.store,
        replay=prepared.replay,
        runner=tools.runner,
        first=tools.lists,
    )


async def begin(service: ResponsesService, prepared: PreparedResponse, answer: Answer) -> Run:
    """Starts the turn of an answer. Raises the `Fault` of one that cannot begin."""
    saves = keeps_anything(service, prepared.parsed)
    try:
        run = await start_run(service, prepared, answer.before_end if saves else None)
    except BaseException:
        prepared.release()
        raise
    answer.attach(run)
    return run


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


class SaveOnce:
    """Saves a response that runs in front of its client, when it has ended."""

    def __init__(self, service: ResponsesService, prepared: PreparedResponse) -> None:
        self._service = service
        self._prepared = prepared

    async def __call__(self, answer: Answer, run: Run) -> Failure | None:
        failure = None if answer.ending is None else answer.ending.failure
        if not answer.visible and may_shorten(self._prepared.parsed, self._prepared.context, failure):
            return None  # it is tried again, under the same id
        try:
            return await self._save(answer, run)
        finally:
            self._prepared.release()

    async def _save(self, answer: Answer, run: Run) -> Failure | None:
        final, parsed = answer.final, self._prepared.parsed
        assert final is not None
        failed = final["status"] == "failed"
        store = self._service.store
        if store is None or (failed and not parsed.stream):
            return None  # nobody has heard of it
        try:
            if parsed.store:
                await store.add_response(
                    self._response(final),
                    input=self._prepared.context.input,
                    output=output_of(self._service, final, run),
                    append=append_of(parsed, final["status"]),
                )
            elif append_of(parsed, final["status"]) is not None:
                items = [*self._prepared.context.input, *output_of(self._service, final, run)]
                await store.append_items(
                    self._prepared.owner, parsed.conversation or "", items, limited=False
                )
        except StoreError as error:
            return None if failed else failure_of(error)
        return None

    def _response(self, final: dict[str, object]) -> StoredResponse:
        prepared = self._prepared
        return StoredResponse(
            owner=prepared.owner,
            id=prepared.id,
            status=str(final["status"]),
            created=prepared.created,
            json=json_bytes(final),
            previous_id=prepared.parsed.previous_response_id,
            conversation_id=prepared.parsed.conversation,
        )


def output_of(service: ResponsesService, final: dict[str, object], run: Run) -> Sequence[StoredItem]:
    """The output as it is kept. Of a turn that was cut off, what the client saw is all that counts."""
    said: list[ModelItem] = []
    if final["status"] == "completed":
        said = model_items(run, service.runs.identity(run.turn))
    return stored_output(final["output"], said, service.ids, service.clock.epoch())  # type: ignore[arg-type]


def append_of(parsed: ParsedResponse, status: object) -> Append | None:
    """A conversation takes both sides of a turn that has come to an end of its own."""
    if parsed.conversation is None or status not in ("completed", "incomplete"):
        return None
    return Append(parsed.conversation)
