"""Posts signed webhooks of background responses and of sessions, again after `DELAYS` if that fails. They stay in the
store until delivered; of several servers, the one that claims a webhook sends it. Source: docs/responses.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TypeAlias

import aiohttp
import msgspec
import structlog

from codex_proxy.core.interfaces import Clock
from codex_proxy.core.own_errors import repeat
from codex_proxy.store.store import Store
from codex_proxy.store.values import DELIVERY_SECONDS, PendingWebhook, StoreError
from codex_proxy.surfaces.responses.webhooks import sign, webhook_body

log = structlog.get_logger("codex_proxy.http")

DELAYS = (1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)
"""Seconds before each further attempt."""
TIMEOUT_SECONDS = 15.0
START_SECONDS = DELIVERY_SECONDS - TIMEOUT_SECONDS
"""Seconds after its claim within which a delivery must begin, so that it ends before another server may begin one."""
POLL_SECONDS = 5.0
"""Seconds between two looks into the outbox for other servers' webhooks."""
MAX_WAITING = 1000
"""Maximum running deliveries. The other webhooks stay in the outbox."""

Key: TypeAlias = tuple[str, str]
"""A webhook's event id, and the URL to which it is posted."""


class WebhookSender:
    """Delivers the webhooks in the store's outbox. When some were added, `wake` must be called."""

    def __init__(self, urls: tuple[str, ...], secret: str, *, clock: Clock, outbox: Store) -> None:
        self._urls = urls
        self._secret = secret
        self._clock = clock
        self._outbox = outbox
        self._delays = DELAYS
        self._session: aiohttp.ClientSession | None = None
        self._reader: asyncio.Task[None] | None = None
        self._may_have_more = asyncio.Event()
        self._deliveries: dict[Key, asyncio.Task[None]] = {}
        self._stuck: set[Key] = set()
        """Webhooks that are done but could not be removed from the outbox."""

    def make(self, event_id: str, kind: str, data: Mapping[str, object]) -> list[PendingWebhook]:
        body = webhook_body(event_id, kind, data, int(self._clock.epoch()))
        return [PendingWebhook(event_id, url, body) for url in self._urls]

    def wake(self) -> None:
        """Makes the sender read the outbox soon."""
        self._may_have_more.set()
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(
                repeat(self._read_outbox, after=self._wait_for_more, failed="webhooks_not_read")
            )

    async def _wait_for_more(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._may_have_more.wait()
        self._may_have_more.clear()

    async def _read_outbox(self) -> None:
        asked = self._clock.monotonic()
        try:
            found = await self._outbox.claim_webhooks(MAX_WAITING - len(self._deliveries))
        except StoreError as error:
            log.warning("webhooks_not_read", reason=str(error))
            return
        for pending in found:
            # One that is still running was claimed again after this process had stood still.
            if (pending.event_id, pending.url) not in self._deliveries:
                self._begin(pending, until=asked + START_SECONDS)

    def _begin(self, pending: PendingWebhook, until: float) -> None:
        key = (pending.event_id, pending.url)
        task = asyncio.get_running_loop().create_task(self._deliver(pending, until))
        self._deliveries[key] = task

        def on_done(_: asyncio.Task[None]) -> None:
            if len(self._deliveries) >= MAX_WAITING:  # others may have found no room
                self._may_have_more.set()
            del self._deliveries[key]

        task.add_done_callback(on_done)

    async def _deliver(self, pending: PendingWebhook, until: float) -> None:
        """Makes an attempt, but not after the time `until`, when another server may make it."""
        if self._clock.monotonic() > until:
            return
        if pending.url in self._urls and (pending.event_id, pending.url) not in self._stuck:
            tries = pending.tries + 1
            problem = await self._post(pending.url, pending.event_id, pending.body)
            if problem is None:
                log.info("webhook_delivered", event_id=pending.event_id, tries=tries)
            else:
                delay = self._delays[pending.tries] if pending.tries < len(self._delays) else None
                log.warning(
                    "webhook_failed", event_id=pending.event_id, tries=tries, reason=problem, again_in=delay
                )
                if delay is not None:
                    await self._retry(msgspec.structs.replace(pending, tries=tries), delay)
                    return
        await self._drop(pending)

    async def _retry(self, pending: PendingWebhook, delay: float) -> None:
        try:
            await self._outbox.retry_webhook(pending, delay)
        except StoreError as error:
            log.warning("webhook_attempt_not_recorded", event_id=pending.event_id, reason=str(error))
        else:
            asyncio.get_running_loop().call_later(delay, self._may_have_more.set)

    async def _drop(self, pending: PendingWebhook) -> None:
        key = (pending.event_id, pending.url)
        try:
            await self._outbox.drop_webhook(*key)
            self._stuck.discard(key)
        except StoreError as error:
            self._stuck.add(key)
            log.warning("webhook_not_dropped", event_id=pending.event_id, reason=str(error))

    async def _post(self, url: str, event_id: str, body: bytes) -> str | None:
        hook = sign(body, event_id=event_id, timestamp=int(self._clock.epoch()), secret=self._secret)
        try:
            async with self._open_session().post(
                url, data=hook.body, headers=hook.headers, allow_redirects=False
            ) as reply:
                return None if 200 <= reply.status < 300 else f"status {reply.status}"
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return type(error).__name__

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        return self._session

    async def close(self) -> None:
        """Cancels running deliveries. The webhooks stay in the store."""
        tasks = [*self._deliveries.values(), *([self._reader] if self._reader else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
