"""Saves responses at their end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codex_proxy.responses.prepare import PreparedResponse
from codex_proxy.responses.service import ResponsesService
from codex_proxy.responses.stored_output import stored_output
from codex_proxy.runs.model_items import ModelItem, model_items
from codex_proxy.runs.run import Run
from codex_proxy.store.base import UNFINISHED, Append, Store, StoredItem, StoredResponse
from codex_proxy.surfaces.base import json_bytes
from codex_proxy.surfaces.responses.parse import ParsedResponse


async def save_response(
    service: ResponsesService,
    prepared: PreparedResponse,
    final: dict[str, Any],
    output: Sequence[StoredItem],
) -> None:
    """Saves a foreground response with its items, and puts both sides of the turn into its conversation; one with
    `store: false` is in the conversation only. Raises `StoreError`."""
    store, parsed, context = service.store, prepared.parsed, prepared.context
    append = conversation_append(parsed, final["status"])
    if store is None:
        return
    if parsed.store:
        response = StoredResponse(
            owner=prepared.owner,
            id=prepared.id,
            status=final["status"],
            created=prepared.created,
            json=json_bytes(final),
            previous_id=parsed.previous_response_id,
            conversation_id=parsed.conversation,
        )
        await store.add_response(response, input=context.input, output=output, append=append)
    elif append is not None:
        items = [*context.input, *output]
        await store.append_items(prepared.owner, append.conversation_id, items, limited=False)


async def end_stored_response(
    service: ResponsesService,
    store: Store,
    owner: str,
    final: dict[str, Any],
    *,
    output: Sequence[StoredItem] | None = None,
    append: Append | None = None,
) -> None:
    """Stores the last object of a background response and, in the same transaction, the webhooks that tell of it.
    Changes nothing where it has ended already. Raises `StoreError`."""
    webhooks = service.webhooks
    try:
        await store.update_response(
            owner,
            final["id"],
            status=final["status"],
            json=json_bytes(final),
            output=output,
            append=append,
            only_from=UNFINISHED,
            webhooks=() if webhooks is None else webhooks.pending(final["id"], final["status"]),
        )
    finally:
        if webhooks is not None:
            webhooks.wake()  # also where the store was too slow to say that it has written it


def output_items(service: ResponsesService, final: dict[str, Any], run: Run) -> Sequence[StoredItem]:
    """The output as it is stored. Of a turn that was cut off only what its client saw counts."""
    said: list[ModelItem] = []
    if final["status"] == "completed":
        said = model_items(run, service.runs.identity(run.turn))
    return stored_output(final["output"], said, service.ids, service.clock.epoch())


def conversation_append(parsed: ParsedResponse, status: object) -> Append | None:
    """What a conversation takes of a turn: both sides, if the turn has come to an end of its own; else None."""
    if parsed.conversation is None or status not in ("completed", "incomplete"):
        return None
    return Append(parsed.conversation)
