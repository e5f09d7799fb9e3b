"""The objects about stored responses: deletion, lists of input items, cancelling, compacting, counting.

Comes in: stored objects and ids. Goes out: dicts, or `Fault`s for what cannot be done. Sources:
docs/contract.md#stored-responses, docs/wire-rules.md#lists-and-stored-objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from codex_proxy.core.events import Usage
from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.surfaces.items import ItemDict
from codex_proxy.surfaces.responses.history import sealed
from codex_proxy.surfaces.responses.response_object import error_object, usage_object

INPUT_ITEMS_LIMIT: Final = 20
_RUNNING: Final = frozenset({"queued", "in_progress"})


def deleted(id: str) -> dict[str, Any]:
    """Returns the answer to DELETE."""
    return {"id": id, "object": "response.deleted", "deleted": True}


def cancelling(response: Mapping[str, Any]) -> Literal["cancel", "keep"]:
    """Decides what cancelling does: a running background response is stopped, one that is over stays. Raises `Fault`
    for a response that is not a background one."""
    if not response["background"]:
        raise bad_request(
            "This response was not created with 'background': true. Synchronous and streaming responses cannot be "
            "cancelled: closing the connection ends them.",
            code="cancellation_not_supported",
        )
    return "cancel" if response["status"] in _RUNNING else "keep"


def cancelled(response: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the object of a response that was cancelled."""
    return {**response, "status": "cancelled"}


def failed(response: Mapping[str, Any], failure: Failure) -> dict[str, Any]:
    """Returns the object of a response that nothing will finish any more, for example after a restart of the server."""
    return {**response, "status": "failed", "error": error_object(failure)}


def compacted(
    *, id: str, created_at: int, item_id: str, summary: str, usage: Usage, kept: Sequence[ItemDict] = ()
) -> dict[str, Any]:
    """Returns the `response.compaction` object: the items in `kept`, and a summary of the rest. Its output is the
    input of a new chain."""
    item = {"type": "compaction", "id": item_id, "encrypted_content": sealed(summary)}
    return {
        "id": id,
        "object": "response.compaction",
        "created_at": created_at,
        "output": [*kept, item],
        "usage": usage_object(usage),
    }


def token_count(tokens: int) -> dict[str, Any]:
    """Returns the `response.input_tokens` object. It says that it is an estimate, because no agent counts without
    asking the model."""
    return {"object": "response.input_tokens", "input_tokens": max(1, tokens), "estimated": True}


# --- what is not there --------------------------------------------------------------------------


def not_found(id: str) -> Fault:
    """Returns the fault for a response that does not exist, was deleted, or belongs to another key."""
    message = f"Response with id '{excerpt(id)}' not found."
    return Fault(Failure(kind=FaultKind.NOT_FOUND, message=message))


def previous_not_found(id: str) -> Fault:
    """Returns the fault for a `previous_response_id` that does not exist or was not stored."""
    return bad_request(
        f"Previous response with id '{excerpt(id)}' not found.",
        "previous_response_id",
        "previous_response_not_found",
    )


def previous_too_large(held: str) -> Fault:
    """Returns the fault for a chain of responses that is larger than a turn may continue."""
    return bad_request(
        f"The responses up to this one hold too much to go on from: {held}. Begin anew without "
        "'previous_response_id', with what matters of them in 'input'.",
        "previous_response_id",
        "context_too_large",
    )


def not_resumable(id: str) -> Fault:
    """Returns the fault for following a response whose events are not stored. Only those of background streams are."""
    return bad_request(
        f"The stream of response '{excerpt(id)}' cannot be resumed: only background responses that were "
        "created with 'stream': true keep their events.",
        "stream",
        "stream_not_resumable",
    )
