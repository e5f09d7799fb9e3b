"""Webhooks that nobody has taken yet: the value, and what an outbox of them promises."""

from __future__ import annotations

from typing import Protocol

import msgspec


class PendingWebhook(msgspec.Struct, frozen=True):
    """An event that one target has still to be told."""

    event_id: str
    url: str
    body: bytes
    tries: int = 0
    """How many there have been."""


class Outbox(Protocol):
    """What is to be told, also after a restart. `Responses.update_response` puts in what tells of an end."""

    async def count_webhook_try(self, pending: PendingWebhook) -> None:
        """Keeps the number of tries of one that is there."""
        ...

    async def drop_webhook(self, event_id: str, url: str) -> None:
        """It was told, or given up. Nothing where it is not there."""
        ...

    async def webhooks(self, limit: int) -> list[PendingWebhook]:
        """What is there, the oldest first."""
        ...
