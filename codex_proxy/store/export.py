"""The lines of an export: a response or conversation with its items as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from codex_proxy.store.interface import StoredConversation, StoredItem, StoredResponse

AT_ONCE: Final = 20
"""Responses or conversations that are read at once, with all their items."""

_encoder = msgspec.json.Encoder()


def response_line(
    response: StoredResponse, input: Iterable[StoredItem], output: Iterable[StoredItem]
) -> bytes:
    line = {
        "type": "response",
        "owner": response.owner,
        "id": response.id,
        "status": response.status,
        "created": response.created,
        "previous_response_id": response.previous_id,
        "conversation": response.conversation_id,
        "response": _raw(response.json),
        "input": [_item(item) for item in input],
        "output": [_item(item) for item in output],
    }
    return _encoder.encode(line) + b"\n"


def conversation_line(conversation: StoredConversation, items: Iterable[StoredItem]) -> bytes:
    line = {
        "type": "conversation",
        "owner": conversation.owner,
        "id": conversation.id,
        "created": conversation.created,
        "metadata": conversation.metadata,
        "items": [_item(item) for item in items],
    }
    return _encoder.encode(line) + b"\n"


def _item(item: StoredItem) -> dict[str, object]:
    return {"id": item.id, "created": item.created, "item": _raw(item.json), "raw": _raw(item.raw)}


def _raw(json: bytes) -> msgspec.Raw | None:
    return msgspec.Raw(json) if json else None
